"""The status page in a real browser, of real instances: what people see, and what assistive technology is told."""

import asyncio
import base64
import hashlib
import json
import shutil
import sqlite3
import subprocess
import tarfile
import tempfile
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

import broker
from broker.protocol.frame import Hello, encode_link
from tests.browser.conftest import HOSTILE, TO_BILLING, TO_DEAF, TO_NOWHERE, Shown, seen, text_of
from tests.support.chromium import Browser, Tab
from tests.support.traffic import Traffic

PACKAGE = "axe-core@4.14.1"
INTEGRITY = "FHfa+lmNjQZfJz1q8wKqIDwC6DExcHt/pkjNQb09a3NPjCKg2rhu5qb2S4r76ASyFNNtuFooJpZe37OgudVGtQ=="  # SHA-512
SECONDS = 120.0


def axe_source() -> str:
    """The script; skips the test where npm or the registry is not there."""
    kept = Path(tempfile.gettempdir()) / f"{PACKAGE.replace('@', '-')}.tgz"
    if not kept.exists() or _integrity(kept) != INTEGRITY:
        _fetch(kept)
    assert INTEGRITY == _integrity(kept)
    with tarfile.open(kept) as archive:
        member = archive.extractfile("package/axe.min.js")
        assert member is not None
        return member.read().decode()


def _fetch(kept: Path) -> None:
    npm = shutil.which("npm")
    if npm is None:
        pytest.skip("no npm, which brings axe-core")
    with tempfile.TemporaryDirectory() as directory:
        command = [npm, "pack", PACKAGE, "--silent", "--pack-destination", directory]
        done = subprocess.run(command, capture_output=True, timeout=SECONDS, check=False)
        found = list(Path(directory).glob("*.tgz"))
        if done.returncode or not found:
            pytest.skip(f"npm does not bring axe-core: {done.stderr.decode(errors='replace')[-200:]}")
        shutil.copy(found[0], kept)


def _integrity(path: Path) -> str:
    return base64.b64encode(hashlib.sha512(path.read_bytes()).digest()).decode()


pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(300)]  # the first one starts instances
LIVE = "document.getElementById('link').textContent === 'live'"
DRAWN = "document.querySelectorAll('#map svg .box').length > 0"
SECTIONS = [
    "Health",
    "Now",
    "Map",
    "Waiting messages",
    "Drops by reason",
    "Ledger",
    "Routes",
    "Explain",
    "Why is it not there?",
    "Connections",
]
AXE = """
(async () => {
  const found = await axe.run(document, {runOnly: ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]});
  return JSON.stringify(found.violations.map(one => [one.id, one.nodes.map(node => node.html.slice(0, 200))]));
})()
"""  # noqa: E501 - one call

# The words in cells of tables that stand on more than one line.
BROKEN = """
(() => {
  const found = [], range = document.createRange();
  for (const cell of document.querySelectorAll("th, td")) {
    const texts = document.createTreeWalker(cell, NodeFilter.SHOW_TEXT);
    while (texts.nextNode()) {
      const text = texts.currentNode;
      if (text.parentElement.closest(".name, .id")) continue;
      for (const word of text.data.matchAll(/[A-Za-z0-9:.,]+/g)) {
        range.setStart(text, word.index);
        range.setEnd(text, word.index + word[0].length);
        if (new Set([...range.getClientRects()].map(one => one.top)).size > 1) found.push(word[0]);
      }
    }
  }
  return found;
})()
"""

# Where the focus is: what it is called, and whether it is seen to be there; null at the end.
STOP = """
(() => {
  const one = document.activeElement;
  if (one === document.body) return null;
  const style = getComputedStyle(one), box = one.getBoundingClientRect();
  const told = document.getElementById(one.getAttribute("aria-labelledby"));
  const text = one.getAttribute("aria-label") || one.labels?.[0]?.textContent || told?.textContent || one.textContent;
  const isSeen = style.outlineStyle !== "none" && parseFloat(style.outlineWidth) > 0 && box.width > 0;
  return {id: one.id, text, isSeen, href: one.getAttribute("href")};
})()
"""


async def look(browser: Browser, url: str, *, width: int = 1280, dark: bool = False) -> Tab:
    """The page of an instance, once it is live and drawn."""
    tab = await browser.open(url, width=width, height=900, dark=dark)
    await seen(tab, LIVE)
    await seen(tab, DRAWN)
    return tab


def send(shown: Shown, to_service: str) -> str:
    """One message of an application at orders; the conversation_id of its dialog."""
    with closing(sqlite3.connect(shown["orders"].directory / "orders.db", timeout=60)) as db, db:
        dialog = broker.begin_dialog(db, from_service="//page/Orders", to_service=to_service)
        dialog.send(b"x")
        return str(dialog.conversation_id)


async def press(tab: Tab, key: str, *, code: int, text: str = "") -> None:
    """A key, down and up."""
    parts = {"key": key, "code": key, "windowsVirtualKeyCode": code}
    await tab.ask("Input.dispatchKeyEvent", type="keyDown", **parts, **({"text": text} if text else {}))
    await tab.ask("Input.dispatchKeyEvent", type="keyUp", **parts)


async def write(tab: Tab, text: str) -> None:
    """What a person types where the focus is."""
    await tab.ask("Input.insertText", text=text)


async def test_the_page_goes_on_and_every_section_is_a_region_with_a_name(browser: Browser, shown: Shown) -> None:
    """Nothing is logged, and no server but the instance is asked."""
    url = shown["gateway"].page

    tab = await look(browser, url)

    first = await tab.evaluate("document.getElementById('as-of').dateTime")
    await seen(tab, f"document.getElementById('as-of').dateTime > '{first}'")
    assert "gateway" == await tab.evaluate("document.getElementById('name').textContent")
    assert "gateway" in await tab.evaluate("document.title")
    assert [] == tab.complaints
    assert {True} == {request.startswith(url) for request in tab.requests}
    roles = await tab.roles()
    assert set(SECTIONS) <= {name for role, name in roles if role == "region"}
    assert {*SECTIONS, "gateway"} <= {name for role, name in roles if role == "heading"}
    assert {"banner", "main", "navigation", "contentinfo"} <= {role for role, _ in roles}
    images = [name for role, name in roles if role in {"img", "image"}]
    assert all(images)
    assert all(name for role, name in roles if role == "table")
    assert any(name.startswith("Map of gateway.") for name in images)


async def test_traffic_is_seen_on_the_map_and_in_the_lines(browser: Browser, shown: Shown) -> None:
    orders, billing = (shown[name].directory / f"{name}.db" for name in ("orders", "billing"))
    tab = await look(browser, shown["gateway"].page)

    with Traffic(orders, [billing], from_service="//page/Orders", to_service=TO_BILLING, pause=0.1) as traffic:
        traffic.start()
        await seen(tab, "document.querySelectorAll('#map svg .lane:not(.idle):not(.bad)').length >= 4")
        await seen(tab, "/in [1-9]/.test(document.getElementById('plot-rates').getAttribute('aria-label'))")
        label = await tab.evaluate("document.querySelector('#map svg').getAttribute('aria-label')")
        await seen(tab, "/^Billing.*[1-9]\\S*\\/s$/m.test(document.getElementById('routes-table').innerText)")

    assert [] == traffic.failures
    for word in ("orders (", "billing (", "Billing (", "sends in:", "next hop:"):
        assert word in label
    assert 3 == await tab.evaluate("document.querySelectorAll('.plot canvas').length")


async def test_a_decision_is_explained_step_by_step(browser: Browser, shown: Shown) -> None:
    tab = await look(browser, shown["gateway"].page)

    await tab.evaluate("document.getElementById('explain-to').focus()")
    await write(tab, TO_BILLING)
    await press(tab, "Enter", code=13, text="\r")
    await seen(tab, "document.querySelector('#explain-answer .steps')")

    told = await tab.evaluate("document.getElementById('explain-answer').innerText")
    assert f"forwarded to {shown['billing'].address} by route Billing" in told
    assert all(f"{step}. " in told for step in range(8))
    assert "2. service alone matched: 1 route matches" in told


async def test_why_a_message_is_not_there_is_told_as_a_chain(browser: Browser, shown: Shown) -> None:
    conversation = send(shown, TO_NOWHERE)
    tab = await look(browser, shown["orders"].page)

    await tab.evaluate("document.getElementById('why-id').focus()")
    await write(tab, conversation)
    await press(tab, "Enter", code=13, text="\r")
    await seen(tab, "document.querySelectorAll('#why-answer .chain li').length >= 3")

    told = await tab.evaluate("document.getElementById('why-answer').innerText")
    assert conversation.upper() in told
    assert TO_NOWHERE in told
    assert all(label in told for label in ("Because", "What happens next", "What to do"))
    await seen(tab, f"document.getElementById('waiting-table').innerText.includes({json.dumps(TO_NOWHERE)})")
    ending = await tab.evaluate("document.querySelector('#waiting-table tbody tr:last-child td:last-child').innerText")
    assert "\u2013" == ending  # it waits, and nothing is known of what happens next


async def test_what_waits_is_told_with_the_reason_and_what_happens_next(browser: Browser, shown: Shown) -> None:
    send(shown, TO_DEAF)
    tab = await look(browser, shown["gateway"].page)

    await seen(tab, "document.getElementById('waiting-table').innerText.includes('tcp://127.0.0.1:1')")

    told = await tab.evaluate("document.getElementById('waiting-table').innerText")
    assert "refused" in told.lower()
    assert "tried again" in told
    assert "Something is wrong: tcp://127.0.0.1:1 is not reached" in await tab.evaluate(
        "document.getElementById('sentence').textContent"
    )


async def test_names_of_others_are_seen_as_they_are_written(browser: Browser, shown: Shown) -> None:
    """A route and a peer by markup, one of ten thousand characters, and one that turns the text round."""
    tab = await look(browser, shown["gateway"].page)
    names = [HOSTILE, "x" * 10_000, "\u202egnp.eman", "\x1b[31m\x00red"]
    port = shown["gateway"].port
    pairs = []
    try:
        for number, name in enumerate(names):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(encode_link(Hello(arbitration=bytes([number]) * 16, name=name, heartbeat_ms=60_000)))
            pairs.append((reader, writer))
        await seen(tab, f"document.getElementById('connections').innerText.includes({json.dumps(HOSTILE)})")
        await seen(tab, "document.getElementById('connections').innerText.includes('xxxxxxxxxx')")
        text = await text_of(tab)
        width = await tab.evaluate("document.documentElement.scrollWidth")
        title = await tab.evaluate("document.title")
    finally:
        for _, writer in pairs:
            writer.close()

    assert "\\u{202e}gnp.eman" in text
    assert "\\u{1b}[31m\\u{0}red" in text
    assert width <= 1280
    assert "taken" not in title
    assert [] == tab.complaints


async def test_routes_are_found_by_a_part_of_what_they_say(browser: Browser, shown: Shown) -> None:
    tab = await look(browser, shown["gateway"].page)
    await seen(tab, "document.getElementById('routes-count').textContent === '3 routes'")

    for part, count in (("BILL", "1 route"), ("it's", "0 routes"), ("%", "0 routes"), ("<script>", "1 route")):
        await tab.evaluate(
            f"document.getElementById('routes-filter').value = {json.dumps(part)};"
            "document.getElementById('routes-form').requestSubmit()"
        )
        await seen(tab, f"document.getElementById('routes-count').textContent === {json.dumps(count)}")

    assert HOSTILE in await tab.evaluate("document.getElementById('routes-table').innerText")


@pytest.mark.parametrize("width", [320, 360, 768, 1280])
async def test_the_page_never_scrolls_sideways(browser: Browser, shown: Shown, width: int) -> None:
    tab = await look(browser, shown["gateway"].page, width=width)

    assert await tab.evaluate("document.documentElement.scrollWidth") <= width


async def test_charts_become_narrower_with_the_window(browser: Browser, shown: Shown) -> None:
    tab = await look(browser, shown["gateway"].page, width=475)
    await tab.ask("Emulation.setDeviceMetricsOverride", width=420, height=900, deviceScaleFactor=1, mobile=True)

    await seen(tab, "document.documentElement.scrollWidth <= 420")


async def test_no_word_of_a_table_is_broken_on_a_phone(browser: Browser, shown: Shown) -> None:
    """A table scrolls instead; only names and ids of others, which may be of any length, are cut."""
    send(shown, TO_DEAF)
    tab = await look(browser, shown["gateway"].page, width=320)
    await seen(tab, "document.getElementById('hops-table').innerText.includes('not reached')")

    assert [] == await tab.evaluate(BROKEN)


async def test_sentences_of_a_table_are_whole_on_a_phone(browser: Browser, shown: Shown) -> None:
    send(shown, TO_DEAF)
    tab = await look(browser, shown["gateway"].page, width=420)
    await seen(tab, "document.querySelector('#waiting-table td.wide')")

    assert [] == await tab.evaluate(
        "[...document.querySelectorAll('td.wide')].filter(one => one.getBoundingClientRect().right >"
        " one.closest('section').getBoundingClientRect().right).map(one => one.innerText)"
    )


@pytest.mark.parametrize(("width", "dark"), [(1280, False), (1280, True), (360, False)], ids=["light", "dark", "phone"])
@pytest.mark.parametrize("name", ["gateway", "orders"])
async def test_nothing_keeps_people_with_disabilities_out(
    browser: Browser, shown: Shown, name: str, width: int, *, dark: bool
) -> None:
    """By the rules of WCAG 2.2 that a program can check."""
    source = axe_source()
    tab = await look(browser, shown[name].page, width=width, dark=dark)

    await tab.ask("Runtime.evaluate", expression=source)
    found = json.loads(await tab.evaluate(AXE))

    assert [] == found


async def test_everything_is_reached_by_the_keyboard_alone(browser: Browser, shown: Shown) -> None:
    """From the top, by Tab: the first stop leads past the head; every stop has a name and is seen to have the focus."""
    tab = await look(browser, shown["orders"].page)
    stops: list[dict[str, Any]] = []
    for _ in range(80):
        await press(tab, "Tab", code=9)
        stop = await tab.evaluate(STOP)
        if stop is None:
            break
        stops.append(stop)

    assert "#main" == stops[0]["href"]
    assert [] == [stop for stop in stops if not stop["text"].strip() or not stop["isSeen"]]
    wanted = ("routes-filter", "routes-of", "explain-to", "explain-from", "explain-instance", "why-id")
    order = [stop["id"] for stop in stops if stop["id"] in wanted]
    assert list(wanted[:5]) == [one for one in order if one != "why-id"]
    assert "why-id" in order


async def test_the_sentence_is_told_to_those_who_do_not_see_it_only_when_it_changes(
    browser: Browser, shown: Shown
) -> None:
    tab = await look(browser, shown["orders"].page)

    live = await tab.evaluate(
        "[...document.querySelectorAll('[aria-live],[role=status],[role=alert]')].map(one => one.id || one.tagName)"
    )
    await seen(tab, "!document.getElementById('sentence').dataset.key.includes('file')")  # it has been read
    first = await tab.evaluate("document.getElementById('sentence').dataset.key")
    at = await tab.evaluate("document.getElementById('as-of').dateTime")
    await seen(tab, f"document.getElementById('as-of').dateTime > '{at}'")

    assert {"sentence", "stale"} <= set(live)
    assert first == await tab.evaluate("document.getElementById('sentence').dataset.key")
    assert "off" == await tab.evaluate("document.getElementById('sentence').getAttribute('aria-live')")


@pytest.mark.promise("The status page shows old numbers")
async def test_more_tabs_than_a_browser_has_connections_are_live(browser: Browser, shown: Shown) -> None:
    """One of them listens and tells the others; when it is closed another one does; and all of them can ask."""
    tabs = [await look(browser, shown["gateway"].page) for _ in range(9)]

    await browser.ask("Target.closeTarget", targetId=tabs[0].target)
    for tab in tabs[1:]:
        await tab.ask("Page.bringToFront")  # what is not seen is not drawn
        at = await tab.evaluate("document.getElementById('as-of').dateTime")
        await seen(tab, f"document.getElementById('as-of').dateTime > '{at}'")
        await tab.evaluate("document.querySelector('#explain-form button').click()")
        await seen(tab, "document.querySelector('#explain-answer [role=alert]')")

    assert {3} == {await tab.evaluate("document.querySelectorAll('.plot canvas').length") for tab in tabs[1:]}
