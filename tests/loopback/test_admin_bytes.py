"""The admin server against bytes that are hardly HTTP: always an answer or none, never a fault, and no more memory."""

import asyncio
import re
from pathlib import Path

import psutil
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from structlog.testing import capture_logs

from broker.config.values import ListenAddress
from broker.daemon.instance import serve
from tests.support.admin import CONFIGURATION, ask, request, speak

MIB = 2**20
EXAMPLES = 300
PATIENCE = 0.05  # seconds for an answer to bytes that may be half a request

_STATUS = re.compile(rb"^HTTP/1\.[01] ([0-9]{3}) ", re.MULTILINE)

_TEXTS = """GET|POST|HEAD|CONNECT|PRI|/v1/sql|/v1/status|/v1/views/|HTTP/1.1|HTTP/2.0|Host: localhost|Content-Length: |
Content-Length: 18446744073709551616|Content-Type: application/json|Transfer-Encoding: chunked|Expect: 100-continue|
Upgrade: websocket|Upgrade: h2c|Cookie: a=b|Connection: Upgrade|Authorization: Bearer |Origin: null|Range: bytes=0-1|
%00| |:|//|?|#|{"statement": "SELECT 1"}|{"statement": """.replace("\n", "").encode()
_BYTES = [b"\x00", b"\xff", b"0\r\n\r\n", b"ffffffffffffffff\r\n", b"1;x=y\r\na\r\n", b"\r\n", b"\r\n\r\n", b"\n"]
_WORDS = st.sampled_from([*_TEXTS.split(b"|"), *_BYTES, b"[" * 200, b"a" * 9000])
_LOOSE = st.lists(st.one_of(_WORDS, st.binary(max_size=20)), max_size=30).map(b"".join)


@st.composite
def _bent(draw: st.DrawFn) -> bytes:
    """A good request, cut, flipped, doubled or filled in at some places."""
    path = draw(st.sampled_from(["/v1/sql", "/v1/status", "/v1/plan", "/v1/views/sys.routes?limit=3", "/v1/explain"]))
    body = draw(st.sampled_from([None, {"statement": "SELECT 1"}, {"to": "//x"}, {"script": "DROP ROUTE r"}, b"\xff{"]))
    data = bytearray(request("GET" if body is None else "POST", path, {}, body))
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, len(data)))
        match draw(st.sampled_from(["flip", "cut", "insert", "double"])):
            case "flip" if at < len(data):
                data[at] ^= 1 << draw(st.integers(0, 7))
            case "cut":
                del data[at : at + draw(st.integers(1, 40))]
            case "insert":
                data[at:at] = draw(_WORDS)
            case _:
                data[at:at] = data[at : at + 60]
    return bytes(data)


def _rss() -> int:
    return int(psutil.Process().memory_info().rss)


async def _round(where: ListenAddress | Path, data: bytes) -> list[int]:
    """The statuses of the answers to some bytes."""
    return [int(status) for status in _STATUS.findall(await speak(where, data, patience=PATIENCE))]


def test_no_bytes_are_answered_as_a_fault_of_the_server(tmp_path: Path) -> None:
    """Over the TCP port, and over the socket, where the caller is admin and everything is carried out."""
    file = tmp_path / "broker.toml"
    file.write_text(CONFIGURATION)
    seen: set[int] = set()

    with asyncio.Runner() as runner:
        context = serve(file)
        instance = runner.run(context.__aenter__())
        port = instance.admin.admin_address
        assert port is not None
        places: list[ListenAddress | Path] = [port, instance.settings.admin.socket]

        @settings(max_examples=EXAMPLES, database=None, suppress_health_check=list(HealthCheck))
        @given(data=st.one_of(_LOOSE, _bent()), place=st.sampled_from(places))
        def fuzz(data: bytes, place: ListenAddress | Path) -> None:
            with capture_logs() as logs:
                statuses = runner.run(_round(place, data))
            assert [] == [status for status in statuses if status >= 500]
            assert [] == [line for line in logs if line["log_level"] == "error"]
            seen.update(statuses)

        try:
            fuzz()
            alive = runner.run(ask(port, "GET", "/v1/status"))
        finally:
            runner.run(context.__aexit__(None, None, None))

    assert 200 == alive.status
    assert seen & {400, 404, 405, 415}


@pytest.mark.parametrize("kind", ["heads", "lengths", "chunks"])
async def test_a_storm_of_bad_requests_leaves_memory_as_it_was(tmp_path: Path, kind: str) -> None:
    file = tmp_path / "broker.toml"
    await asyncio.to_thread(file.write_text, CONFIGURATION)
    storms = {
        "heads": b"GET / HTTP/1.1\r\n" + b"".join(b"X%d: %s\r\n" % (n, b"a" * 8000) for n in range(60)),
        "lengths": request("POST", "/v1/sql", {"Content-Length": str(150 * MIB)}) + b"[" * 60_000,
        "chunks": request("POST", "/v1/sql", {"Transfer-Encoding": "chunked"}) + b"ffff\r\n" + b"[" * 60_000,
    }
    async with serve(file) as instance:
        where = instance.admin.admin_address
        assert where is not None

        async def storm(times: int) -> None:
            for _ in range(times):
                await asyncio.gather(*(speak(where, storms[kind], patience=PATIENCE) for _ in range(32)))

        await storm(2)  # what so many connections at once take, the allocator keeps
        before = _rss()
        await storm(8)
        grown = _rss() - before
        answer = await ask(instance.settings.admin.socket, "GET", "/v1/status")

    assert grown < 16 * MIB
    assert 200 == answer.status
