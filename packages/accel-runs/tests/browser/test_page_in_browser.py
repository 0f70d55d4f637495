"""The page in a browser, from the disk and without a network: `nox -s browser` runs these tests."""

import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from accel_runs.bokeh import render_page
from accel_runs.recorded_run import find_runs

webdriver: Any = pytest.importorskip("selenium.webdriver", reason="selenium is not installed: nox -s browser")
CHROMIUM, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")
pytestmark = pytest.mark.skipif(CHROMIUM is None or DRIVER is None, reason="no chromium with a chromedriver")

#: ready when every picture of the document is drawn
DRAWN = "return typeof Bokeh !== 'undefined' && Bokeh.documents.length == 1 && Bokeh.documents[0].is_idle"
LINES = """return Bokeh.documents[0].roots().flatMap(figure => figure.renderers)
    .filter(r => r.glyph && r.glyph.type == 'Line').map(r => [r.name, r.data_source.data.step.length,
    r.data_source.data.value[9], r.data_source.data.step[9]])"""


@pytest.fixture
def browser() -> Iterator[Any]:
    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM
    for word in ("--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--window-size=1200,900"):
        options.add_argument(word)
    for word in ("--host-resolver-rules=MAP * ~NOTFOUND", "--disable-background-networking"):
        options.add_argument(word)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(DRIVER))
    yield driver
    driver.quit()


def test_three_runs_of_ten_thousand_steps_are_drawn(
    browser: Any, tmp_path: Path, record_runs: Any, hostile: str
) -> None:
    """S136: hover says values, tables have them too, and a name that is code does nothing."""
    record_runs(tmp_path, 3, 10_000)
    path = tmp_path / "page.html"
    path.write_text(render_page(list(find_runs(tmp_path)), ["loss", "rate", hostile]))
    browser.execute_cdp_cmd("Performance.enable", {"timeDomain": "threadTicks"})
    began = time.monotonic()
    browser.get(path.as_uri())
    while not browser.execute_script(DRAWN):
        assert time.monotonic() - began < 20
        time.sleep(0.01)
    took = time.monotonic() - began
    figures = browser.execute_cdp_cmd("Performance.getMetrics", {})["metrics"]
    (worked,) = (figure["value"] for figure in figures if figure["name"] == "TaskDuration")
    print(f"drawn after {took:.2f} s, of which {worked:.2f} s of a processor")
    assert worked < 2, "a busy machine waits longer, and works no longer"
    lines = browser.execute_script(LINES)
    assert len(lines) == 9
    assert sorted(lines)[0][0] == "project/run0"
    assert {length for _, length, _, _ in lines} == {10_000}
    assert [round(value, 6) for _, _, value, _ in lines[:3]] == [0.1, 1.1, 2.1]
    assert browser.title.startswith("Runs: ")
    assert len(browser.find_elements("css selector", "table")) == 4
    assert "1e-04" in browser.find_element("css selector", "table").text or "0.0001" in browser.page_source
    picture = browser.find_elements("css selector", "section > div > div")[0]
    webdriver.ActionChains(browser).move_to_element(picture).perform()
    shown = _hovered(browser, picture)
    assert "project/run" in shown
    severe = [entry for entry in browser.get_log("browser") if entry["level"] == "SEVERE"]
    assert severe == []


def _hovered(browser: Any, picture: Any) -> str:
    """What the page says beside the pointer, which moves over the picture until it meets a line."""
    tips = "const tips = []; all(document.body); return tips.join(' ');" + (
        "function all(e) { for (const c of e.children || []) {"
        "if (c.classList.contains('bk-Tooltip')) tips.push((c.shadowRoot || c).textContent);"
        "all(c); if (c.shadowRoot) all(c.shadowRoot); } }"
    )
    size = picture.size
    for row in range(10, size["height"] - 30, 2):
        move = webdriver.ActionChains(browser, duration=0)
        move.move_to_element_with_offset(picture, 0, row - size["height"] // 2).perform()
        time.sleep(0.02)
        text = str(browser.execute_script(tips))
        if "project/run" in text:
            return text
    return ""
