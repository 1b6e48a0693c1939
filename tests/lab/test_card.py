"""Report cards: what is said of mixers with known properties, of a trained model, and of what is neither."""

from __future__ import annotations

import pytest
import torch

import maclaurin
from maclaurin.common import progress
from maclaurin.common.sizes import size_text
from maclaurin.lab.experiments.draws import block_ranks
from maclaurin.lab.result import Result
from maclaurin.mixers.overview import overview


def said(result: Result) -> dict[str, dict[str, str]]:
    """Property -> mechanism -> answer."""
    (grid,) = result.grids
    return {str(row[0]): dict(zip(grid.columns[1:], map(str, row[1:]), strict=True)) for row in grid.rows}


def of(answers: dict[str, dict[str, str]], start: str) -> dict[str, str]:
    (found,) = (row for name, row in answers.items() if name.startswith(start))
    return found


def test_mixers_side_by_side() -> None:
    result = maclaurin.lab.card("softmax", "linear", "gla", quick=True, d_model=16, num_heads=2, tokens=48, recall_steps=0)
    answers = said(result)
    assert of(answers, "block rank") == {"softmax": "24", "linear": "8", "gla": "4"}  # all tokens; d; d/2
    assert "separates" in of(answers, "needle")["softmax"] and "n^0.00" in of(answers, "needle")["softmax"]
    assert "n^0.50" in of(answers, "needle")["linear"]
    assert "decay" in of(answers, "needle")["gla"]  # why it cannot be asked
    assert of(answers, "queries")["softmax"] == "none found"
    assert "a ray" in of(answers, "queries")["linear"]
    assert of(answers, "recall")["linear"] == "– (left out)"
    state = of(answers, "state at 65,536")
    assert state["linear"] == of(answers, "state at 1,024")["linear"] != state["softmax"]
    facts = {row["name"]: row["state_nbytes"]["65536"] for row in overview("*", 16, 2, (65536,))}  # what users have: float32
    assert state == {name: size_text(facts[name]) for name in state} and "state at 65,536 tokens, float32" in answers
    assert result.held
    assert [claim.held for claim in result.claims] == [None, True, True]


def test_recall_is_learned_or_not_and_the_card_says_what_goes_on(monkeypatch, capsys) -> None:
    monkeypatch.setattr(progress, "SECONDS", 0)  # every line is due
    result = maclaurin.lab.card("rglru", d_model=16, num_heads=2, tokens=8, recall_steps=2)
    assert "after 2 steps" in of(said(result), "recall")["rglru"]
    shown = capsys.readouterr().err
    for line in ("card of rglru: needle among n tokens", "learns to recall 8 pairs, step 1 of at most 2, loss"):
        assert line in shown


def test_a_trained_model_beside_its_mixer(trained) -> None:
    result = maclaurin.lab.card(str(trained), "2mamba", quick=True, d_model=16, num_heads=2, tokens=24, recall_steps=0)
    answers = said(result)
    assert "% of the pairs in the text" in of(answers, "queries")[str(trained)]
    assert "trained for something else" in of(answers, "recall")[str(trained)]
    assert of(answers, "weight on the last")[str(trained)] != of(answers, "weight on the last")["2mamba"]


def test_a_rank_above_the_states_would_be_seen() -> None:
    generator = torch.Generator().manual_seed(0)
    left, right = (torch.randn(1, 20, 3, generator=generator, dtype=torch.float64) for _ in range(2))
    assert block_ranks(left @ right.mT) == [3]
    assert block_ranks(torch.randn(1, 20, 20, generator=generator, dtype=torch.float64)) == [10]


@pytest.mark.parametrize(
    ("names", "sentence"),
    [((), "name at least one mixer"), (("nobody",), "neither a mixer .* nor the folder"), (("linear",), "tokens must be")],
)
def test_bad_cards(names, sentence) -> None:
    with pytest.raises(ValueError, match=sentence):
        maclaurin.lab.card(*names, tokens=4 if names == ("linear",) else 64)
