"""HGRN2: its recurrence against another implementation, and lower bounds that the layers of a model share."""

import copy
import dataclasses

import pytest
import torch
import torch.nn.functional as F

import maclaurin
from maclaurin.mixers.hgrn2 import LowerBounds, shared_bounds
from maclaurin.models import MaclaurinConfig, MaclaurinForCausalLM
from maclaurin.models.stages import stage_of


def deep(layers=3, **options):
    """The layers of a model, and their bounds, of which no two are alike."""
    mixers = [maclaurin.build_mixer("hgrn2", 24, 4, **options).double() for _ in range(layers)]
    bounds = shared_bounds(mixers).double()
    torch.nn.init.normal_(bounds.logits)
    return mixers, bounds


def language_model():
    sizes = {"hidden_size": 24, "intermediate_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4, "vocab_size": 40}
    return MaclaurinForCausalLM(MaclaurinConfig(**sizes, mixer="hgrn2"))


def test_it_is_the_published_recurrence():
    """A bounded layer on shared weights, in float32, with a state handed over."""
    naive = pytest.importorskip("fla.ops.gla.naive", reason="flash-linear-attention is not installed (extra: peers)")
    mixer = maclaurin.build_mixer("hgrn2", 64, 4)
    bound = torch.rand(64)
    mixer.bound = lambda: bound
    x = torch.randn(2, 70, 64)
    with torch.no_grad():
        q, z, v = mixer.in_proj(x).chunk(3, dim=-1)
        log_decay = torch.logaddexp(bound.log(), torch.log1p(-bound) + F.logsigmoid(z))
        heads = [part.unflatten(-1, (4, -1)) for part in (F.silu(q), 1 - log_decay.exp(), v, log_decay)]
        y, recurrent = naive.naive_recurrent_gla(*heads, output_final_state=True)
        expected = mixer.out_proj(F.rms_norm(y.flatten(2), (64,), mixer.out_norm.weight, 1e-5))
        for form in ("parallel", "chunked", "recurrent"):
            first, state = mixer(x[:, :33], form=form)
            second, state = mixer(x[:, 33:], state, form=form)
            torch.testing.assert_close(torch.cat([first, second], 1), expected, rtol=1e-4, atol=1e-5)
            torch.testing.assert_close(state.attention.recurrent, recurrent, rtol=1e-4, atol=1e-5)


def test_bounds_rise_with_depth_from_nothing_to_less_than_one():
    bounds = LowerBounds(5, 7)
    torch.nn.init.normal_(bounds.logits, std=3)
    by_layer = torch.stack([bounds(layer) for layer in range(5)])
    assert (by_layer[0] == 0).all() and (by_layer.diff(dim=0) > 0).all() and (by_layer < 1).all()
    shares = bounds.logits.softmax(0)
    torch.testing.assert_close(by_layer, shares.cumsum(0) - shares[0])


def test_gates_never_fall_below_their_bound():
    mixers, bounds = deep()
    z = 20 * torch.randn(1, 200, 24, dtype=torch.float64)
    for layer, mixer in enumerate(mixers):
        forget = 1 - mixer.keys(z)
        assert (forget >= bounds(layer) - 1e-12).all() and (forget <= 1).all()


@pytest.mark.parametrize("conv_width", [0, 3])
def test_a_bounded_layer_keeps_the_laws(conv_width):
    """Forms and their gradients, hand-over, packing, slices that are folded apart, hostile numbers."""
    mixers, bounds = deep(conv_width=conv_width)
    mixer, x = mixers[-1], torch.randn(2, 21, 24, dtype=torch.float64)
    parameters = [*mixer.parameters(), bounds.logits]
    whole, end = mixer(x, form="parallel")
    expected = torch.autograd.grad(whole.square().sum(), parameters)
    assert all(gradient.abs().max() > 0 for gradient in expected)
    for form in ("chunked", "recurrent", "auto"):
        y, _ = mixer(x, form=form)
        torch.testing.assert_close(y, whole, rtol=1e-10, atol=1e-11)
        for got, wanted in zip(torch.autograd.grad(y.square().sum(), parameters), expected, strict=True):
            torch.testing.assert_close(got, wanted, rtol=1e-8, atol=1e-10)
        left, middle = mixer(x[:, :8], form=form)
        torch.testing.assert_close(torch.cat([left, mixer(x[:, 8:], middle)[0]], 1), whole, rtol=1e-10, atol=1e-11)
    packed, _ = mixer(x.flatten(0, 1)[None], cu_seqlens=torch.tensor([0, 21, 42]))
    torch.testing.assert_close(packed.view_as(whole), whole, rtol=1e-10, atol=1e-11)
    _, first = mixer(x[:, :8])
    no_sums = dataclasses.replace(first.attention, recurrent=torch.zeros_like(first.attention.recurrent))
    own, transition = mixer.fold(x[:, 8:], dataclasses.replace(first, attention=no_sums))
    joined = own.attention.after(first.attention, transition)
    torch.testing.assert_close(joined.recurrent, end.attention.recurrent, rtol=1e-10, atol=1e-11)
    for logits in (-1e4, 0.0, 1e4):
        torch.nn.init.constant_(bounds.logits[1:], logits)
        leaf = (1e4 * x.sign()).requires_grad_()
        y, _ = mixer(leaf)
        gradients = torch.autograd.grad(y.sum(), [leaf, *parameters])
        assert y.isfinite().all() and all(gradient.isfinite().all() for gradient in gradients)


def test_a_model_learns_one_set_of_bounds():
    model = language_model()
    ids = torch.randint(0, 40, (2, 12))
    model(ids, labels=ids).loss.backward()
    assert model.model.lower_bounds.logits.grad.abs().max() > 0
    assert [name for name, _ in model.named_parameters() if "bound" in name] == ["model.lower_bounds.logits"]


def test_a_copy_has_bounds_of_its_own():
    model = language_model()
    other = copy.deepcopy(model)
    torch.nn.init.normal_(other.model.lower_bounds.logits)
    ids = torch.randint(0, 40, (1, 12))
    with torch.no_grad():
        assert not torch.equal(other(ids).logits, model(ids).logits)


def test_bounds_are_saved_with_the_model(tmp_path):
    model = language_model().eval()
    torch.nn.init.normal_(model.model.lower_bounds.logits)
    model.save_pretrained(tmp_path)
    ids = torch.randint(0, 40, (1, 12))
    with torch.no_grad():
        assert torch.equal(MaclaurinForCausalLM.from_pretrained(tmp_path).eval()(ids).logits, model(ids).logits)


def test_stages_cannot_share_bounds():
    with pytest.raises(ValueError, match="cannot share the lower bounds of hgrn2"):
        stage_of(language_model(), 0, 2)
