"""The page in a browser: nothing overflows, and a keyboard reaches and works everything."""

from __future__ import annotations

import shutil
from collections.abc import Iterator

import pytest

from meshdsl.report.page import page, program_html
from tests.report.sample import piped, sample, too_large, without_target

webdriver = pytest.importorskip("selenium.webdriver", reason="needs selenium to drive a browser")
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys

CHROMIUM, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not (CHROMIUM and DRIVER), reason="needs chromium and chromedriver, as Debian packages them"
    ),
]

# Elements with text of their own whose colour stands out too little from what is behind: less than
# 4.5 to 1, or 3 to 1 for large text.
FAINT = """
const context = document.createElement("canvas").getContext("2d", {willReadFrequently: true});
const rgba = (c) => { context.clearRect(0, 0, 1, 1); context.fillStyle = c; context.fillRect(0, 0, 1, 1); return context.getImageData(0, 0, 1, 1).data; };
const light = (c) => { const f = [...c].slice(0, 3).map((v) => { v /= 255; return v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4; });
  return 0.2126 * f[0] + 0.7152 * f[1] + 0.0722 * f[2]; };
const behind = (e) => { for (; e; e = e.parentElement) { const c = rgba(getComputedStyle(e).backgroundColor); if (c[3] > 200) return c; } return [255, 255, 255]; };
const found = new Set();
for (const e of document.querySelectorAll("body *")) {
  const own = [...e.childNodes].some((n) => n.nodeType === 3 && n.textContent.trim());
  if (!own || !e.checkVisibility({opacityProperty: true}) || e.closest("svg, .block, .skip, script, style")) continue;
  const style = getComputedStyle(e), a = light(rgba(style.color)), b = light(behind(e));
  const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05), size = parseFloat(style.fontSize);
  if (ratio < (size >= 24 || (size >= 18.6 && style.fontWeight >= 700) ? 3 : 4.5)) found.add(`${e.className || e.tagName} ${ratio.toFixed(2)}`);
}
return [...found];
"""


@pytest.fixture(scope="module")
def browser() -> Iterator[webdriver.Chrome]:
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
    driver = webdriver.Chrome(options=options, service=Service(DRIVER))
    driver.set_script_timeout(10)
    yield driver
    driver.quit()


@pytest.fixture(scope="module")
def files(tmp_path_factory) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("pages")
    texts = {
        "sample": page(sample()),
        "untargeted": page(without_target()),
        "large": page(too_large()),
        "pipelines": page(piped()),
        "notebook": "<!doctype html><meta name=viewport content='width=device-width'>"
        "<h1>before</h1>"
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


def focused(browser) -> str:
    return browser.execute_script("return document.activeElement.textContent.trim()")


def press(browser, *keys: str) -> None:
    browser.switch_to.active_element.send_keys(*keys)


@pytest.mark.parametrize("width", [360, 1280])
@pytest.mark.parametrize("name", ["sample", "untargeted", "large", "pipelines", "notebook"])
def test_nothing_overflows(visit, name, width):
    browser = visit(name, width)
    browser.execute_script("document.querySelectorAll('details').forEach((d) => d.open = true)")
    wide, room = browser.execute_script(
        "const e = document.documentElement; return [e.scrollWidth, e.clientWidth]"
    )
    assert wide <= room <= width


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_text_stands_out(visit, dark):
    browser = visit("sample", dark=dark)
    browser.execute_script("document.querySelectorAll('details').forEach((d) => d.open = true)")
    assert browser.execute_script(FAINT) == []
    paper = browser.execute_script("return getComputedStyle(document.body).backgroundColor")
    assert paper == ("rgb(16, 20, 24)" if dark else "rgb(253, 253, 252)")


def test_button_changes_dark_and_light(visit):
    browser = visit("sample")
    button = browser.find_element(By.CSS_SELECTOR, ".theme")
    paper = lambda: browser.execute_script("return getComputedStyle(document.body).backgroundColor")
    before = paper()
    button.click()
    assert paper() != before and button.text == "Light"
    browser.refresh()
    assert paper() != before, "the choice is kept"
    browser.find_element(By.CSS_SELECTOR, ".theme").click()
    assert paper() == before


def test_skip_link_is_first_and_tab_reaches_every_widget(visit):
    browser = visit("sample")
    browser.execute_script(
        "for (const many of ['nav li', '.row', '.tensor', '.sortable tbody tr']) "
        "document.querySelectorAll(many).forEach((e, i) => i > 1 && e.remove())"
    )
    describe = """
        const e = document.activeElement, label = e.labels && e.labels[0];
        return [`${e.className} ${e.tagName} ${(e.closest('section') || {}).id}`, getComputedStyle(label || e).outlineStyle];
    """
    seen = []
    while len(seen) < 60 and not (seen and "sort" in seen[-1]):
        press(browser, Keys.TAB)
        what, outline = browser.execute_script(describe)
        seen.append(what)
        assert outline != "none" or "skip" in what, what
    assert "skip" in seen[0]
    for wanted in (
        "A undefined",
        "theme BUTTON",
        "pick pick-0 INPUT flow",
        " SUMMARY flow",
        " BUTTON timeline",
        "block",
        "scroll DIV timeline",
        "SUMMARY memory",
        "tensor LI",
        "sort BUTTON",
    ):
        assert any(wanted in what for what in seen), wanted


def test_arrow_keys_switch_the_pass_and_walk_the_ops(visit):
    browser = visit("sample")
    panels = browser.find_elements(By.CSS_SELECTOR, ".panel")
    assert [p.is_displayed() for p in panels] == [True, False, False, False, False]
    browser.execute_script("document.querySelector('.pick-0').focus()")
    press(browser, Keys.ARROW_RIGHT, Keys.ARROW_RIGHT)
    browser.switch_to.active_element.send_keys(Keys.NULL)
    assert panels[2].is_displayed() and not panels[0].is_displayed()
    browser.execute_script("document.querySelector('.panel-2 .op > summary').focus()")
    first = focused(browser)
    press(browser, Keys.ARROW_DOWN)
    assert focused(browser) != first
    press(browser, Keys.ENTER)
    box = browser.switch_to.active_element.find_element(By.XPATH, "..")
    assert box.get_attribute("open")
    press(browser, Keys.ESCAPE)
    assert not box.get_attribute("open")
    press(browser, Keys.ARROW_UP)
    assert focused(browser) == first


def test_arrow_keys_walk_the_timeline_and_zoom_it(visit):
    browser = visit("sample")
    picked = browser.find_element(By.CSS_SELECTOR, ".picked")
    browser.execute_script(
        "document.querySelector('.timeline .lane .block[tabindex=\"0\"]').focus()"
    )
    assert picked.text.startswith("32 × layers")
    press(browser, Keys.ARROW_DOWN)
    assert "forward" in picked.text and "show the op" in picked.text
    said = picked.text
    press(browser, Keys.ARROW_RIGHT)
    assert picked.text != said
    width = lambda: browser.execute_script("return document.querySelector('.zoomed').offsetWidth")
    before = width()
    press(browser, "+")
    assert width() > 1.5 * before
    browser.find_element(By.XPATH, "//button[text()='Whole step']").click()
    assert width() == before
    picked.find_element(By.TAG_NAME, "a").click()
    assert browser.execute_script(
        "return document.activeElement.closest('details').open && "
        "document.activeElement.checkVisibility()"
    )


def test_headings_sort_and_an_op_of_the_table_leads_to_the_flow(visit):
    browser = visit("sample")
    column = lambda i: browser.execute_script(
        "return [...document.querySelectorAll('.sortable tbody tr')].map((r) => "
        f"r.cells[{i}].dataset.value || r.cells[{i}].textContent)"
    )
    heads = browser.find_elements(By.CSS_SELECTOR, ".sortable thead th")
    assert heads[5].get_attribute("aria-sort") == "descending"
    press_on = lambda head: browser.execute_script(
        "arguments[0].querySelector('button').focus()", head
    )
    press_on(heads[4])
    press(browser, Keys.ENTER)
    each = [float(v) for v in column(4)]
    assert (
        each == sorted(each, reverse=True) and heads[4].get_attribute("aria-sort") == "descending"
    )
    press(browser, Keys.ENTER)
    each = [float(v) for v in column(4)]
    assert each == sorted(each) and heads[4].get_attribute("aria-sort") == "ascending"
    press_on(heads[0])
    press(browser, Keys.ENTER)
    assert column(0) == sorted(column(0)) and heads[4].get_attribute("aria-sort") is None
    link = browser.find_element(
        By.XPATH, "//table[contains(@class, 'sortable')]//tr[td[3]='backward']//a"
    )
    browser.execute_script("arguments[0].focus()", link)
    press(browser, Keys.ENTER)
    assert browser.find_element(By.CSS_SELECTOR, ".panel-2").is_displayed()
    assert browser.execute_script("return document.activeElement.closest('.panel-2') !== null")


def test_without_script_the_page_reads_and_the_passes_switch(visit):
    browser = visit("sample", script=False)
    assert not browser.find_element(By.CSS_SELECTOR, ".theme").is_displayed()
    assert browser.find_element(By.CSS_SELECTOR, ".verdict").text.startswith("Fits.")
    browser.find_element(By.CSS_SELECTOR, "label[for=p-phase-backward]").click()
    assert browser.find_element(By.CSS_SELECTOR, ".panel-2").is_displayed()
    browser.find_element(By.CSS_SELECTOR, ".panel-2 .op > summary").click()
    assert browser.find_element(By.CSS_SELECTOR, ".panel-2 .op .inside").is_displayed()


def test_fragment_keeps_to_itself(visit):
    browser = visit("notebook", dark=True)
    assert (
        browser.execute_script("return getComputedStyle(document.querySelector('h1')).color")
        == "rgb(0, 0, 0)"
    )
    browser.execute_script("document.body.dataset.jpThemeLight = 'true'")
    assert (
        browser.execute_script(
            "return getComputedStyle(document.querySelector('.mdsl')).backgroundColor"
        )
        == "rgb(253, 253, 252)"
    )
