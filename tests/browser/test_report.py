"""The report in a real browser: what people see, and what assistive technology is told."""

import struct
from pathlib import Path

import pytest

from broker.pipeline.report.digest import Digest
from broker.pipeline.report.page import page
from tests.support.chromium import Browser, Tab
from tests.support.reported import HOSTILE, digest

pytestmark = pytest.mark.asyncio(loop_scope="module")
SECTIONS = (
    "Input",
    "Ledger",
    "Traffic map",
    "Latency",
    "Drops by reason",
    "Loops",
    "Losses by link",
    "Capacity",
    "Top talkers",
    "Failovers",
)
DESK, PHONE = (1280, 900), (390, 844)
CONTRAST_MIN = 4.5  # WCAG 2.2, 1.4.3: text of ordinary size
# The least contrast of any text with what is behind it, and that text.
CONTRAST = """
(() => {
  const numbers = colour => colour.match(/[\\d.]+/g).map(Number);
  const light = rgb => rgb.slice(0, 3).map(c => c / 255)
    .map(c => c <= 0.03928 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4)
    .reduce((sum, c, place) => sum + c * [0.2126, 0.7152, 0.0722][place], 0);
  const behind = element => {
    for (let one = element; one; one = one.parentElement) {
      const found = numbers(getComputedStyle(one).backgroundColor);
      if (found.length < 4 || found[3] === 1) return found;
    }
    return [255, 255, 255];
  };
  let worst = [99, ''];
  const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  for (let text = texts.nextNode(); text; text = texts.nextNode()) {
    const element = text.parentElement;
    if (!text.data.trim() || !element.getClientRects().length || element.closest('title,desc,.map')) continue;
    const pair = [light(numbers(getComputedStyle(element).color)), light(behind(element))].sort((a, b) => b - a);
    const ratio = (pair[0] + 0.05) / (pair[1] + 0.05);
    if (ratio < worst[0]) worst = [ratio, text.data.slice(0, 40)];
  }
  return worst;
})()
"""


async def show(
    browser: Browser, directory: Path, what: Digest, size: tuple[int, int] = DESK, *, dark: bool = False
) -> Tab:
    file = directory / "report.html"
    file.write_text(page(what), encoding="utf-8")
    return await browser.open(file.as_uri(), width=size[0], height=size[1], dark=dark)


async def test_every_section_is_a_region_with_a_name_and_every_plot_an_image_with_one(
    browser: Browser, tmp_path: Path
) -> None:
    tab = await show(browser, tmp_path, digest())

    told = await tab.roles()

    assert list(SECTIONS) == [name for role, name in told if role == "region"]
    assert {*SECTIONS, "Flow report"} <= {name for role, name in told if role == "heading"}
    images = [name for role, name in told if role in {"img", "image"}]
    assert len(images) > 50
    assert all(images)
    assert 1 == sum(name.startswith("Traffic map: ") for name in images)  # of the wide and the narrow one


@pytest.mark.parametrize("size", [DESK, PHONE], ids=["desk", "phone"])
async def test_nothing_is_logged_asked_for_or_run_and_a_hostile_name_is_text(
    browser: Browser, tmp_path: Path, size: tuple[int, int]
) -> None:
    tab = await show(browser, tmp_path, digest(), size)

    assert [] == tab.complaints
    assert [(tmp_path / "report.html").as_uri()] == tab.requests
    assert 0 == await tab.evaluate("document.scripts.length")
    assert HOSTILE in await tab.evaluate("document.body.innerText")
    picture = await tab.screenshot()
    assert size == struct.unpack(">II", picture[16:24])
    assert len(picture) > 20_000  # a blank page of that size has three thousand


@pytest.mark.parametrize("width", [320, 390, 768, 1280])
async def test_the_page_never_scrolls_sideways(browser: Browser, tmp_path: Path, width: int) -> None:
    tab = await show(browser, tmp_path, digest(left=20, right=22, gateways=9), (width, 900))
    await tab.evaluate("document.querySelectorAll('details').forEach(one => one.open = true)")

    assert await tab.evaluate("document.documentElement.scrollWidth") <= width


@pytest.mark.parametrize("size", [DESK, PHONE], ids=["desk", "phone"])
async def test_what_does_not_add_up_is_seen_without_scrolling(
    browser: Browser, tmp_path: Path, size: tuple[int, int]
) -> None:
    """With the conversation's id, which is what somebody looks for."""
    tab = await show(browser, tmp_path, digest(), size)

    room, needed, right, width = await tab.evaluate(
        "(() => { const box = document.querySelector('#ledger .scroll');"
        " const ids = [...box.querySelectorAll('code')].map(one => one.getBoundingClientRect().right);"
        " return [box.clientWidth, box.scrollWidth, Math.max(...ids), innerWidth]; })()"
    )

    assert needed <= room
    assert 0 < right <= width


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
async def test_text_stands_out_from_what_is_behind_it(browser: Browser, tmp_path: Path, *, dark: bool) -> None:
    tab = await show(browser, tmp_path, digest(), dark=dark)

    ratio, text = await tab.evaluate(CONTRAST)
    background = await tab.evaluate("getComputedStyle(document.body).backgroundColor.match(/\\d+/g).map(Number)")

    assert ratio >= CONTRAST_MIN, text
    assert (max(background) < 60) is dark


async def test_on_paper_the_tables_behind_the_plots_are_open(browser: Browser, tmp_path: Path) -> None:
    tab = await show(browser, tmp_path, digest())
    await tab.ask("Emulation.setEmulatedMedia", media="print")

    shown = await tab.evaluate(
        "[...document.querySelectorAll('details table')].map(one => one.getBoundingClientRect().height > 0)"
    )

    assert shown
    assert all(shown)
