"""What figures have in common."""

import dataclasses

from maclaurin.page.figures import PALETTE, Line, against_length, hidden, length_text, losses, styles
from maclaurin.page.html import Chart
from maclaurin.page.png import on_paper


def test_more_mixers_than_colours_are_told_apart_by_dashes():
    pairs = [(f"m{i}", f"m{i}") for i in range(len(PALETTE) + 2)] + [("softmax", "softmax"), ("softmax (b)", "softmax")]
    found = styles(pairs)
    assert len({(style.color, style.dash) for style in found.values()}) == len(pairs)
    assert found["softmax"].color == found["softmax (b)"].color


def test_lengths_read_as_people_write_them():
    assert [length_text(x) for x in (64, 1000, 1024, 65536, 2**20)] == ["64", "1000", "1k", "64k", "1M"]


def three_lines():
    style = styles([(name, name) for name in ("softmax", "linear", "gla")])
    values = {"softmax": [4.0, 2.0, 1.0], "linear": [4.0, 2.001, 1.0], "gla": [4.0, 3.0, 2.5]}
    return [Line(name, style[name], [1, 2, 3], y, tokens=[10, 20, 30]) for name, y in values.items()]


def test_a_line_that_another_hides_is_wider_and_the_other_dashed_also_on_paper():
    lines = three_lines()
    assert hidden(lines) == " Lines on each other, the wider ones below: softmax and linear."
    figure = losses(lines, "loss")
    for drawn in (figure, on_paper(Chart("a", figure, "b"))):
        softmax, linear, gla = drawn.data
        assert softmax.line.width > linear.line.width == gla.line.width
        assert softmax.opacity < 1 and softmax.marker.size > linear.marker.size
        assert (softmax.line.dash, linear.line.dash, gla.line.dash) == ("solid", "dash", "solid")


def test_lines_apart_stay_as_they_are():
    lines = three_lines()[1:]
    assert hidden(lines) == ""
    assert {trace.line.dash for trace in against_length(lines, "t").data} == {"solid"}


def test_measured_times_carry_their_quartiles():
    line = dataclasses.replace(three_lines()[2], low=[3.0, 2.0, 2.0], high=[5.0, 3.5, 3.0])
    (trace,) = against_length([line], "time", "s").data
    assert list(trace.error_y.arrayminus) == [1.0, 1.0, 0.5] and list(trace.error_y.array) == [1.0, 0.5, 0.5]
    assert trace.text[0] == " (3s to 5s)"
