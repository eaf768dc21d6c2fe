"""The page in a browser: nothing overflows, and a keyboard reaches and works everything."""

from __future__ import annotations

import pytest

pytest.importorskip("selenium", reason="needs selenium to drive a browser")
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys

pytestmark = pytest.mark.slow

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


def focused(browser) -> str:
    return browser.execute_script("return document.activeElement.textContent.trim()")


def press(browser, *keys: str) -> None:
    browser.switch_to.active_element.send_keys(*keys)


@pytest.mark.parametrize("width", [360, 1280])
@pytest.mark.parametrize(
    "name", ["sample", "untargeted", "large", "pipelines", "notebook", "ledger"]
)
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
    wanted = (
        "A undefined, theme BUTTON, pick pick-0 INPUT flow, SUMMARY flow, BUTTON timeline, block"
    )
    wanted += ", scroll DIV timeline, SUMMARY memory, tensor LI, sort BUTTON"
    assert [one for one in wanted.split(", ") if not any(one in what for what in seen)] == []


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
        "return [...document.querySelectorAll('#collectives tbody tr')].map((r) => "
        f"r.cells[{i}].dataset.value || r.cells[{i}].textContent)"
    )
    heads = browser.find_elements(By.CSS_SELECTOR, "#collectives thead th")
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


def test_without_script_the_page_says_so(visit):
    browser = visit("sample", script=False)
    assert "meshdsl explain prints the same" in browser.find_element(By.TAG_NAME, "body").text


def test_a_frame_is_as_high_as_its_page_and_as_dark_as_the_notebook(visit):
    browser = visit("notebook", dark=True)
    frame = browser.find_element(By.TAG_NAME, "iframe")
    paper = lambda: browser.execute_script(
        "return getComputedStyle(arguments[0].contentDocument.body).backgroundColor", frame
    )
    height = lambda: browser.execute_script(
        "const e = arguments[0].contentDocument.documentElement;"
        "return [arguments[0].offsetHeight, e.scrollHeight]",
        frame,
    )
    assert paper() == "rgb(16, 20, 24)"
    browser.execute_script("document.body.dataset.jpThemeLight = 'true'")
    assert paper() == "rgb(253, 253, 252)"
    before, room = height()
    assert before == room
    browser.switch_to.frame(frame)
    browser.find_element(By.XPATH, "//summary[text()='Op by op']").click()
    browser.execute_script("return new Promise(requestAnimationFrame)")
    browser.switch_to.default_content()
    after, room = height()
    assert after == room > before


def test_links_in_a_frame_stay_there(visit):
    browser = visit("notebook")
    frame = browser.find_element(By.TAG_NAME, "iframe")
    browser.switch_to.frame(frame)
    browser.execute_script("document.querySelectorAll('details').forEach((d) => d.open = true)")
    link = browser.find_element(By.XPATH, "//table[contains(@class, 'sortable')]//tr/td//a")
    browser.execute_script("arguments[0].click()", link)
    assert browser.execute_script("return document.activeElement.closest('.panel') !== null")
