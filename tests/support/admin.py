"""Asking an admin API the way strangers do: byte by byte, with any header, over any of its ways in."""

import asyncio
import json
import re
import ssl
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from broker.config.values import ListenAddress

SECONDS = 30.0
# An instance with one database, whose admin API has a port of loopback.
CONFIGURATION = """
[instance]
name = "one"
state_dir = "."
[endpoint]
listen = []
message_forwarding = true
[databases.orders]
path = "orders.db"
[observe]
listen = ""
[admin]
listen = "127.0.0.1:0"
"""
JSON = {"Content-Type": "application/json"}


@dataclass(frozen=True)
class Answer:
    """What was answered. Shape: header names in lower case."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def told(self) -> Any:
        return json.loads(self.body)


async def speak(
    where: Path | ListenAddress,
    data: bytes,
    *,
    tls: ssl.SSLContext | None = None,
    patience: float = SECONDS,
    is_enough: Callable[[bytes], bool] = lambda _: False,
) -> bytes:
    """
    Send bytes and read to the end, until it is enough, or until nothing has come for so many seconds.

    Returns:
        What came; b"" where nobody answers.
    """
    if isinstance(where, Path):
        reader, writer = await asyncio.open_unix_connection(str(where))
    else:
        reader, writer = await asyncio.open_connection(where.host, where.port, ssl=tls)
    got = b""
    try:
        writer.write(data)
        while True:
            async with asyncio.timeout(patience):
                part = await reader.read(65_536)
            if not part:
                return got
            got += part
            if is_enough(got):
                return got
    except TimeoutError:
        assert patience < SECONDS, "no end of the answer"
        return got
    except ConnectionError:
        return got
    finally:
        writer.transport.abort()


def request(method: str, target: str, headers: Mapping[str, str] | None = None, body: object = None) -> bytes:
    """A request that asks for the end of the connection; a header that is "" is left out."""
    data = b"" if body is None else body if isinstance(body, bytes) else json.dumps(body).encode()
    usual = {"Host": "localhost", "Connection": "close", **({"Content-Length": str(len(data))} if data else {})}
    if method == "POST":
        usual |= JSON
    fields = {name.lower(): f"{name}: {value}" for name, value in {**usual, **(headers or {})}.items() if value != ""}
    dropped = {name.lower() for name, value in (headers or {}).items() if value == ""}
    lines = [f"{method} {target} HTTP/1.1", *(line for name, line in fields.items() if name not in dropped)]
    return "\r\n".join([*lines, "", ""]).encode("utf-8", "surrogateescape") + data


def read_answer(data: bytes) -> Answer:
    """The first answer in some bytes."""
    head, _, body = data.partition(b"\r\n\r\n")
    status, *lines = head.decode("latin-1").split("\r\n")
    found = re.fullmatch(r"HTTP/1\.[01] ([0-9]{3}) .*", status)
    assert found is not None, data[:200]
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    return Answer(int(found[1]), headers, body)


async def ask(
    where: Path | ListenAddress,
    method: str,
    target: str,
    *,
    headers: Mapping[str, str] | None = None,
    body: object = None,
    tls: ssl.SSLContext | None = None,
) -> Answer:
    """The answer to a request; of one that is a stream of events, which has no end, what came first."""
    return read_answer(await speak(where, request(method, target, headers, body), tls=tls, is_enough=_is_stream))


def _is_stream(got: bytes) -> bool:
    head, end, _ = got.partition(b"\r\n\r\n")
    return bool(end) and b"\r\ncontent-type: text/event-stream" in head.lower()


def bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


def audit_lines(path: Path) -> list[dict[str, Any]]:
    """What was written down; nothing without a file."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()] if path.exists() else []
