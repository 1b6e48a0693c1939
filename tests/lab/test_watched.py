"""Probes on a language model from its folder: what they need is a folder and a text."""

from __future__ import annotations

import pytest
import torch

from maclaurin.lab import weights
from maclaurin.lab.experiments.injectivity.confusion import confusion
from maclaurin.lab.experiments.locality.probes import local_mass, masking
from maclaurin.lab.watched import checkpoint


@pytest.fixture
def text(tmp_path):
    file = tmp_path / "text.txt"
    file.write_text("\n\n".join(f"Document {n}: " + "to be or not to be, that is the question. " * 20 for n in range(3)))
    return str(file)


def test_probes_on_a_language_model(trained, text) -> None:
    watched = checkpoint(str(trained), text, tokens=32, texts=2)
    for mixer, p in watched.layers():
        weight = weights.of_mixer(mixer, p)
        assert (weight.triu(1) == 0).all()
        torch.testing.assert_close(weight.sum(-1), torch.ones_like(weight.sum(-1)))
    assert all(0 < share < 1 for share in local_mass(watched).layers)
    assert confusion(watched).of > 0
    masked = masking(watched, [2, 4], seed=0, draws=1)
    assert len(masked.lost) == 2


def test_hiding_nothing_changes_nothing(trained, text) -> None:
    watched = checkpoint(str(trained), text, tokens=32, texts=1)
    with torch.no_grad():
        before = watched.run()
        with watched.hiding(lambda mixer: torch.zeros(32, 32, dtype=torch.bool)):
            assert torch.equal(watched.run(), before)


def test_documents_that_are_too_short_are_refused(trained, text) -> None:
    with pytest.raises(ValueError, match="tokens must be below"):
        checkpoint(str(trained), text, tokens=10**6, texts=1)
