"""A browser for the tests of the page, as Debian packages it; without one they are skipped."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator

import pytest

from meshdsl.tools.page import ledger_page, page, program_html
from tests.tools.sample import ledger, piped, sample, too_large, without_target
from tests.tools.test_page import hostile

CHROMIUM, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")


@pytest.fixture(scope="session")
def browser() -> Iterator:
    webdriver = pytest.importorskip(
        "selenium.webdriver", reason="needs selenium to drive a browser"
    )
    if not (CHROMIUM and DRIVER):
        pytest.skip("needs chromium and chromedriver, as Debian packages them")
    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM
    for argument in (
        "--headless=new",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-dev-shm-usage",
        "--disable-extensions",
        "--disable-background-networking",
    ):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    service = webdriver.ChromeService(DRIVER)
    driver = webdriver.Chrome(options=options, service=service)
    driver.set_script_timeout(10)
    yield driver
    driver.quit()


@pytest.fixture(scope="session")
def files(tmp_path_factory) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("pages")
    texts = {
        "sample": page(sample()),
        "untargeted": page(without_target()),
        "large": page(too_large()),
        "pipelines": page(piped()),
        "ledger": ledger_page(ledger()),
        "hostile": page(hostile()),
        "notebook": "<!doctype html><meta charset=utf-8>"
        "<meta name=viewport content='width=device-width'><h1>before</h1>"
        f"{program_html(sample())}{program_html(without_target())}<p>after</p>",
    }
    for name, text in texts.items():
        (folder / f"{name}.html").write_text(text, "utf-8")
    return {name: (folder / f"{name}.html").as_uri() for name in texts}


@pytest.fixture
def visit(browser, files):
    """Opens a page at a width, light or dark; afterwards the console must be empty."""

    def visit(name: str, width: int = 1280, *, dark: bool = False, script: bool = True):
        browser.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": not script})
        metrics = {"width": width, "height": 800, "deviceScaleFactor": 1, "mobile": width < 500}
        browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
        features = [
            {"name": "prefers-color-scheme", "value": "dark" if dark else "light"},
            {"name": "prefers-reduced-motion", "value": "reduce"},
        ]
        browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
        browser.get(files[name])
        if script:
            browser.execute_script("try { localStorage.clear() } catch {}")
        return browser

    browser.get_log("browser")
    yield visit
    assert [
        entry for entry in browser.get_log("browser") if "favicon" not in entry["message"]
    ] == []
    browser.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": False})


# What a reader can open and see, without the script and the sentence that is there without it.
SAID = """
document.querySelectorAll("script, noscript, template").forEach((e) => e.remove());
return document.body.textContent.replace(/\\s+/g, " ").toWellFormed();
"""


@pytest.fixture
def said(visit) -> Callable[[str], str]:
    """The text of a page, folded parts too."""
    return lambda name: visit(name).execute_script(SAID)


@pytest.fixture
def draw(browser, tmp_path) -> Callable[[str], str]:
    """Opens any page, or the page in a frame, and gives its text."""

    def draw(html: str) -> str:
        file = tmp_path / "drawn.html"
        file.write_text(html, "utf-8")
        browser.get(file.as_uri())
        if html.startswith("<iframe"):
            browser.switch_to.frame(0)
        return browser.execute_script(SAID)

    return draw
