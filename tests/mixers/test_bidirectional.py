"""Every mixer that can see whole sequences, through the laws of doing so. A new one gets them by registering."""

import pytest
import torch

import maclaurin
from maclaurin.mixers import mixer_entry

# what a preset has that needs an order of time
WITHOUT = {"2mamba-e": {"decay": "none"}, "sliding-window": {"window": None}}
MIXERS = [name for name in maclaurin.available_mixers() if mixer_entry(name).mixer.bidirectional]
FORMS = ("parallel", "chunked", "recurrent", "auto")

every_bidirectional_mixer = pytest.mark.parametrize("name", MIXERS)


def build(name, dtype=torch.float64, **options):
    torch.manual_seed(0)
    return maclaurin.build_mixer(name, 24, 4, causal=False, **{**WITHOUT.get(name, {}), **options}).to(dtype)


def inputs(batch, length, seed=1):
    return torch.randn(batch, length, 24, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@every_bidirectional_mixer
def test_every_token_has_influence_on_every_token(name):
    mixer = build(name)
    x = inputs(1, 12)
    changed = x.clone()
    changed[:, -1] += 1
    with torch.no_grad():
        difference = (mixer(x)[0] - mixer(changed)[0]).abs().amax(-1)
    assert (difference > 1e-9).all()


@every_bidirectional_mixer
def test_forms_agree_and_so_do_their_gradients(name):
    mixer = build(name)
    x = inputs(2, 21)
    wanted = inputs(2, 21, seed=2)
    results = []
    for form in FORMS:
        leaf = x.clone().requires_grad_()
        y, state = mixer(leaf, form=form)
        assert state is None
        results.append([y, *torch.autograd.grad((y * wanted).sum(), [leaf, *mixer.parameters()])])
    for result in results[1:]:
        for got, expected in zip(result, results[0], strict=True):
            torch.testing.assert_close(got, expected, rtol=1e-8, atol=1e-9)


@every_bidirectional_mixer
@pytest.mark.parametrize("side", ["left", "right"])
def test_padding_and_other_documents_have_no_influence(name, side):
    mixer = build(name)
    x = inputs(3, 20)
    lengths = [20, 7, 13]
    mask = torch.stack([torch.arange(20) < length for length in lengths]).long()
    if side == "left":
        mask = mask.flip(1)
    x = torch.where(mask[..., None] == 1, x, torch.nan)
    packed = x[mask == 1][None]
    bounds = torch.tensor([0, *lengths]).cumsum(0)
    with torch.no_grad():
        y, _ = mixer(x, attention_mask=mask)
        y_packed, _ = mixer(packed, cu_seqlens=bounds)
        alone = torch.cat([mixer(x[row][mask[row] == 1][None])[0] for row in range(3)], dim=1)
    assert (y[mask == 0] == 0).all()
    torch.testing.assert_close(y[mask == 1][None], alone, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(y_packed, alone, rtol=1e-9, atol=1e-9)


@every_bidirectional_mixer
def test_low_precision_and_hostile_numbers_stay_close_and_finite(name):
    exact, mixer = build(name), build(name, torch.float32)
    x = inputs(2, 33)
    with torch.no_grad():
        expected, got = exact(x)[0], mixer(x.float())[0]
    assert (got.double() - expected).norm() <= 2e-4 * expected.norm()
    for hostile in (torch.zeros_like(x), x * 1e3, x * 1e-30):
        leaf = hostile.float().requires_grad_()
        y, _ = mixer(leaf)
        y.sum().backward()
        assert y.isfinite().all() and leaf.grad.isfinite().all()


@every_bidirectional_mixer
def test_a_state_is_refused(name):
    mixer = build(name)
    _, state = maclaurin.build_mixer("softmax", 24, 4).double()(inputs(1, 3))
    with pytest.raises(ValueError, match="state must be None: a mixer built with causal=False sees whole sequences only"):
        mixer(inputs(1, 3), state)
