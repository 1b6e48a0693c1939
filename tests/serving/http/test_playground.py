"""The page in a real browser: chat, stop, continue, fork, two models, by keyboard, on a phone, and no request elsewhere."""

import time

import pytest

from tests.report.test_browser import browser, needs_driver, requests, wait  # noqa: F401 - a fixture among them
from tests.serving.http.conftest import running
from tests.serving.http.test_guard import slow_down

IDLE = "document.getElementById('halt').hidden"


@pytest.fixture(scope="module")
def two(folder):
    with running(folder, models=[f"one={folder}", f"other={folder}"]) as server:
        yield server


def panes(browser):  # noqa: F811
    """The texts of every conversation."""
    texts = "(pane) => [...pane.querySelectorAll('.content')].map((content) => content.textContent)"
    return browser.execute_script(f"return [...document.querySelectorAll('.pane')].map({texts})")


def opened(browser, server, tokens=12):  # noqa: F811
    browser.get(f"{server.url}/")
    wait(browser, "document.querySelectorAll('.pane').length === 2")
    browser.execute_script(
        f"document.getElementById('max_tokens').value = {tokens}; document.getElementById('temperature').value = 0"
    )
    from selenium.webdriver.common.by import By

    return browser.find_element(By.ID, "text")


def idle(browser):  # noqa: F811
    time.sleep(0.1)
    wait(browser, IDLE)


@needs_driver
def test_a_conversation_streams_forks_and_asks_nobody_else(two, browser):  # noqa: F811
    from selenium.webdriver.common.by import By
    from selenium.webdriver.common.keys import Keys

    text = opened(browser, two)
    text.send_keys("Hello", Keys.ENTER)
    wait(browser, "document.querySelectorAll('li.assistant').length === 2")
    idle(browser)
    greedy = {"model": "one", "temperature": 0, "max_tokens": 12}
    said = two.client().chat.completions.create(messages=[{"role": "user", "content": "Hello"}], **greedy)
    answer = said.choices[0].message.content
    assert panes(browser) == [["Hello", answer], ["Hello", answer]]
    # speed and sizes, as the server counts them
    assert "tokens/s" in browser.find_element(By.CSS_SELECTOR, ".speed").text
    assert f"{said.usage.total_tokens} tokens" in browser.find_element(By.CSS_SELECTOR, ".length").text
    assert browser.find_element(By.CSS_SELECTOR, ".kv-text").text.endswith("KiB")

    # a fork after the answer, beside its origin; the next message is its alone, by keyboard
    browser.find_elements(By.CSS_SELECTOR, ".pane:first-child .fork")[1].send_keys(Keys.ENTER)
    wait(browser, "document.querySelectorAll('.pane').length === 3")
    browser.switch_to.active_element.send_keys("And then?", Keys.ENTER)
    wait(browser, "document.querySelectorAll('.pane:nth-child(2) li').length === 4")
    idle(browser)
    first, fork, other = panes(browser)
    assert first == other == ["Hello", answer] and fork[:3] == ["Hello", answer, "And then?"] and len(fork) == 4

    # more of an answer that ended at its limit
    browser.find_element(By.CSS_SELECTOR, ".pane:first-child li:last-child .go").send_keys(Keys.SPACE)
    idle(browser)
    assert panes(browser)[0][1].startswith(answer) and len(panes(browser)[0][1]) > len(answer)

    asked = requests(browser, f"{two.url}/")
    assert asked and all(url.startswith((two.url, "data:")) for url in asked)
    assert [entry for entry in browser.get_log("browser") if entry["level"] in ("SEVERE", "WARNING")] == []


@needs_driver
def test_escape_stops_and_the_text_stays(two, browser, monkeypatch):  # noqa: F811
    from selenium.webdriver.common.keys import Keys

    for served in two.served.values():
        slow_down(served.engine, monkeypatch, 0.1)
    text = opened(browser, two, tokens=60)
    text.send_keys("Hello", Keys.ENTER)
    wait(browser, "[...document.querySelectorAll('li.assistant .content')].every((c) => c.textContent.length > 1)")
    text.send_keys(Keys.ESCAPE)
    wait(browser, IDLE)
    assert all(len(pane) == 2 and pane[1] for pane in panes(browser))
    end = time.monotonic() + 30
    while any(served.engine.stats()["active"] for served in two.served.values()):
        assert time.monotonic() < end, "what was stopped still runs"
        time.sleep(0.05)


@needs_driver
def test_a_parameter_out_of_bounds_is_pointed_at(two, browser):  # noqa: F811
    from selenium.webdriver.common.keys import Keys

    text = opened(browser, two)
    browser.execute_script("document.getElementById('temperature').value = 5")
    text.send_keys("Hello", Keys.ENTER)
    assert browser.execute_script("return document.activeElement.id") == "temperature"
    assert panes(browser) == [[], []] and text.get_attribute("value") == "Hello"
    browser.execute_script("document.getElementById('temperature').value = 0.85")
    text.send_keys(Keys.ENTER)
    wait(browser, "document.querySelectorAll('li.assistant').length === 2")
    idle(browser)


@needs_driver
def test_the_keyboard_stays_where_an_answer_was_continued(two, browser):  # noqa: F811
    from selenium.webdriver.common.by import By
    from selenium.webdriver.common.keys import Keys

    opened(browser, two).send_keys("Hello", Keys.ENTER)
    wait(browser, "document.querySelectorAll('li.assistant').length === 2")
    idle(browser)
    before = panes(browser)
    browser.find_elements(By.CSS_SELECTOR, "li.assistant .go")[1].send_keys(Keys.ENTER)
    idle(browser)
    after = panes(browser)
    assert after[0] == before[0] and after[1][1].startswith(before[1][1]) and len(after[1][1]) > len(before[1][1])
    assert browser.execute_script("return document.activeElement === document.querySelectorAll('.messages')[1]")
    assert browser.execute_script("return document.querySelectorAll('[aria-busy=true]').length") == 0


@needs_driver
def test_a_phone_shows_one_conversation_at_a_time(two, browser):  # noqa: F811
    phone = {"width": 390, "height": 800, "deviceScaleFactor": 2, "mobile": True}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", phone)
    opened(browser, two)
    assert browser.execute_script("return document.documentElement.scrollWidth") == 390
    widths = browser.execute_script("return [...document.querySelectorAll('.pane')].map((pane) => pane.clientWidth)")
    assert all(width in (389, 390) for width in widths)
    places = browser.execute_script("return [...document.querySelectorAll('.place')].map((place) => place.textContent)")
    assert places == ["1 of 2", "2 of 2"]  # what shows that there is another one
    bottom = browser.execute_script("return document.getElementById('composer').getBoundingClientRect().bottom")
    assert bottom <= 800


@needs_driver
def test_the_page_asks_for_a_key_where_the_server_does(folder, browser):  # noqa: F811
    from selenium.webdriver.common.by import By
    from selenium.webdriver.common.keys import Keys

    with running(folder, keys=("a-key-of-this-test",)) as server:
        browser.get(f"{server.url}/")
        wait(browser, "!document.getElementById('key-form').hidden")
        browser.find_element(By.ID, "key").send_keys("a-key-of-this-test", Keys.ENTER)
        wait(browser, "document.querySelectorAll('.pane').length === 1")
