"""The status page when something goes: a peer that is killed, an instance that hangs or restarts, a token."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from examples.demo.topology import Topology
from tests.browser.conftest import TO_BILLING, Shown, page, seen, start
from tests.browser.test_status_page import LIVE, look, send
from tests.support.chromium import Browser
from tests.support.command import run

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(300)]
LOST = "document.getElementById('link').textContent === 'connection lost'"
SNAPSHOTS_MAX = 3  # of a second each, after which a loss has to be seen
# Counts the snapshots that the page shows from now on until a text is there.
COUNTING = """
(() => {
  const at = document.getElementById("as-of");
  window.snapshots = 0;
  window.seenAfter = null;
  new MutationObserver(() => {
    window.snapshots += 1;
    if (window.seenAfter === null && %s) window.seenAfter = window.snapshots;
  }).observe(at, {attributes: true});
})()
"""


@pytest.fixture
def guarded(tmp_path: Path) -> Iterator[Topology]:
    """An instance whose port wants a token of everybody."""
    net = Topology(tmp_path)
    settings = page("none")
    settings["admin"] |= {"tokens": "tokens.json"}
    net.add("guarded", settings=settings)
    with net:
        yield net


@pytest.mark.promise("The status page shows old numbers")
async def test_a_peer_that_is_killed_is_seen_at_once(browser: Browser, shown: Shown) -> None:
    """Within three snapshots of a second each; a kill closes its sockets, and nobody waits for a timeout."""
    tab = await look(browser, shown["gateway"].page)
    send(shown, TO_BILLING)
    await seen(tab, "document.querySelector('#map svg').getAttribute('aria-label').includes('billing')")
    await seen(tab, "document.getElementById('connections-table').innerText.includes('billing')")
    is_told = "/billing.*gone for|not reached/s.test(document.getElementById('connections').innerText)"
    await tab.evaluate(COUNTING % is_told)

    shown["billing"].kill()
    try:
        await seen(tab, "window.seenAfter !== null")
        after = await tab.evaluate("window.seenAfter")
        signs = await tab.evaluate("document.querySelectorAll('#map svg .sign.bad').length")
    finally:
        start(shown["billing"])

    assert after <= SNAPSHOTS_MAX
    assert signs > 0
    send(shown, TO_BILLING)  # nobody is dialled before there is something to say
    await seen(tab, "!/gone for/.test(document.getElementById('connections').innerText)")


@pytest.mark.promise("The status page shows old numbers")
async def test_an_instance_that_hangs_is_shown_as_such_until_it_goes_on(browser: Browser, shown: Shown) -> None:
    tab = await look(browser, shown["orders"].page)
    before = await tab.evaluate("document.getElementById('as-of').dateTime")

    shown["orders"].freeze()
    try:
        await seen(tab, LOST)
        told = await tab.evaluate("document.getElementById('stale').textContent")
        title = await tab.evaluate("document.title")
    finally:
        shown["orders"].thaw()

    assert "This page shows the state of" in told
    assert "connection lost" in title
    await seen(tab, LIVE)
    assert await tab.evaluate("document.getElementById('stale').hidden")
    assert await tab.evaluate("document.getElementById('as-of').dateTime") > before


async def test_a_token_opens_the_page_where_everybody_needs_one(browser: Browser, guarded: Topology) -> None:
    """The files are there for everybody and hold nothing; a wrong token is told; a right one stays in the tab alone."""
    daemon = guarded.daemons["guarded"]
    secret = run("token", "create", "reader", "--role", "viewer", "-c", daemon.config).stdout.strip()
    start(daemon)
    tab = await browser.open(daemon.page)

    await seen(tab, "!document.getElementById('door').hidden")
    focus = await tab.evaluate("document.activeElement.id")
    shown_without = await tab.evaluate("document.body.innerText")
    await tab.evaluate(
        "document.getElementById('token').value = 'wrong'; document.querySelector('#door button').click()"
    )
    await seen(tab, "document.getElementById('door-why').textContent.includes('not known')")
    await tab.evaluate(
        f"document.getElementById('token').value = {json.dumps(secret)};document.querySelector('#door button').click()"
    )
    await seen(tab, LIVE)

    assert "token" == focus
    assert "guarded" not in shown_without
    assert await tab.evaluate("document.getElementById('door').hidden")
    assert "guarded" == await tab.evaluate("document.getElementById('name').textContent")
    assert ["", "0", "1", ""] == await tab.evaluate(
        "[document.cookie, String(localStorage.length), String(sessionStorage.length),"
        " document.getElementById('token').value]"
    )
    assert not [url for url in tab.requests if secret in url]
