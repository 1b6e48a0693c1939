"""Every mixer learns: a model of two layers knows 256 bytes of text by heart within a few seconds."""

import pytest
import torch

import maclaurin
from maclaurin.models import MaclaurinConfig, MaclaurinForCausalLM

TEXT = (
    "Whenever a sum of powers is cut short, what is left out has to be paid for elsewhere: with a larger memory, with a "
    "decay that forgets in time, or with an answer that is a little wrong. Seven quick zebras jumped over five lazy dwarf "
    "foxes, and nobody knew why?"
)
STEPS = 600  # most mixers need 50; linear attention, which knows no positions, 350


@pytest.mark.parametrize("name", maclaurin.available_mixers())
def test_a_small_model_learns_a_text_by_heart(name):
    torch.manual_seed(0)
    config = MaclaurinConfig(
        vocab_size=128,
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=2,
        num_attention_heads=4,
        mixer=name,
    )
    model = MaclaurinForCausalLM(config).train()
    tokens = torch.tensor([list(TEXT.encode("ascii")[:256])])
    assert tokens.shape == (1, 256)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.0)
    for _ in range(STEPS):
        loss = model(input_ids=tokens, labels=tokens).loss
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if loss.item() < 0.05:
            return
    pytest.fail(f"the loss is {loss.item():.3f} nats after {STEPS} steps, and must be below 0.05")
