"""The page in a real browser: `make test-browser`."""

from __future__ import annotations

import itertools
import re
import shutil

import pytest

from headprune.lab.experiments.store import Store
from headprune.lab.report import gather, html_page

pytestmark = pytest.mark.browser

ARGUMENTS = (
    "--headless=new", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync", "--disable-quic",
)  # fmt: skip


@pytest.fixture(scope="module", params=["light", "dark"])
def browser(request, tmp_path_factory):
    """Chromium, headless, in both schemes."""
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    binary, driver = shutil.which("chromium"), shutil.which("chromedriver")
    assert binary, "no chromium: `make test-browser` installs Debian's"
    assert driver, "no chromedriver: `make test-browser` installs Debian's"
    options = webdriver.ChromeOptions()
    options.binary_location = binary
    for argument in (*ARGUMENTS, f"--user-data-dir={tmp_path_factory.mktemp('chromium')}"):
        options.add_argument(argument)
    if request.param == "dark":
        options.add_argument("--blink-settings=preferredColorScheme=0")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    found = webdriver.Chrome(options, Service(driver))
    found.scheme = request.param
    yield found
    found.quit()


@pytest.fixture
def page(browser, runs, tmp_path):
    """The report of the toy runs, opened."""
    path = tmp_path / "report.html"
    path.write_text(html_page(gather([runs])))
    browser.set_window_size(1000, 900)
    browser.get(path.as_uri())
    return browser


def slide(page, share):
    page.execute_script(
        "const s = document.getElementById('share'); s.value = arguments[0]; s.dispatchEvent(new Event('input'))", share
    )


def pruned(page):
    return [
        button.get_attribute("aria-label").split(",")[0] for button in page.find_elements("css selector", ".pruned")
    ]


def test_it_opens_without_a_word_on_the_console(page):
    """No error, no warning; pictures are drawn; the scheme is the reader's."""
    assert page.get_log("browser") == []
    charts = page.find_elements("css selector", ".chart")
    assert len(charts) == 2
    assert all(chart.find_elements("css selector", ".main-svg .scatterlayer .trace") for chart in charts)
    background = page.execute_script("return getComputedStyle(document.body).backgroundColor")
    light = background == "rgb(255, 255, 255)"
    assert light is (page.scheme == "light")


def test_the_slider_changes_the_map(page, runs):
    """Heads go in the order of the scores, and the sentence says what the curve says."""
    assert pruned(page) == []
    (subject, *_) = gather([runs]).subjects
    order = [str(head) for head in subject.rankings[0].order]
    slide(page, 50)
    assert sorted(pruned(page)) == sorted(order[:4])
    records = {record.trial.label: record.result for record in Store(runs)}
    points = records["curve, seed 1"]["curves"]["sensitivity"][0]["points"]
    score = next(point["score"] for point in points if point["share"] == 0.5)
    told = page.find_element("id", "told").text
    assert f"50 %: 4 of 8 heads go; next to go: {order[4]}." in told
    assert f"{float(f'{score:.4g}'):g}" in told
    slide(page, 100)
    assert len(pruned(page)) == 8


def test_the_numbers_on_the_page_are_those_in_the_store(page, runs):
    """In the table of values, and of the head that is pointed at."""
    records = {record.trial.label: record.result for record in Store(runs)}
    mean = sum(records[f"model, seed {seed}"]["test"]["score"] for seed in (1, 2, 3)) / 3
    row = page.find_element("xpath", "//th[text()='bits of the whole model']/..").text
    assert f"{mean:.4g}" in row
    assert "1.199" in row
    change = records["ablation, seed 1"]["heads"]["decoder.1:2"]["change"]
    page.execute_script(
        'document.querySelector(\'button[data-site="1"][data-head="2"]\').dispatchEvent('
        "new MouseEvent('mouseover', {bubbles: true}))"
    )
    told = page.find_element("id", "head").text
    assert "decoder.1:2" in told
    shown = next(line for line in told.splitlines() if line.startswith(("+", "-")))
    assert float(shown.split()[0]) == pytest.approx(change, rel=1e-3)


def test_the_keyboard_is_enough(page):
    """Arrow keys walk through the map and move the slider; only one cell is a stop of the tab key."""
    from selenium.webdriver.common.keys import Keys

    assert len(page.find_elements("css selector", '#map button[tabindex="0"]')) == 1
    page.find_element("css selector", '#map button[tabindex="0"]').send_keys(Keys.ARROW_DOWN)
    page.switch_to.active_element.send_keys(Keys.ARROW_RIGHT)
    assert page.switch_to.active_element.get_attribute("aria-label").startswith("decoder.1:1")
    assert "decoder.1:1" in page.find_element("id", "head").text
    slider = page.find_element("id", "share")
    slider.send_keys(Keys.END)
    assert len(pruned(page)) == 8


def test_other_models_and_colours_can_be_chosen(page):
    """Each model has its own map; colours show scores, ablations and what was pruned."""
    from selenium.webdriver.support.select import Select

    Select(page.find_element("id", "subject")).select_by_visible_text("model, seed 2")
    assert page.find_element("css selector", "#map caption").text == "model, seed 2"
    facts = Select(page.find_element("id", "fact"))
    assert len(facts.options) >= 4
    facts.select_by_visible_text("left: cut [share 50%], seed 2")
    label = page.find_element("css selector", "#map button").get_attribute("aria-label")
    assert label.split()[-1] in ("0", "1")


def test_a_phone_is_wide_enough(page):
    """Nothing but tables in their own frames is wider than the screen."""
    page.execute_cdp_cmd(
        "Emulation.setDeviceMetricsOverride", {"width": 360, "height": 740, "deviceScaleFactor": 2, "mobile": True}
    )
    page.refresh()
    width = page.execute_script("return document.documentElement.scrollWidth")
    page.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
    assert width <= 360


def test_a_screen_reader_has_a_table_for_each_picture(page):
    """Pictures have a name and a table with headings; controls have labels; headings are in order."""
    for chart in page.find_elements("css selector", ".chart"):
        assert "table below" in chart.get_attribute("aria-label")
        assert chart.find_element("xpath", "following-sibling::details[1]//table")
    for table in page.find_elements("css selector", "table"):
        assert table.find_elements("css selector", "caption")
        assert table.find_elements("css selector", "th[scope]")
    for control in page.find_elements("css selector", "select, input"):
        assert page.execute_script("return arguments[0].labels.length", control) == 1
    levels = [int(heading.tag_name[1]) for heading in page.find_elements("css selector", "h1, h2, h3")]
    assert levels[0] == 1
    assert all(after <= before + 1 for before, after in itertools.pairwise(levels))
    assert page.find_element("css selector", "html").get_attribute("lang") == "en"


def test_words_can_be_read_in_both_schemes(page):
    """Text has at least 4.5 times the contrast of its background (WCAG 2, level AA)."""
    colors = page.execute_script(
        "const s = getComputedStyle(document.documentElement);"
        "return ['--ink', '--quiet', '--link', '--paper'].map((n) => s.getPropertyValue(n).trim())"
    )
    *texts, paper = colors
    pairs = [(text, paper) for text in texts]
    slide(page, 60)
    for button in page.find_elements("css selector", "#map button"):
        pairs.append(tuple(button.value_of_css_property(name) for name in ("color", "background-color")))
    for text, ground in pairs:
        low, high = sorted((_luminance(text), _luminance(ground)))
        assert (high + 0.05) / (low + 0.05) >= 4.5, (text, ground)


def _luminance(color):
    if color.startswith("rgb"):
        parts = [float(number) / 255 for number in re.findall(r"[\d.]+", color)[:3]]
    else:
        digits = color.removeprefix("#")
        digits = "".join(d * 2 for d in digits) if len(digits) == 3 else digits
        parts = [int(digits[i : i + 2], 16) / 255 for i in (0, 2, 4)]
    linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def test_a_script_that_somebody_put_into_the_page_does_not_run(browser, runs, tmp_path):
    """Neither as an element nor as a handler: the policy knows the page's own scripts by their hashes."""
    text = html_page(gather([runs]))
    injected = "<script>window.injected = 1</script><img src=x onerror='window.injected = 2'>"
    path = tmp_path / "injected.html"
    path.write_text(text.replace("</main>", f"{injected}</main>", 1))
    browser.get(path.as_uri())
    assert browser.execute_script("return window.injected") is None
    assert browser.find_elements("css selector", ".chart .main-svg"), "the page's own scripts run"
    refused = [entry["message"] for entry in browser.get_log("browser")]
    assert sum("Content Security Policy" in message for message in refused) >= 2
    path.write_text(path.read_text().replace("Content-Security-Policy", "ignored"))
    browser.get(path.as_uri())
    assert browser.execute_script("return window.injected") is not None, "without the policy, it would run"
