"""Pathfinder: curves keep apart, dots mark their ends, and the picture shows it."""

import numpy as np
import pytest
import torch

from maclaurin.data.tasks import Pathfinder, PathX
from maclaurin.data.tasks.pathfinder import APART, BORDER, SEED_DISTANCE, STEP, Scene, add_dots, extend, two_curves


def along(corners, each=8):
    """Points of a curve, (S·each, 2)."""
    parts = np.arange(each) / each
    return (corners[:-1, None] + parts[:, None] * np.diff(corners, axis=0)[:, None]).reshape(-1, 2)


def curves(dashes, count=300, scale=1):
    return two_curves(Scene(count, 32, scale), dashes, np.random.default_rng(0))


@pytest.mark.parametrize("dashes", [6, 14])
def test_curves_keep_apart_and_inside(dashes):
    scene, corners = curves(dashes)
    assert len(scene) == corners.shape[1] > 30 and corners.shape[2] == dashes + 1
    assert np.allclose(np.linalg.norm(np.diff(corners, axis=2), axis=-1), STEP)
    assert corners.min() >= BORDER - 1e-9 and corners.max() <= 32 - BORDER + 1e-9
    assert np.allclose(np.linalg.norm(corners[0, :, 0] - corners[1, :, 0], axis=1), SEED_DISTANCE)
    nearest = 0.7 * APART  # half a cell of the grid, and half a pixel between the points that are looked at
    for first, second in corners.transpose(1, 0, 2, 3)[:40]:
        distance = np.linalg.norm(along(first)[:, None] - along(second), axis=-1)
        assert distance.min() > nearest
        own = np.linalg.norm(along(first)[:, None] - along(first), axis=-1)
        links = np.arange(len(own)) // 8
        assert own[np.abs(links[:, None] - links) > 1].min() > nearest


def test_bends_have_their_density_where_there_is_room():
    scene, middle = Scene(20_000, 24), np.full((20_000, 2), 12.0)
    angle, points, is_way = extend(scene, middle, np.zeros(20_000), 0, np.random.default_rng(0))
    assert is_way.all() and np.allclose(np.linalg.norm(points[:, -1] - middle, axis=1), STEP)
    assert np.abs(angle).max() < np.pi / 2
    # under (2/π)cos²: 1/2 + (x + sin x·cos x)/π of them are below x
    for x in (-1.0, -0.3, 0.0, 0.5, 1.2):
        share = 0.5 + (x + np.sin(x) * np.cos(x)) / np.pi
        assert abs((angle < x).mean() - share) < 4 * (share * (1 - share) / 20_000) ** 0.5


def test_no_way_leads_through_what_is_taken():
    scene, middle = Scene(200, 24), np.full((200, 2), 12.0)
    everywhere = np.ones(200, bool)
    ahead = np.repeat(middle[:, None] + [0, 4.0], 4, axis=1)
    scene.take(ahead, everywhere, 0)
    angle, points, is_way = extend(scene, middle, np.zeros(200), 0, np.random.default_rng(0))
    assert is_way.all() and np.linalg.norm(points - ahead[:, :1], axis=-1).min() > APART - 0.75
    assert np.abs(angle).min() > 0.5
    assert np.abs(extend(scene, middle, np.zeros(200), 1, np.random.default_rng(0))[0]).min() < 0.1  # free for the other
    assert not extend(scene, np.full((200, 2), 1.6), np.full(200, np.pi * 1.25), 0, np.random.default_rng(0))[2].any()


def test_the_picture_shows_dashes_and_gaps():
    scene, corners = curves(9)
    image = scene.image()
    image_N1 = np.arange(len(scene))[:, None]
    for curve in corners:
        dashes = ((curve[:, 1:] + curve[:, :-1]) / 2).astype(int)
        gaps = curve[:, 1:-1].astype(int)
        bright, dark = (image[image_N1, points[..., 0], points[..., 1]] for points in (dashes, gaps))
        assert bright.min() > 0 and bright.mean() > 100
        assert np.median(dark) == 0 and dark.mean() < 30


def test_dots_mark_the_ends_of_one_curve_or_of_two():
    scene, corners = curves(9)
    before = scene.image()
    label = np.arange(len(scene)) % 2
    add_dots(scene, corners, label, np.random.default_rng(1))
    image = scene.image()
    for i in range(len(scene)):
        begins, ends = corners[:, i, 0], corners[:, i, -1]

        def is_marked(tip, i=i):
            y, x = tip.astype(int)
            return image[i, y, x] > 230 and (image[i].astype(int) - before[i])[y - 1 : y + 2, x - 1 : x + 2].sum() > 900

        first = [curve for curve in (0, 1) if is_marked(begins[curve])]
        last = [curve for curve in (0, 1) if is_marked(ends[curve])]
        if len(first) == len(last) == 1:  # else tips lie too near each other to tell
            assert (first == last) == (label[i] == 1)
    assert (image >= before).all()


def test_labels_are_balanced_and_tell_nothing_by_brightness():
    examples = Pathfinder(6).sample(1000, seed=0)
    assert examples.inputs.shape == (1000, 32, 32) and examples.inputs.dtype == torch.uint8
    assert abs(examples.labels.double().mean() - 0.5) < 4 * 0.5 / 1000**0.5
    brightness = examples.inputs.double().mean((1, 2))
    means = [brightness[examples.labels == label].mean() for label in (0, 1)]
    assert abs(means[0] - means[1]) < 4 * brightness.std() / 250**0.5


def test_path_x_shows_the_scenes_of_pathfinder_at_four_times_the_resolution():
    """The same curves with the same draws; a block of 4x4 pixels is as bright as the pixel that it stands for."""
    coarse, corners = curves(9, 60)
    fine, same = curves(9, 60, scale=4)
    assert np.array_equal(corners, same) and fine.image().shape[1:] == (128, 128)
    blocks = fine.image().reshape(-1, 32, 4, 32, 4).mean((2, 4))
    assert np.corrcoef(blocks.ravel(), coarse.image().ravel())[0, 1] > 0.9
    examples = PathX(6).sample(4, seed=0)
    assert examples.inputs.shape == (4, 128, 128) and torch.equal(examples.labels, Pathfinder(6).sample(4, seed=0).labels)


def test_sizes_must_be_multiples_of_the_scale():
    with pytest.raises(ValueError, match="size must be a multiple of scale, got 130 and 4"):
        PathX(size=130)
