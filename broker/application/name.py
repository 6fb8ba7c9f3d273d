"""Names and GUIDs as applications give them, checked."""

from __future__ import annotations

import uuid

from broker.errors import ConversationError
from broker.protocol.layout import NAME_MAX_BYTES


def guid_of(text: uuid.UUID | str) -> uuid.UUID:
    """
    A GUID however it is written.

    Raises:
        ConversationError: 8413, this is none.
    """
    if isinstance(text, uuid.UUID):
        return text
    try:
        return uuid.UUID(text)
    except (ValueError, AttributeError, TypeError):
        raise ConversationError(8413, f"{text!r} is no GUID") from None


def check_text(text: object, what: str, number: int = 8412) -> int:
    """
    See that this is text that can be written as UTF-8.

    Returns:
        Its bytes as UTF-8.

    Raises:
        ConversationError: with this number, it is not.
    """
    if not isinstance(text, str):
        raise ConversationError(number, f"{what} has to be text, not {text!r}")
    try:
        return len(text.encode())
    except UnicodeEncodeError:
        raise ConversationError(number, f"{what} {text!r:.80} cannot be written as UTF-8") from None


def check_name(name: str, whose: str) -> None:
    """
    See that a name fits on the wire.

    Raises:
        ConversationError: 8412, it does not have 1 .. 512 bytes of UTF-8.
    """
    if not 1 <= check_text(name, f"the {whose}'s name") <= NAME_MAX_BYTES:
        raise ConversationError(8412, f"the {whose}'s name {name!r} does not have 1 .. {NAME_MAX_BYTES} bytes")
