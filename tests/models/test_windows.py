"""Windows of images: who sees whom, and that a window of the whole grid is no window."""

import pytest
import torch

from maclaurin.models.windows import cut, joined
from tests.models.test_vision import images, small

STAGES = {
    "hidden_sizes": [16, 32],
    "depths": [2, 2],
    "num_attention_heads": [2, 4],
    "mlp_ratios": [2, 2],
    "patch_sizes": [2, 2],
    "patch_norm": True,
    "pooling": "mean",
}
MIXERS = ["softmax", "inline", "linear", "gla"]


def seen(layer, grid, width=32):
    """Which places a layer's mixer sees from each place: (places, places)."""
    rows, columns = grid
    x = torch.randn(1, rows * columns, width, generator=torch.Generator().manual_seed(0)).double().requires_grad_()
    layer = layer.double()
    found = []
    for place in range(rows * columns):
        (gradient,) = torch.autograd.grad(layer.mixer(x, return_state=False)[0][0, place].sum(), x)
        found.append(gradient[0].abs().amax(-1) > 0)
    return torch.stack(found)


def places(grid):
    return [(row, column) for row in range(grid[0]) for column in range(grid[1])]


def expected(grid, sees):
    return torch.tensor([[sees(one, other) for other in places(grid)] for one in places(grid)])


@pytest.mark.parametrize("shift", [0, 1])
def test_cut_and_joined_are_inverse(shift):
    x = torch.arange(2 * 24).view(2, 24, 1)
    windows = cut(x, (4, 6), (2, 3), shift)
    assert windows.shape == (2 * 4, 6, 1)
    assert torch.equal(joined(windows, (4, 6), (2, 3), shift), x)
    if not shift:
        assert windows[0, :, 0].tolist() == [0, 1, 2, 6, 7, 8]


def test_swin_sees_squares_which_every_second_layer_shifts():
    """Without a look across the edge: a window at an edge is smaller there."""
    layers = small("softmax", image_size=32, layout="swin", windows=[4], pooling="mean").model.stages[0].layers
    grid = (8, 8)
    same = expected(grid, lambda a, b: all(x // 4 == y // 4 for x, y in zip(a, b, strict=True)))
    assert torch.equal(seen(layers[0], grid), same)
    shifted = expected(grid, lambda a, b: all((x + 2) // 4 == (y + 2) // 4 for x, y in zip(a, b, strict=True)))
    assert torch.equal(seen(layers[1], grid), shifted)


def test_the_bias_of_swin_knows_the_offset_and_nothing_else():
    mixer = small("softmax", image_size=32, layout="swin", windows=[4], pooling="mean").model.stages[0].layers[0].mixer.mixer
    with torch.no_grad():
        mixer.offset_bias.zero_()
        mixer.offset_bias[(1 + 3) * 7 + (-2 + 3)] = 30.0  # one row down, two columns to the left: the query from the key
        p = mixer.project(torch.randn(1, 16, 32))
        weights = mixer.mechanism.weights(p.q, p.k)
    query, key = 1 * 4 + 0, 0 * 4 + 2
    assert (weights[0, :, query, key] > 0.99).all()
    assert (weights[0, :, 0].amax(-1) < 0.9).all()  # nothing lies above the first row


@pytest.mark.parametrize("mixer", ["softmax", "inline"])
def test_cswin_sees_a_cross(mixer):
    layer = small(mixer, image_size=32, layout="cswin", windows=[2], pooling="mean").model.stages[0].layers[0]
    cross = expected((8, 8), lambda a, b: any(x // 2 == y // 2 for x, y in zip(a, b, strict=True)))
    assert torch.equal(seen(layer, (8, 8)), cross)


@pytest.mark.parametrize("mixer", MIXERS)
@pytest.mark.parametrize("layout", ["swin", "cswin"])
def test_every_pixel_has_influence_and_every_parameter_a_gradient(mixer, layout):
    model = small(mixer, layout=layout, windows=[4, 2], **STAGES)
    image = images().requires_grad_()
    model(image, labels=torch.tensor([1, 7])).loss.backward()
    assert (image.grad != 0).all()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())


def test_a_window_as_large_as_the_grid_is_the_grid():
    """Squares of any size beyond it are one and the same model."""
    one, other = (small("inline", layout="swin", windows=[side], pooling="mean").eval() for side in (4, 56))
    with torch.no_grad():
        torch.testing.assert_close(one(images()).logits, other(images()).logits)


def test_windows_as_high_as_the_grid_are_not_shifted():
    """Their upper and lower halves would no longer see each other."""
    layers = small("softmax", image_size=[8, 16], layout="swin", windows=[2], pooling="mean").model.stages[0].layers
    for layer in layers:
        assert layer.mixer.window == (2, 2) and layer.mixer.shift == 0
        assert torch.equal(seen(layer, (2, 4)), expected((2, 4), lambda a, b: a[1] // 2 == b[1] // 2))


def test_a_mixer_and_a_window_per_layer(tmp_path):
    mixers, windows = ["inline", "softmax", "softmax", "linear"], [8, 4, 4, 2]
    model = small(mixers, layout="swin", windows=windows, **STAGES).eval()
    first, second = model.model.stages[0].layers
    assert first.mixer.window == (8, 8) and second.mixer.window == (4, 4) and second.mixer.shift == 2
    model.save_pretrained(tmp_path)
    loaded = type(model).from_pretrained(tmp_path)
    assert loaded.config.windows == windows and loaded.config.layout == "swin"
    with torch.no_grad():
        torch.testing.assert_close(loaded(images()).logits, model(images()).logits)


@pytest.mark.parametrize("layout", ["swin", "cswin"])
def test_it_learns_sixteen_random_images_by_heart(layout):
    model = small("softmax", layout=layout, windows=[4, 2], **STAGES)
    pixels, labels = images(16), torch.arange(16) % 10
    optimiser = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.0)
    for _ in range(60):
        loss = model(pixels, labels=labels).loss
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    assert loss.item() < 0.1
