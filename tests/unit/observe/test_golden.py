"""
What users read of a running instance, held by golden files: the status, one event, one scrape and every view.

Instants, identities, ports and sizes differ from run to run, so each is replaced by its kind. `BROKER_WRITE_GOLDEN=1`
writes the files again: look at the difference before you keep it.
"""

import json
import os
import re
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from broker.catalog.execute import execute
from broker.daemon.instance import Instance
from broker.ddl.parser import parse_script
from broker.routing.address import NetworkAddress
from broker.store.sqlite.transaction import open_watch
from tests.support.loopback import until
from tests.support.scraped import Scraped, text_of
from tests.unit.observe.conftest import DEAD

GOLDEN = Path(__file__).parent / "golden"
LOCAL = "CREATE ROUTE AutoCreatedLocal WITH ADDRESS = 'LOCAL'"
INSTANCE = "0a0b0c0d-0000-4000-8000-000000000001"
ROUTES = (
    f"CREATE ROUTE Dead WITH SERVICE_NAME = '//dead', ADDRESS = '{DEAD}';"
    f"CREATE ROUTE Pair WITH SERVICE_NAME = '//pair', BROKER_INSTANCE = '{INSTANCE}',"
    " ADDRESS = 'tcp://127.0.0.1:2', MIRROR_ADDRESS = 'tcp://127.0.0.1:3'"
)
KINDS = (
    (r"[0-9A-Fa-f]{8}(-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12}", "GUID"),
    (r"\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d(\.\d+)?(\+00:00)?", "INSTANT"),
    (r"127\.0\.0\.1:\d{4,}", "127.0.0.1:PORT"),
    (r"\b\d+(\.\d+)? (bytes|s)\b", r"N \2"),
    (r"tried again (now|in N s)", "tried again soon"),
    (r"(timed out|Connection refused)", "PROBLEM"),
    (r"(?<![:/\w])/(?!/)\S*/", "DIRECTORY/"),
    (r"\b[0-9a-f]{16}(-\d+)?\b", "ID"),
)
# Figures that differ from run to run: durations, sizes, and how often something was tried.
VARYING = re.compile(
    r"(_s|_ms|_bytes|_id|_expiry|_seconds|bytes_sent|bytes_received|^bytes|_lag|held_ms|number|time_.*|total_.*|rates"
    r"|probes?|days_left|resent|failures|pid|position|received|loop|kernel|software|python|at|messages|rows)$"
)


def same(value: Any, key: str = "") -> Any:
    """A value of which only what every run shares is left."""
    if isinstance(value, dict):
        return {same(name): same(one, name) for name, one in value.items()}
    if isinstance(value, list):
        return [same(one, key) for one in value]
    if isinstance(value, bool) or (value is None and key != "round_trip_ms"):  # null until a heartbeat was answered
        return value
    if isinstance(value, int | float | None):
        return "FIGURE" if not isinstance(value, int) or VARYING.search(key) else value
    if key in {"software", "python", "kernel", "loop", "flow", "flow_state"}:  # a peer may be idle by now
        return "VARIES"
    for pattern, kind in KINDS:
        value = re.sub(pattern, kind, value)
    return value


def compare(name: str, found: Any) -> None:
    """With the golden file; or write it."""
    text = found if isinstance(found, str) else json.dumps(same(found), indent=1, ensure_ascii=False) + "\n"
    path = GOLDEN / name
    if os.environ.get("BROKER_WRITE_GOLDEN"):
        path.write_text(text, encoding="utf-8")
    assert path.read_text(encoding="utf-8") == text


@pytest.fixture
async def busy(start: Callable[..., Any], send: Any, take: Any) -> Instance:
    """An instance that has exchanged a message, holds one, cannot send one and has dropped one."""
    gateway: Instance = await start("gateway", "", msdb=f"{ROUTES}; {LOCAL}")
    port = gateway.listeners[0].port
    back = f"CREATE ROUTE r WITH SERVICE_NAME = '//gateway', ADDRESS = 'tcp://127.0.0.1:{port}'"
    target = await start("target", back, msdb=LOCAL)
    there = (
        f"CREATE ROUTE Target WITH SERVICE_NAME = '//target', ADDRESS = 'tcp://127.0.0.1:{target.listeners[0].port}'"
    )
    await execute(gateway.catalog, parse_script(there), database="gateway")
    send(gateway, "//target")
    transmitter = gateway.endpoints["gateway"].transmitter
    await until(lambda: transmitter.acknowledged["//gateway"] == 1)
    with closing(open_watch(target.endpoints["target"].path)) as db:
        named = "SELECT 1 FROM broker_conversation WHERE is_opening_acknowledged = 1"
        await until(lambda: db.execute(named).fetchone())
    take(gateway, to_service="//dead")
    take(gateway, to_service="//dead", hop_count=15, hop_limit=15)
    dead = f"CREATE ROUTE Dead WITH SERVICE_NAME = '//dead', ADDRESS = '{DEAD}'"
    await execute(gateway.catalog, parse_script(dead), database="gateway")
    send(gateway, "//dead")
    await until(lambda: gateway.forwarder.pool.frames == 1 and transmitter.senders)
    unreached = NetworkAddress("127.0.0.1", 1)
    await until(lambda: "refused" in gateway.peers.table.problem_of(unreached))
    gateway.peers.table.histories[unreached].suppressed_until += 1000.0
    with closing(open_watch(gateway.endpoints["gateway"].path)) as db:
        written = "SELECT 1 FROM broker_conversation WHERE transmission_status LIKE '%refused%'"
        await until(lambda: db.execute(written).fetchone())
    return gateway


@pytest.fixture
async def session(busy: Instance) -> Any:
    """A client of its admin socket."""
    connector = aiohttp.UnixConnector(str(busy.settings.admin.socket))
    async with aiohttp.ClientSession("http://localhost", connector=connector) as client:
        yield client


async def test_status(session: aiohttp.ClientSession) -> None:
    async with session.get("/v1/status") as response:
        compare("status.json", await response.json())


async def test_event(session: aiohttp.ClientSession) -> None:
    async with session.get("/v1/events?history=false") as response:
        async for line in response.content:
            if line.startswith(b"data: "):
                event = json.loads(line.removeprefix(b"data: "))
                (database,) = event["databases"]["rows"]
                if database["ledger"] is not None and event["seconds"]:  # files are read next to the first event
                    break
    verdict = event["verdict"]  # the loop may be late on a machine that is busy
    verdict["findings"] = [one for one in verdict["findings"] if one["about"] != "loop"]
    event["latency"] = sorted(event["latency"])  # null where nothing has passed in the last second
    compare("event.json", event)


async def test_scrape(busy: Instance) -> None:
    """Values are those of other tests; here are names, types, texts and labels."""
    lines = [re.sub(r" [-+0-9.einfEINF]+$", "", line) for line in (await text_of(Scraped(busy))).splitlines()]
    lines = [line for line in lines if "_bucket{" not in line or 'le="+Inf"' in line]
    compare("scrape.txt", "".join(f"{same(_of_this_machine(line))}\n" for line in lines))


def _of_this_machine(line: str) -> str:
    return "broker_build_info{VARIES}" if line.startswith("broker_build_info{") else line


async def test_views(session: aiohttp.ClientSession) -> None:
    """Of the views that hold the same in every instance, the columns alone."""
    views = await _select(session, "SELECT schema_name + '.' + name FROM sys.system_views ORDER BY 1")
    found = {}
    for (view,) in views["rows"]:
        answer = await _select(session, f"SELECT * FROM {view}")
        rows = [] if view in {"sys.messages", "sys.system_views", "sys.system_columns"} else answer["rows"]
        found[view] = {
            "columns": answer["columns"],
            "rows": [
                " | ".join(map(str, same(dict(zip(answer["columns"], row, strict=True))).values())) for row in rows
            ],
        }
    compare("views.json", found)


async def _select(session: aiohttp.ClientSession, statement: str) -> Any:
    async with session.post("/v1/sql", json={"statement": statement, "database": "gateway"}) as response:
        return await response.json()
