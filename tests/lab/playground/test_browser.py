"""The page to play with in a real browser: `make test-browser`."""

from __future__ import annotations

import json
import os
import threading
from pathlib import Path

import pytest

from headprune.lab.playground.content import Content
from tests.lab.playground.toy import write_page
from tests.lab.report.test_browser import browser  # noqa: F401  (light and dark)

pytestmark = pytest.mark.browser

PHONE = {"width": 390, "height": 844, "deviceScaleFactor": 1, "mobile": True}


@pytest.fixture(scope="module")
def written(trained, tmp_path_factory):
    folder = tmp_path_factory.mktemp("page")
    write_page(trained, folder)
    return folder / "page.html"


@pytest.fixture
def content(written):
    return Content.from_json(written.with_suffix(".json").read_text())


@pytest.fixture
def page(browser, written):  # noqa: F811
    browser.set_window_size(1280, 900)
    browser.get(written.as_uri())
    return browser


def text(page, name):
    return page.find_element("id", name).text


def gone(page):
    labels = [b.get_attribute("aria-label") for b in page.find_elements("css selector", "#p-map button.gone")]
    return [label.split(",")[0] for label in labels]


def open_way(page, way, point):
    page.execute_script(
        "const w = document.getElementById('p-way'), s = document.getElementById('p-slider');"
        "w.value = arguments[0]; w.dispatchEvent(new Event('change'));"
        "s.value = arguments[1]; s.dispatchEvent(new Event('input'))", way, point,
    )  # fmt: skip


def test_it_opens_without_a_word_and_without_a_request(page):
    """Nothing on the console, nothing fetched, in the reader's scheme."""
    assert page.get_log("browser") == []
    assert page.execute_script("return performance.getEntriesByType('resource').length") == 0
    white = page.execute_script("return getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert white is (page.scheme == "light")


def test_the_slider_shows_what_was_measured(page, content):
    """Heads on the map, the score on its card, the command."""
    open_way(page, 0, 2)
    point = content.ways[0].points[2]
    expected = [f"{site}:{head}" for site, marks in point.kept.items() for head, m in enumerate(marks) if m == "0"]
    assert sorted(gone(page)) == sorted(expected)
    assert f"{100 * point.score:.1f}" in text(page, "p-cards")
    assert text(page, "p-command") == point.command
    assert page.find_elements("css selector", "#p-curve circle.here")
    assert page.find_elements("css selector", "#p-size circle.here")


def test_the_slider_of_budgets_shows_neurons_and_speed(page, content):
    """As bars, and on a card with the control."""
    open_way(page, 1, 2)
    point = content.ways[1].points[2]
    assert f"{int(point.kept['neurons.0'])} of 48" in text(page, "p-neurons")
    assert "against itself" in text(page, "p-cards")


def test_a_click_on_a_head_tells_of_it(page, content):
    """Its worth, what the sentence loses without it, and where it looks."""
    page.find_element("css selector", '#p-map button[data-site="1"][data-head="2"]').click()
    told = text(page, "p-head")
    assert "encoder.1:2" in told
    assert "without it alone" in told
    assert page.find_elements("css selector", "#p-attention svg line")
    assert "Strongest:" in text(page, "p-strongest")


def test_flips_are_told_apart_from_the_sample(page, content):
    """All answers that changed, and twelve that were drawn before."""
    open_way(page, 0, len(content.ways[0].points) - 1)
    first, last = content.ways[0].points[0], content.ways[0].points[-1]
    flips = sum(a != b for a, b in zip(first.chosen, last.chosen, strict=True))
    assert flips > 0
    assert len(page.find_elements("css selector", "#p-flips li")) == flips
    assert len(page.find_elements("css selector", "#p-sample li")) == 12
    assert f"{flips} of {len(content.examples)}" in text(page, "p-flips-hint")


def test_the_keyboard_is_enough(page):
    """Arrow keys walk through the map and move the slider; one cell is a stop of the tab key."""
    from selenium.webdriver.common.keys import Keys

    assert len(page.find_elements("css selector", '#p-map button[tabindex="0"]')) == 1
    page.find_element("css selector", '#p-map button[tabindex="0"]').send_keys(Keys.ARROW_DOWN)
    page.switch_to.active_element.send_keys(Keys.ARROW_RIGHT)
    assert page.switch_to.active_element.get_attribute("aria-label").startswith("encoder.1:1")
    assert "encoder.1:1" in text(page, "p-head")
    slider = page.find_element("id", "p-slider")
    slider.send_keys(Keys.HOME)
    assert not gone(page)
    slider.send_keys(Keys.END)
    assert gone(page)


def test_a_phone_is_wide_enough(page):
    """Nothing is wider than 390 pixels."""
    page.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", PHONE)
    page.refresh()
    width = page.execute_script("return document.documentElement.scrollWidth")
    page.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
    assert width <= 390


def test_axe_finds_nothing_serious(page):
    """axe-core's rules, of WCAG and of good practice."""
    script = os.environ.get("AXE")
    assert script, "AXE names no file: `make test-browser` fetches axe-core"
    open_way(page, 0, 3)
    page.execute_script(Path(script).read_text())
    found = page.execute_async_script("axe.run().then(arguments[0])")
    bad = [one for one in found["violations"] if one["impact"] in ("serious", "critical")]
    assert not bad, json.dumps([[one["id"], [node["html"] for node in one["nodes"]][:3]] for one in bad], indent=1)


def test_the_live_page_answers(browser, trained, tmp_path):  # noqa: F811
    """Type a sentence, remove a head, save what is left."""
    from tests.lab.playground.test_server import make_server, make_session

    server = make_server(make_session(trained, tmp_path))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        browser.get(server.address)
        wait(browser, "return document.getElementById('p-told').textContent.includes('ms')")
        browser.find_element("id", "p-toggle").click()
        wait(browser, "return document.querySelectorAll('#p-map button.gone').length === 1")
        assert gone(browser) == ["encoder.0:0"]
        assert "Put encoder.0:0 back" in text(browser, "p-toggle")
        browser.find_element("css selector", "#p-save button").click()
        wait(browser, "return document.getElementById('p-told').textContent.includes('Saved to')")
        assert (tmp_path / "small" / "config.json").is_file()
        assert browser.get_log("browser") == []
    finally:
        server.shutdown()
        server.server_close()


def wait(browser, script):  # noqa: F811
    from selenium.webdriver.support.wait import WebDriverWait

    WebDriverWait(browser, 60).until(lambda page: page.execute_script(script))
