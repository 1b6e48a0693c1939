"""Locality: masses and masks of weights that are known."""

from __future__ import annotations

import pytest
import torch

from maclaurin.evals.suites.rows import one
from maclaurin.lab.experiments.locality import Masked, Masses, claims_of, local_mass, locality, masking, mass
from maclaurin.lab.traces import Traced, digits
from maclaurin.mixers import build_mixer, weights


def test_neighbours_of_a_grid() -> None:
    near = weights.neighbours((3, 4), 3)
    assert near.sum(-1).tolist() == [4, 6, 6, 4, 6, 9, 9, 6, 4, 6, 6, 4]
    assert near.diagonal().all() and (near == near.T).all()
    assert near[0].nonzero().flatten().tolist() == [0, 1, 4, 5]


def test_random_masks_hide_as_many() -> None:
    near, seen = weights.last_tokens(20, 3), torch.ones(20, 20, dtype=torch.bool).tril()
    drawn = weights.random_of_equal_number(near, seen, torch.Generator().manual_seed(0))
    assert (drawn.sum(-1) == near.sum(-1)).all() and not (drawn & ~seen).any() and not (drawn == near).all()


def test_mass_of_known_weights() -> None:
    near = weights.neighbours((4, 4), 3)
    uniform = torch.full((16, 16), 1 / 16)
    assert mass(uniform, near).mean().item() == pytest.approx(near.double().mean().item())
    assert mass(torch.eye(16), near).tolist() == [1.0] * 16
    assert mass(-torch.eye(16), ~near).tolist() == [0.0] * 16


def model(name: str, **options: object) -> Traced:
    torch.manual_seed(0)
    mixer = build_mixer(name, 8, 2, causal=False, **options)
    x = torch.randn(4, 16, 8)
    return Traced(name, mixer, lambda: mixer(x)[0].flatten(), (4, 4), 16, [name])


def test_hiding_changes_what_a_layer_says_to_what_it_would_say_without_those_keys() -> None:
    traced = model("inline", grid=(4, 4))
    (layer,) = traced.layers()
    hidden = weights.neighbours((4, 4), 3)
    with torch.no_grad():
        before = traced.run()
        with traced.hiding(lambda: hidden):
            during = traced.run()
        change = layer.weights(~hidden) - layer.weights()
        y = torch.einsum("bhts,bshv->bthv", change, layer.v.double()).flatten(2).float()
        torch.testing.assert_close(during - before, (y @ traced.model.out_proj.weight.T).flatten(), rtol=1e-4, atol=1e-6)
        assert torch.equal(traced.run(), before)


def test_an_output_norm_is_refused() -> None:
    traced = model("linear", norm="output")
    with torch.no_grad(), pytest.raises(ValueError, match="out_norm"), traced.hiding(lambda: torch.eye(16).bool()):
        traced.run()


def outcome(first: float, lost: float) -> tuple[Masses, Masked]:
    return Masses("", [first, 0.1], 0.1), Masked("", 0.9, [0.5], [0.5 + lost], [lost], [0.01])


@pytest.mark.parametrize(("softmax", "linear", "expected"), [(0.3, 0.1, True), (0.1, 0.3, False)])
def test_the_numbers_decide(softmax: float, linear: float, expected: bool) -> None:
    rows = {"softmax": outcome(softmax, softmax), "linear": outcome(linear, linear), "inline-no-filter": outcome(0.1, 0.0)}
    masses = [Masses(name, mass.layers, mass.chance) for name, (mass, _) in rows.items()]
    masked = [Masked(name, m.whole, m.local, m.random, m.lost, m.errors) for name, (_, m) in rows.items()]
    held = {claim.key: claim.held for claim in claims_of(masses, masked, [3])}
    assert held["mass softmax"] is expected and held["mask order"] is expected and held["mass inline"]
    (alone,) = claims_of(masses[:1], masked[:1], [3])
    assert alone.held is None


def test_bad_widths_are_refused() -> None:
    with pytest.raises(ValueError, match="widths must be odd"):
        locality(widths=(4,))


def test_probes_on_a_trained_model() -> None:
    (traced,) = digits({"linear": one("linear")}, steps=2, seed=0, images=8)
    found = local_mass(traced)
    assert len(found.layers) == 2 and found.chance == pytest.approx(2.75**2 / 64)
    masked = masking(traced, [3], seed=0, draws=2)
    assert 0 <= masked.local[0] <= 1 and masked.lost[0] == pytest.approx(masked.random[0] - masked.local[0])
