"""
Listening to the events of a daemon, `GET /v1/events`.

Source: HTML Living Standard, "Server-sent events", "Interpreting an event stream".
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from broker.errors import DaemonUnreachableError

if TYPE_CHECKING:
    from broker.admin.client import AdminClient

LINE_MAX = 16 * 1024 * 1024  # bytes; far above a snapshot, whose lists are cut
EVENT_MAX = LINE_MAX
PULSES = "/v1/events?history=false"


@dataclass(frozen=True, slots=True)
class Event:
    """One event. Shape: `data` the JSON value that it carries."""

    name: str
    data: Any


def pulses(client: AdminClient) -> Iterator[dict[str, Any]]:
    """
    The snapshots of a daemon, one a second, until it ends the stream.

    Raises:
        DaemonUnreachableError, ProblemError, CertificateUnusableError: as `AdminClient.lines`.
    """
    try:
        for event in events(client.lines(PULSES, line_max=LINE_MAX)):
            if event.name == "pulse" and isinstance(event.data, dict):
                yield event.data
    except ValueError as error:
        raise DaemonUnreachableError(str(client.where), f"what it sends are no events: {error}") from error


def events(lines: Iterable[bytes]) -> Iterator[Event]:
    """
    The events in the lines of a stream; comments and unknown fields are passed over.

    Raises:
        ValueError: an event is no JSON, or has more than `EVENT_MAX` bytes.
    """
    name, size = "message", 0
    data: list[str] = []
    for line in lines:
        text = line.decode("utf-8", "replace").rstrip("\r\n")
        if not text:
            if data:
                yield Event(name, json.loads("\n".join(data)))
            name, data, size = "message", [], 0
            continue
        field, _, value = text.partition(":")
        value = value.removeprefix(" ")
        if field == "event":
            name = value
        elif field == "data":
            size += len(line)
            if size > EVENT_MAX:
                raise ValueError(f"an event has more than {EVENT_MAX} bytes")
            data.append(value)
