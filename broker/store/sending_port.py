"""Part of `broker.store.sending`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from broker.conversation.frames import Contact, Place
from broker.conversation.outbound import Outgoing


@dataclass(frozen=True, slots=True)
class PendingDialog:
    """
    A dialog that has something to send.

    Shape: `stored` next place expected from the far side; `priority` 1 .. 10; `status` what the file says of it.
    """

    endpoint_id: int
    contact: Contact
    first_sequence: int
    stored: Place
    priority: int = 5
    status: str | None = None


@dataclass(frozen=True, slots=True)
class Want:
    """
    What to load.

    Shape: from `place` on, at most `fragments`, and no more than `max_bytes` of bodies, the first one excepted.
    """

    endpoint_id: int
    place: Place
    fragments: int
    max_bytes: int


class LoadedFragments(NamedTuple):
    """What was loaded for a want. Shape: `is_all` when nothing waits behind the fragments."""

    want: Want
    fragments: list[Outgoing]
    is_all: bool
