"""The page in a real browser: it draws, toggles, sorts, and asks nobody for anything."""

import json
import shutil
import struct

import pytest

from maclaurin.evals.cells import Problem, Row, Setting
from maclaurin.evals.experiment import Experiment
from maclaurin.page.html import Cell, Code, Column, DataTable, Page, Section
from maclaurin.page.png import HEIGHT, SCALE, WIDTH, export
from maclaurin.report import build
from tests.report.conftest import write_suite

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
DRIVER = shutil.which("chromedriver")
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--window-size=1280,900",
)

needs_chromium = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium: apt-get install chromium")
needs_driver = pytest.mark.skipif(
    CHROMIUM is None or DRIVER is None, reason="no Chromium with a driver: apt-get install chromium chromium-driver"
)


@pytest.fixture
def browser(tmp_path):
    from selenium import webdriver

    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM
    for flag in (*FLAGS, f"--user-data-dir={tmp_path / 'profile'}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(DRIVER))
    yield driver
    driver.quit()


def wait(browser, condition):
    from selenium.webdriver.support.ui import WebDriverWait

    return WebDriverWait(browser, 30).until(lambda _: browser.execute_script(f"return {condition}"))


def column(browser, table, index):
    script = f"return [...document.querySelectorAll('#{table} tbody tr')].map((row) => row.cells[{index}].textContent)"
    return browser.execute_script(script)


def requests(browser, page):
    """What the page asked for; the browser's own start page asks for things of its own."""
    messages = (json.loads(entry["message"])["message"] for entry in browser.get_log("performance"))
    sent = [message["params"] for message in messages if message["method"] == "Network.requestWillBeSent"]
    return [params["request"]["url"] for params in sent if params["documentURL"] == page]


@needs_driver
def test_the_page_draws_toggles_and_sorts_without_a_request(comparison, tmp_path, browser):
    from selenium.webdriver.common.action_chains import ActionChains
    from selenium.webdriver.common.by import By
    from selenium.webdriver.common.keys import Keys

    path = tmp_path / "page.html"
    page = build([comparison], measure=False)
    page.write(path)
    browser.get(path.as_uri())
    keys = [chart.key for chart in page.charts()]
    wait(browser, f"document.querySelectorAll('.plot .legend').length === {len(keys)}")

    # every line of every figure has a path on the screen
    for chart in page.charts():
        drawn = browser.execute_script(
            f"return [...document.querySelectorAll('#{chart.key} .scatterlayer path.js-line')]"
            ".filter((path) => path.getTotalLength() > 20).length"
        )
        assert drawn >= sum("lines" in trace.mode for trace in chart.figure.data if trace.showlegend is not False)

    # over a point, the exact numbers of all lines there
    (losses,) = (chart for chart in page.charts() if chart.key == "held-out-loss")
    line = next(trace for trace in losses.figure.data if trace.name == "2mamba")
    points = browser.find_elements(By.CSS_SELECTOR, "#held-out-loss .scatterlayer .trace:nth-child(2) .points path")
    ActionChains(browser).move_to_element(points[2]).perform()
    wait(browser, "document.querySelector('#held-out-loss .hoverlayer').textContent")
    shown = browser.execute_script("return document.querySelector('#held-out-loss .hoverlayer').textContent")
    assert f"2mamba : {line.y[2]:.4f}{line.text[2]}" in shown and "linear : " in shown

    # a click on a name hides its line and band, a second one brings them back
    hidden = (
        "document.getElementById('held-out-loss').data"
        ".filter((t) => t.visible === 'legendonly').map((t) => t.legendgroup).join()"
    )
    names = "#held-out-loss .legend .traces"
    entry = next(e for e in browser.find_elements(By.CSS_SELECTOR, names) if e.text == "2mamba")
    entry.find_element(By.CSS_SELECTOR, ".legendtoggle").click()
    wait(browser, f"{hidden} === '2mamba,2mamba'")
    entry = next(e for e in browser.find_elements(By.CSS_SELECTOR, names) if e.text == "2mamba")
    entry.find_element(By.CSS_SELECTOR, ".legendtoggle").click()
    wait(browser, f"{hidden} === ''")

    # steps or tokens
    browser.find_elements(By.XPATH, "//div[@class='axes']/button[text()='tokens']")[1].click()
    wait(browser, f"document.getElementById('held-out-loss').data[1].x[0] === {20 * 64 * 8}")
    wait(browser, "document.querySelector('#held-out-loss .xtitle').textContent === 'tokens seen'")

    # sorted as numbers, both ways, by mouse and by keyboard; text as text
    headers = browser.find_elements(By.CSS_SELECTOR, "#results th")
    state = next(i for i, header in enumerate(headers) if header.text.startswith("state"))
    button = headers[state].find_element(By.TAG_NAME, "button")
    button.click()
    assert headers[state].get_attribute("aria-sort") == "ascending"
    assert column(browser, "results", 1) == ["linear", "mamba2s", "2mamba", "softmax"]
    button.send_keys(Keys.ENTER)
    assert headers[state].get_attribute("aria-sort") == "descending"
    assert column(browser, "results", 1) == ["softmax", "2mamba", "mamba2s", "linear"]
    button = headers[1].find_element(By.TAG_NAME, "button")
    button.click()
    assert column(browser, "results", 1) == ["2mamba", "linear", "mamba2s", "softmax"]
    button.send_keys(Keys.SPACE)
    assert column(browser, "results", 1) == ["softmax", "mamba2s", "linear", "2mamba"]
    assert headers[state].get_attribute("aria-sort") == "none"

    # a value that is missing is last, whatever the direction
    spread = next(i for i, header in enumerate(headers) if header.text.startswith("±"))
    for _ in range(2):
        headers[spread].find_element(By.TAG_NAME, "button").click()
        assert column(browser, "results", 1)[-1] == "mamba2s"

    # the page itself, and nothing else; no error, no warning
    assert [url for url in requests(browser, path.as_uri()) if not url.startswith("data:")] == [path.as_uri()]
    assert browser.get_log("browser") == []


@needs_driver
def test_a_phone_scrolls_down_only_and_dark_is_dark(comparison, tmp_path, browser):
    path = tmp_path / "page.html"
    build([comparison], measure=False).write(path)
    features = [{"name": "prefers-color-scheme", "value": "dark"}]
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
    phone = {"width": 390, "height": 800, "deviceScaleFactor": 2, "mobile": True}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", phone)
    browser.get(path.as_uri())
    wait(browser, "document.querySelectorAll('.plot .legend').length === 5")
    assert browser.execute_script("return document.documentElement.scrollWidth") == 390
    font = "document.getElementById('held-out-loss').layout.font.color"
    assert wait(browser, font) == "#e6e9ed"
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [{**features[0], "value": "light"}]})
    wait(browser, f"{font} === '#1c2024'")


@needs_driver
def test_long_captions_and_commands_wrap(tmp_path, browser):
    """Beside what is wider than the screen, a table with all its columns: that one scrolls, and its caption stays."""
    command = f"maclaurin convert owner/name --output {20 * 'a_long_name/'}"
    caption = f"{20 * 'What was measured, and how. '}{command}"
    wide = DataTable("wide", [Column("length")] * 30, [[Cell("1.234 ± 0.001", 1.234)] * 30], caption)
    commands = DataTable("commands", [Column("name", numeric=False)] * 2, [[Cell("2mamba"), Cell(command, code=True)]])
    path = tmp_path / "page.html"
    Page("title", command, [caption], [Section("Tables", caption, [wide, commands, Code("Command", command)])]).write(path)
    edges = """
        const region = document.getElementById('wide').parentElement, words = document.createRange();
        words.selectNodeContents(region.querySelector('caption'));
        region.scrollLeft = arguments[0];
        const inside = words.getBoundingClientRect(), around = region.getBoundingClientRect();
        return [around.left <= inside.left, inside.right <= around.right, region.scrollWidth > 2 * region.clientWidth];
    """
    for width in (1200, 400):
        screen = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": True}
        browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", screen)
        browser.get(path.as_uri())
        assert browser.execute_script("return document.documentElement.scrollWidth") == width
        for scrolled in (0, 500):
            assert browser.execute_script(edges, scrolled) == [True, True, True]
        region = "document.getElementById('commands').parentElement"
        assert browser.execute_script(f"return {region}.scrollWidth - {region}.clientWidth") == 0


@needs_driver
def test_no_column_is_cut_off_on_a_wide_screen_and_a_phone_scrolls_inside_the_table(tmp_path, browser):
    """A suite with eight columns of results, three learning rates and published figures."""
    rows = {name: Row((name,)) for name in ("softmax", "2mamba", "mamba2", "gla")}
    tests = tuple(Problem("mqar", {"length": 1024, "pairs": 2**n, "vocab_size": 512}) for n in range(1, 9))
    setting, published = Setting(width=16, heads=2, inner=32), {"softmax": "0.99", "mamba2": "0.9 at 64"}
    rates = (1e-3, 3e-3, 1e-2)
    recall = Experiment(
        "mqar", "Recall", rows, setting, tests, tests, rates, axis="pairs", source="Zoology", published=published
    )
    write_suite(tmp_path / "recall", recall, "recall", lambda row, own: min(1.0, 50 / own["pairs"]))
    path = tmp_path / "page.html"
    build([tmp_path / "recall"], measure=False).write(path)
    regions = "[...document.querySelectorAll('.scroll')].map((region) => region.scrollWidth - region.clientWidth)"
    for width, cut_off in ((1400, False), (390, True)):
        screen = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": True}
        browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", screen)
        browser.get(path.as_uri())
        assert browser.execute_script("return document.documentElement.scrollWidth") == width
        assert any(beyond > 0 for beyond in browser.execute_script(f"return {regions}")) is cut_off


@needs_driver
def test_suites_are_drawn(suites, tmp_path, browser):
    path = tmp_path / "page.html"
    build([suites], measure=False).write(path)
    browser.get(path.as_uri())
    wait(browser, "document.querySelectorAll('.plot .main-svg').length >= 8")
    assert browser.execute_script("return document.querySelectorAll('.plot .heatmaplayer image').length") == 3
    for key in ("mqar-pairs", "longer-length"):
        count = f"return document.querySelectorAll('#{key} .scatterlayer path.js-line').length"
        assert browser.execute_script(count) == 3
    assert browser.get_log("browser") == []


@needs_chromium
def test_every_figure_becomes_a_png(comparison, tmp_path):
    charts = build([comparison], measure=False).charts()
    files = export(charts, tmp_path / "figures")
    assert [file.name for file in files] == [f"{chart.key}.png" for chart in charts]
    for file in files:
        data = file.read_bytes()
        assert data[:8] == b"\x89PNG\r\n\x1a\n" and data[12:16] == b"IHDR"
        assert struct.unpack(">II", data[16:24]) == (SCALE * WIDTH, SCALE * HEIGHT)
        assert 20_000 < len(data) < 2_000_000


def test_without_a_browser_a_sentence_says_what_to_install(comparison, tmp_path, monkeypatch):
    import kaleido
    from kaleido.errors import ChromeNotFoundError

    def none(*_, **__):
        raise ChromeNotFoundError("a page of text")

    monkeypatch.setattr(kaleido, "write_fig_from_object_sync", none)
    with pytest.raises(ValueError, match="PNG files need Chromium or Chrome, and none was found: install it"):
        export(build([comparison], measure=False).charts(), tmp_path)
