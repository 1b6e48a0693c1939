"""What int8 weights cost a trained model: `python scripts/int8.py runs/first`.

Its linear layers through torch's own dynamic quantisation, against the same model in float32 on the validation part of its
corpus: size, loss, logits, and the most likely next token.
"""

from __future__ import annotations

import sys
from itertools import islice
from typing import Any

import torch
from torch import Tensor

from maclaurin.evals import score_text
from maclaurin.evals.text import documents_of
from maclaurin.models.folder import open_model
from maclaurin.models.lighter import lighter

DOCUMENTS = 8
NEW_TOKENS = 64


def megabytes(model: Any) -> float:
    """Of what its state dict holds, packed weights included."""

    def size(value: Any) -> int:
        if isinstance(value, tuple):
            return sum(map(size, value))
        return value.numel() * value.element_size() if isinstance(value, Tensor) else 0

    return sum(map(size, model.state_dict().values())) / 2**20


@torch.no_grad()
def main(folder: str) -> None:
    model, tokenizer = open_model(folder)
    quantised: Any = lighter(model, int8_weights=True)
    documents = list(islice(documents_of(folder, None), DOCUMENTS))
    context = model.config.max_position_embeddings
    losses = [score_text(each, tokenizer, documents, context=context).loss for each in (model, quantised)]
    ids = torch.tensor([tokenizer(documents[0])["input_ids"][: 4 * context]], dtype=torch.long, device="cpu")
    exact, rounded = (each(input_ids=ids).logits[0] for each in (model, quantised))
    made = quantised.generate(ids[:, :context], max_new_tokens=NEW_TOKENS, do_sample=False)
    print(f"{folder}: {model.config.mixer}, {len(ids[0])} tokens of logits, {DOCUMENTS} documents of loss")
    print(f"size      {megabytes(model):.1f} -> {megabytes(quantised):.1f} MB")
    print(f"loss      {losses[0]:.4f} -> {losses[1]:.4f} nats per token")
    print(f"logits    off by {(rounded - exact).norm() / (exact - exact.mean(-1, keepdim=True)).norm():.2%}")
    print(f"agreement {(rounded.argmax(-1) == exact.argmax(-1)).double().mean():.1%} of the most likely next tokens")
    print(f"generated {made.shape[1] - min(context, ids.shape[1])} tokens")


if __name__ == "__main__":
    main(*sys.argv[1:])
