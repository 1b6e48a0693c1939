"""InLine's mixer: the filter made from the mean token, on a line and on a grid, and the options of the paper."""

import pytest
import torch
import torch.nn.functional as F

import maclaurin
from maclaurin.ops import reference


def build(seed=0, **options):
    torch.manual_seed(seed)
    return maclaurin.build_mixer("inline", 24, 4, **options).double()


def tokens(length=20, batch=2):
    return torch.randn(batch, length, 24, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


def attention(mixer, x, phi=lambda x: x):
    """The output before its projection, without the filter, and the values."""
    q, k, v = (part.unflatten(-1, (4, -1)) for part in mixer.qkv_proj(x).chunk(3, dim=-1))
    return reference.inline_attention(phi(q), phi(k), v, causal=mixer.causal).flatten(2), v.flatten(2)


def taps(mixer, mean_BC):
    """Two convolutions of width 1 in groups, as published: (B, C, taps)."""
    local = mixer.local
    run = torch.nn.Conv1d.forward
    return run(local.out, F.gelu(run(local.hidden, mean_BC[..., None]))).unflatten(1, (24, -1)).squeeze(-1)


@pytest.mark.parametrize("class_tokens", [0, 1, 2])
@pytest.mark.parametrize("grid", [(4, 5), (1, 7), (3, 1)])
def test_an_image_is_filtered_by_a_depthwise_convolution_of_its_own(grid, class_tokens):
    """Per sample and channel 3 x 3 cross-correlation, zeros around; class tokens are in the mean but pass by the filter."""
    mixer = build(causal=False, grid=grid, class_tokens=class_tokens)
    x = tokens(class_tokens + grid[0] * grid[1])
    with torch.no_grad():
        y, v = attention(mixer, x)
        for row in range(2):
            kernel = taps(mixer, x.mean(1))[row].view(24, 1, 3, 3)
            image = v[row, class_tokens:].T.view(1, 24, *grid)
            y[row, class_tokens:] += F.conv2d(image, kernel, padding=1, groups=24).flatten(2)[0].T
        expected = mixer.out_proj(y)
        torch.testing.assert_close(mixer(x)[0], expected, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("width", [1, 3, 4])
def test_a_sequence_is_filtered_from_the_mean_so_far(width):
    mixer = build(local_width=width)
    x = tokens()
    with torch.no_grad():
        y, v = attention(mixer, x)
        for t in range(x.shape[1]):
            kernel = taps(mixer, x[:, : t + 1].mean(1))
            for back in range(min(width, t + 1)):
                y[:, t] += kernel[..., width - 1 - back] * v[:, t - back]
        expected = mixer.out_proj(y)
        for form in ("parallel", "chunked", "recurrent"):
            torch.testing.assert_close(mixer(x, form=form)[0], expected, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("width", [1, 2, 3, 4])
def test_without_a_grid_the_filter_is_centred(width):
    mixer = build(causal=False, local_width=width)
    x = tokens(9)
    with torch.no_grad():
        y, v = attention(mixer, x)
        kernel = taps(mixer, x.mean(1))
        for t in range(9):
            for r in range(width):
                if 0 <= t - width // 2 + r < 9:
                    y[:, t] += kernel[..., r] * v[:, t - width // 2 + r]
        torch.testing.assert_close(mixer(x)[0], mixer.out_proj(y), rtol=1e-10, atol=1e-10)


MAPS = {
    "identity": lambda x: x,
    "relu": F.relu,
    "leaky-relu": F.leaky_relu,
    "exp": lambda x: (0.2 * x).exp(),
}


@pytest.mark.parametrize("name", MAPS)
@pytest.mark.parametrize("causal", [True, False])
def test_every_kernel_of_the_paper(name, causal):
    mixer = build(causal=causal, feature_map=name, local_residual=False)
    x = tokens()
    with torch.no_grad():
        y, _ = attention(mixer, x, MAPS[name])
        expected = mixer.out_proj(y)
        for form in ("parallel", "chunked", "recurrent"):
            torch.testing.assert_close(mixer(x, form=form)[0], expected, rtol=1e-10, atol=1e-10)


def test_huge_inputs_stay_finite_under_the_exponential_map():
    mixer = maclaurin.build_mixer("inline", 24, 4, feature_map="exp")
    x = tokens().float().mul(1e4).requires_grad_()
    y, _ = mixer(x)
    y.sum().backward()
    assert y.isfinite().all() and x.grad.isfinite().all()


def test_a_learned_scale_starts_as_the_fixed_one():
    fixed, learned = build(), build(learn_scale=True)
    learned.load_state_dict({**fixed.state_dict(), "scale": learned.scale})
    x = tokens()
    torch.testing.assert_close(learned(x)[0], fixed(x)[0], rtol=1e-5, atol=1e-7)  # a parameter is drawn in float32
    with torch.no_grad():
        learned.scale *= 2
    assert (learned(x)[0] - fixed(x)[0]).abs().max() > 1e-4


@pytest.mark.parametrize("local_residual", [True, False])
def test_options_keep_the_laws(local_residual):
    """Grouped heads, convolution and rotary positions at once: hand-over and bytes."""
    options = {"num_kv_heads": 2, "conv_width": 3, "rotary": "rope", "local_residual": local_residual, "local_width": 4}
    mixer = build(**options)
    x = tokens(30)
    with torch.no_grad():
        whole, final = mixer(x, form="parallel")
        first, state = mixer(x[:, :2], form="chunked")
        second, state = mixer(x[:, 2:], state, form="recurrent")
    torch.testing.assert_close(torch.cat([first, second], 1), whole, rtol=1e-10, atol=1e-10)
    assert state.nbytes == final.nbytes == 2 * mixer.state_nbytes(30)
    assert mixer.init_state(3).nbytes == 3 * mixer.state_nbytes(0)


def test_the_published_number_of_extra_parameters():
    """(C²/H + C) + (9C²/H + 9C) per layer."""
    with_filter, without = (
        sum(parameter.numel() for parameter in build(causal=False, grid=(4, 4), local_residual=residual).parameters())
        for residual in (True, False)
    )
    assert with_filter - without == 10 * 24**2 // 4 + 10 * 24


def test_an_image_must_be_whole():
    mixer = build(causal=False, grid=(4, 5), class_tokens=1)
    x = tokens(21)
    with pytest.raises(ValueError, match=r"must be one whole image of 21 tokens, got 20$"):
        mixer(x[:, :20])
    mask = torch.ones(2, 21)
    mask[1, 15:] = 0
    with pytest.raises(ValueError, match="must be one whole image of 21 tokens, got"):
        mixer(x, attention_mask=mask)
    packed, _ = mixer(x.flatten(0, 1)[None], cu_seqlens=[0, 21, 42])
    torch.testing.assert_close(packed.view_as(x), mixer(x)[0])


def test_a_state_of_another_mixer_is_refused():
    _, state = maclaurin.build_mixer("linear", 24, 4).double()(tokens())
    with pytest.raises(ValueError, match="state must come from a mixer of the kind 'inline', got one of 'linear'"):
        build()(tokens(), state)
