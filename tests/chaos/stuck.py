"""What is known of dialogs that do not end, as their databases and the applications' histories have it."""

from __future__ import annotations

import time
import uuid
from collections.abc import Collection, Iterator
from pathlib import Path

from tests.chaos.fleet import Fleet
from tests.chaos.history import Entry, read_history, together

SHOWN = 2
LAST = 4  # events of a dialog

_SIDES = (
    "SELECT is_initiator, state, service_name, lifetime, create_date, send_sequence, acknowledged_sequence,"
    " receive_sequence, end_dialog_sequence, transmission_status,"
    " (SELECT count(*) FROM broker_transmission t WHERE t.endpoint_id = c.endpoint_id) AS kept,"
    " (SELECT count(*) FROM broker_message m WHERE m.endpoint_id = c.endpoint_id) AS unread,"
    " (SELECT error FROM broker_failure f WHERE f.endpoint_id = c.endpoint_id) AS failure"
    " FROM broker_conversation c WHERE conversation_id = x'{}'"
)
_TOMBSTONES = (
    "SELECT is_initiator, receive_sequence, close_time, expire_time FROM broker_tombstone WHERE conversation_id = x'{}'"
)


def describe(fleet: Fleet, conversations: Collection[str], histories: Path) -> list[str]:
    """A few lines about each of these dialogs, of the first few."""
    entries = together([read_history(path, may_be_open=True) for path in sorted(histories.glob("*.history"))])
    return [line for one in sorted(conversations)[:SHOWN] for line in _lines(fleet, one, entries)]


def _lines(fleet: Fleet, conversation: str, entries: Collection[Entry]) -> Iterator[str]:
    yield f"stuck: dialog {conversation}, clock {time.time():.1f}"
    key = uuid.UUID(conversation).hex
    for home in fleet.homes:
        yield from (f"  {home.name}: side {row}" for row in fleet.rows(home, _SIDES.format(key)))
        yield from (f"  {home.name}: tombstone {row}" for row in fleet.rows(home, _TOMBSTONES.format(key)))
    own = [entry for entry in entries if entry.event.conversation == conversation]
    for entry in own[:1] + own[1:][-LAST:]:
        event = entry.event
        yield f"  {entry.application}:{entry.line} {event.what} {event.number} {event.note} until {event.until:.1f}"
