"""What figures have in common."""

from maclaurin.page.figures import PALETTE, length_text, styles


def test_more_mixers_than_colours_are_told_apart_by_dashes():
    pairs = [(f"m{i}", f"m{i}") for i in range(len(PALETTE) + 2)] + [("softmax", "softmax"), ("softmax (b)", "softmax")]
    found = styles(pairs)
    assert len({(style.color, style.dash) for style in found.values()}) == len(pairs)
    assert found["softmax"].color == found["softmax (b)"].color


def test_lengths_read_as_people_write_them():
    assert [length_text(x) for x in (64, 1000, 1024, 65536, 2**20)] == ["64", "1000", "1k", "64k", "1M"]
