"""Peak memory of one forward and backward of a small model: python scripts/sequence_memory.py TOKENS CHUNKS"""

from __future__ import annotations

import resource
import sys
import time

import torch

from maclaurin.distributed import backward_in_chunks
from maclaurin.models import MaclaurinConfig, MaclaurinForCausalLM


def main(tokens: int, chunks: int) -> None:
    sizes = {"hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 4, "num_attention_heads": 2}
    model = MaclaurinForCausalLM(MaclaurinConfig(vocab_size=64, **sizes, mixer="gla")).train()
    ids = torch.randint(64, (1, tokens))
    started = time.process_time()
    backward_in_chunks(model, {"input_ids": ids, "labels": ids}, chunks)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"{tokens:,} tokens in {chunks}: {peak:,.0f} MiB, {time.process_time() - started:.1f} CPU seconds")


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
