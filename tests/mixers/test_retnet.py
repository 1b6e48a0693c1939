"""RetNet is added as CONTRIBUTING says: one short file, and everything that a mixer has follows. Laws: test_laws.py."""

import inspect
import json
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

import maclaurin
from maclaurin.cli import main
from maclaurin.lab import card
from maclaurin.mixers import retnet
from maclaurin.models import MaclaurinConfig, MaclaurinForCausalLM
from maclaurin.ops import reference
from maclaurin.ops.rotary import rotary

ROOT = Path(__file__).parents[2]


def test_it_is_one_short_file_and_named_nowhere_else():
    own = Path(inspect.getfile(retnet))
    assert len(own.read_text().splitlines()) <= 85
    layouts = ROOT / "maclaurin" / "convert" / "layouts"  # files of others, by their names
    others = [path for path in (ROOT / "maclaurin").rglob("*.py") if path != own and layouts not in path.parents]
    assert not [path for path in others if "retnet" in path.read_text().lower()]


def test_outputs_are_those_of_the_paper():
    """S_t = γ S_{t-1} + k_t v_tᵀ with γ from 1 − 1/32 to 1 − 1/512, written out as a matrix."""
    torch.manual_seed(0)
    mixer = maclaurin.build_mixer("retnet", 32, 4).double()
    x = torch.randn(2, 9, 32, dtype=torch.float64)
    q, k, v = (part.unflatten(-1, (4, 8)) for part in mixer.qkv_proj(x).chunk(3, dim=-1))
    positions = torch.arange(9).expand(2, -1)
    decay = torch.tensor([1 - 1 / 32, 1 - 1 / 32 / 16 ** (1 / 3), 1 - 1 / 32 / 16 ** (2 / 3), 1 - 1 / 512]).double().log()
    y = reference.linear_attention(rotary(q, positions), rotary(k, positions), v, decay.expand(2, 9, -1), normalize=False)
    y = F.rms_norm(y, (8,), eps=1e-5).flatten(2) * F.silu(mixer.gate_proj(x))
    torch.testing.assert_close(mixer(x)[0], mixer.out_proj(y), rtol=1e-6, atol=1e-8)


def test_a_language_model_of_it_trains_and_generates():
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
    model = MaclaurinForCausalLM(MaclaurinConfig(vocab_size=32, mixer="retnet", pad_token_id=0, **sizes))
    ids = torch.randint(1, 32, (2, 9))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = []
    for _ in range(2):
        loss = model(ids, labels=ids).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[1] < losses[0]
    model.eval()
    written = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=4, do_sample=False)
    for length in range(9, 13):
        assert torch.equal(model(written[:, :length]).logits[:, -1].argmax(-1), written[:, length])


def test_it_is_listed(capsys):
    with pytest.raises(SystemExit, match="0"):
        main(["mixers", "retnet", "--json"])
    (row,) = json.loads(capsys.readouterr().out)
    assert row["decoding"] == "constant" and row["crossover"] is not None and "2307.08621" in row["citation"]


def test_it_has_a_report_card_and_experiments_say_what_they_cannot_know():
    result = card("retnet", quick=True, recall_steps=0)
    answers = dict(result.grids[0].rows)
    assert answers["state at 65,536 tokens, float32"] == answers["state at 1,024 tokens, float32"]
    assert any("not applicable" in answer for answer in answers.values())
    assert [claim.held for claim in result.claims] == [None]
