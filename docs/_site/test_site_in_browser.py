"""The site in a browser: `nox -s site_browser` makes it, and opens it in Chromium without a window."""

from __future__ import annotations

import json
import os
import shutil
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import quote_plus

import pytest
from selenium import webdriver
from selenium.webdriver.common.by import By
from selenium.webdriver.support.ui import WebDriverWait

ROOT = Path(__file__).parents[2]
SITE = ROOT / ".nox" / "site"
AXE = ROOT / ".nox" / "axe" / "node_modules" / "axe-core" / "axe.min.js"
PAGES = sorted(str(path.relative_to(SITE)) for path in SITE.rglob("*.html") if "_static" not in path.parts)
SEARCHED = {
    "gather_for_metrics": "guides/evaluation",
    "total_limit": "guides/saving",
    "exit code 75": "reference/exit-codes",
    "Trainer": "guides/programs-for-accelerate",
}


class Silent(SimpleHTTPRequestHandler):
    """Serves the site, and prints nothing."""

    def log_message(self, format: str, *args: object) -> None:
        """Leaves the request out of the output."""


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Silent, directory=str(SITE))) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()


@pytest.fixture(scope="module")
def browser() -> Iterator[webdriver.Chrome]:
    options = webdriver.ChromeOptions()
    options.binary_location = os.environ.get("CHROMIUM") or shutil.which("chromium") or "chromium"
    for argument in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"performance": "ALL"})
    service = webdriver.ChromeService(shutil.which("chromedriver"))
    driver = webdriver.Chrome(options=options, service=service)
    # the list of messages is long, and the machine may be busy
    driver.set_script_timeout(600)
    yield driver
    driver.quit()


def resized(browser: webdriver.Chrome, width: int) -> None:
    """Gives the page this width, also if it is less than a window may have."""
    browser.execute_cdp_cmd(
        "Emulation.setDeviceMetricsOverride",
        {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False},
    )


def test_there_are_pages() -> None:
    assert len(PAGES) > 30, "make the site first: nox -s docs"


@pytest.mark.parametrize(("words", "page"), SEARCHED.items())
def test_the_search_finds(browser: webdriver.Chrome, address: str, words: str, page: str) -> None:
    browser.get(f"{address}search.html?q={quote_plus(words)}")
    WebDriverWait(browser, 20).until(lambda it: it.find_elements(By.CSS_SELECTOR, "#search-results li a"))
    WebDriverWait(browser, 20).until(
        lambda it: any(page in (link.get_attribute("href") or "") for link in results(it)),
        f"{words!r} does not find {page}",
    )


def results(browser: webdriver.Chrome) -> list[webdriver.remote.webelement.WebElement]:
    """The links that the search has found."""
    links: list[webdriver.remote.webelement.WebElement] = browser.find_elements(By.CSS_SELECTOR, "#search-results li a")
    return links


@pytest.mark.parametrize("width", [390, 1400])
def test_no_page_is_wider_than_the_window(browser: webdriver.Chrome, address: str, width: int) -> None:
    resized(browser, width)
    wide = {}
    for page in PAGES:
        browser.get(address + page)
        found = browser.execute_script("return document.documentElement.scrollWidth")
        if found > width:
            wide[page] = found
    assert wide == {}


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_no_page_has_a_serious_fault_for_people_with_disabilities(
    browser: webdriver.Chrome, address: str, theme: str
) -> None:
    resized(browser, 1400)
    faults: dict[str, list[str]] = {}
    for page in PAGES:
        browser.get(address + page)
        browser.execute_script(f"document.body.dataset.theme = '{theme}'")
        browser.execute_script(AXE.read_text(encoding="utf-8"))
        violations = browser.execute_async_script(
            "axe.run(document, {resultTypes: ['violations']}).then(r => arguments[arguments.length - 1](r.violations))"
        )
        for fault in violations:
            if fault["impact"] in ("serious", "critical"):
                faults.setdefault(f"{fault['id']}: {fault['nodes'][0]['html'][:200]}", []).append(page)
    assert {fault: (len(pages), pages[0]) for fault, pages in faults.items()} == {}


def test_no_request_leaves_the_site(browser: Any, address: str) -> None:
    browser.get_log("performance")
    for page in PAGES:
        browser.get(address + page)
    messages = [json.loads(entry["message"])["message"] for entry in browser.get_log("performance")]
    asked = [m["params"]["request"]["url"] for m in messages if m["method"] == "Network.requestWillBeSent"]
    assert len(asked) >= len(PAGES)
    assert [url for url in asked if not url.startswith((address, "data:"))] == []
