"""The page as text: complete, escaped, and without a request to anywhere."""

import json
import re

from maclaurin.page.html import Cell, Code, Column, DataTable, Page, Section
from maclaurin.report import build
from maclaurin.training import Recipe
from tests.report.conftest import write_run
from tests.shell import typed


def without_plotly(text):
    """Plotly's own code names servers, for maps and fonts that no figure here has; the browser's test watches requests."""
    from plotly.offline import get_plotlyjs

    assert text.count(get_plotlyjs()) == 1
    return text.replace(get_plotlyjs(), "")


def test_everything_is_in_the_page_and_nothing_comes_from_outside(comparison):
    text = without_plotly(build([comparison], measure=False, command="maclaurin report x").html())
    assert not re.search(r"<script[^>]*\ssrc|url\(|@import|//[a-z0-9.-]+\.[a-z]{2,}", text)
    assert re.findall(r"<link[^>]*>", text) == ['<link rel="icon" href="data:,">']
    assert "default-src 'none'" in text
    for words in (
        "2mamba wins",
        "maclaurin compare --seeds 2",
        "maclaurin report x",
        "maclaurin 9.8.7",
        "cpu abacus",
        "1,058",
    ):
        assert words in text
    assert "unfinished: 50 of 100 steps" in text
    assert "2.727<small>(with dt)</small>" in text and "another setting" in text


def test_figures_have_one_colour_a_mixer(comparison):
    page = build([comparison], measure=False)
    keys = ["loss-state", "training-loss", "held-out-loss", "cost-counted", "state-memory"]
    assert [chart.key for chart in page.charts()] == keys
    colours = {}
    for chart in page.charts():
        for trace in chart.figure.data:
            if trace.showlegend is not False:
                colours.setdefault(trace.name.split(",")[0], set()).add(trace.line.color)
    assert set(colours) == {"softmax", "2mamba", "linear", "mamba2s"}
    assert all(len(found) == 1 for found in colours.values())


def test_the_crossover_is_marked_where_the_mixer_says(comparison):
    from maclaurin import build_mixer
    from maclaurin.mixers.overview import crossover_length

    (chart,) = (chart for chart in build([comparison], measure=False).charts() if chart.key == "state-memory")
    marks = {trace.name: trace.x[0] for trace in chart.figure.data if "crossover" in trace.name}
    assert marks == {"2mamba, crossover": crossover_length(build_mixer("2mamba", 128, 4))}


def test_bands_reach_from_the_lowest_to_the_highest_seed(comparison):
    (chart,) = (chart for chart in build([comparison], measure=False).charts() if chart.key == "held-out-loss")
    band, line = (trace for trace in chart.figure.data if trace.legendgroup == "2mamba")
    n = len(line.x)
    assert all(low < mean < high for low, mean, high in zip(band.y[: n - 1 : -1], line.y, band.y[:n], strict=True))
    assert list(line.customdata[0]) == [20, 20 * 64 * 8]


EVIL = "<img src=x onerror=alert(1)></script>\"'&"


def test_text_of_users_is_escaped(tmp_path):
    corpus = Recipe(output=str(tmp_path / "<b>runs</b>"), corpus=EVIL, mixer_options='{"init": "llama"}', steps=100)
    write_run(corpus, 2.0)
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "recipe.json").write_text(json.dumps({EVIL: 1}))
    text = without_plotly(build([tmp_path], measure=False, command=EVIL).html())
    assert "<img" not in text and "<b>runs" not in text
    assert text.count("</script>") == text.count("<script")
    section = Section(EVIL, EVIL, [DataTable(EVIL, [Column(EVIL)], [[Cell(EVIL, 1.0)]], EVIL), Code(EVIL, EVIL)])
    assert "<img" not in without_plotly(Page(EVIL, EVIL, [EVIL], [section]).html())


def test_only_broken_runs_are_still_a_page(tmp_path):
    (tmp_path / "recipe.json").write_text("{")
    text = build([tmp_path], measure=False).html()
    assert "No run has finished yet" in text and "recipe.json cannot be used" in text


def test_runs_without_figures_are_still_a_page(tmp_path):
    folder = write_run(Recipe(output=str(tmp_path / "a"), steps=100), 2.0, until=0)
    assert (folder / "log.jsonl").read_text() == ""
    assert "no figures yet" in build([tmp_path], measure=False).html()


def test_the_command_writes_the_page_and_ends_with_its_path(comparison):
    result = typed("report", comparison, "--no-measure")
    assert result.returncode == 0, result.stderr
    path = comparison / "report.html"
    assert result.stdout.splitlines()[-1] == str(path)
    assert "maclaurin report" in path.read_text()
