"""Sealed frames for tests, and the test vectors of docs/protocol.md."""

import itertools
import re
from pathlib import Path

from broker.conversation.frames import Contact, Fragment, Seal, Travel, message_frame
from broker.protocol.layout import Flag
from broker.security.secured import Secured
from broker.security.session import DialogCredentials, Sealer

PAGE = Path(__file__).parents[2] / "docs" / "protocol.md"
ORDERS, BILLING = "//shop/Orders", "//shop/Billing"
HERE, THERE = b"o" * 16, b"b" * 16
CONVERSATION = b"c" * 16
NOW = 1_800_000_000.0

_ids = itertools.count(1)
_counter = itertools.count(1)


def _vectors() -> dict[str, bytes]:
    block = re.search(r"```vectors\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    assert block is not None, "no vectors on the page"
    parts = re.findall(r"^(\S[^\n]*):\n((?: {4}[0-9a-f]+\n)+)", block[1], re.MULTILINE)
    return {name: bytes.fromhex("".join(digits.split())) for name, digits in parts}


VECTORS = _vectors()


def draw(size: int) -> bytes:
    """Bytes that are different each time, and the same in each run."""
    return next(_counter).to_bytes(size, "little")


def initiator(secured: Secured | None, conversation: bytes = CONVERSATION) -> Contact:
    """The side that began."""
    return Contact(conversation, True, ORDERS, HERE, BILLING, secured=secured)


def target(secured: Secured | None) -> Contact:
    """The side that answers."""
    return Contact(CONVERSATION, False, BILLING, THERE, ORDERS, HERE, secured)


def sealer(contact: Contact, credentials: DialogCredentials) -> Sealer:
    """Who seals what a side sends."""
    assert contact.secured is not None
    return Sealer(contact.secured, contact.direction(), credentials, draw)


def sealed(contact: Contact, by: Sealer, body: bytes = b"text", *, now: float = NOW, again: bool = False) -> bytes:
    """A message of one fragment."""
    fragment = Fragment((0, 0), Flag.LAST_FRAGMENT, body, (0, 0))
    return message_frame(contact, Travel(), next(_ids).to_bytes(16, "big"), fragment, Seal(by, now, again))
