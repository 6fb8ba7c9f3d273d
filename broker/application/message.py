"""A received message: what is told of it, and its body."""

from __future__ import annotations

import io
import uuid
from datetime import UTC, datetime
from typing import Any

from broker.application.dialog import Dialog
from broker.application.header import context_of, headers_of
from broker.application.stream import LargeBody
from broker.conversation.message_types import DIALOG_TIMER, END_DIALOG, ERROR, error_parts

COLUMNS = (
    "m.queuing_order, m.endpoint_id, m.message_sequence_number, m.message_type_name, m.message_body,"
    " m.message_enqueue_time, m.body_fragments, c.conversation_handle, c.conversation_id, c.service_name, c.contract,"
    " c.conversation_group_id, c.priority, m.headers"
)


class Received:
    """
    What RECEIVE tells of a message; see the original's RECEIVE for the columns.

    Made from a row of COLUMNS, which is looked at only when it is asked for: most readers want few of its columns.
    """

    __slots__ = ("_large", "_row")

    def __init__(self, row: tuple[Any, ...], large: LargeBody | None) -> None:
        self._row = row
        self._large = large

    def __repr__(self) -> str:
        return f"<Message {self.message_sequence_number} {self.type!r} of {uuid.UUID(bytes=self._row[7])}>"

    @property
    def type(self) -> str:
        """Its message type name."""
        name: str = self._row[3]
        return name

    @property
    def message_sequence_number(self) -> int:
        """Its place in its conversation, from 0."""
        return int(self._row[2])

    @property
    def message_enqueue_time(self) -> datetime:
        """When it was stored here, UTC."""
        return datetime.fromtimestamp(self._row[5], UTC)

    @property
    def contract(self) -> str:
        """The contract of its conversation."""
        name: str = self._row[10]
        return name

    @property
    def service_name(self) -> str:
        """The service here to which it came."""
        name: str = self._row[9]
        return name

    @property
    def conversation_group_id(self) -> uuid.UUID:
        """The conversation group in which it was received."""
        return uuid.UUID(bytes=self._row[11])

    @property
    def priority(self) -> int:
        """That of its conversation, 1 .. 10."""
        return int(self._row[12])

    @property
    def headers(self) -> dict[str, str]:
        """What its sender sent beside the body; empty when that was nothing."""
        return headers_of(self._row[13])

    @property
    def trace_context(self) -> Any:
        """
        The context of the span that sent it, for `context=` of a span of OpenTelemetry.

        None when it carries none, or the API of OpenTelemetry is not installed.
        """
        return context_of(self.headers)

    @property
    def is_end(self) -> bool:
        """Whether the far side has ended the dialog."""
        return bool(self._row[3] == END_DIALOG)

    @property
    def is_error(self) -> bool:
        """Whether the dialog has failed; see `error_code` and `error_description`."""
        return bool(self._row[3] == ERROR)

    @property
    def is_timer(self) -> bool:
        """Whether the conversation timer of this side has fired."""
        return bool(self._row[3] == DIALOG_TIMER)

    @property
    def is_large(self) -> bool:
        """Whether its body is above 1 MiB, so that it is better read as a file."""
        return self._large is not None

    @property
    def error_code(self) -> int | None:
        """Of an Error message: positive codes are the far application's, negative ones the broker's; else None."""
        return self._error()[0]

    @property
    def error_description(self) -> str:
        """Of an Error message, what is said beside the code; else empty."""
        return self._error()[1]

    def _error(self) -> tuple[int | None, str]:
        """Of a small body; an error in fragments is none of the documented ones."""
        return error_parts(self._row[4] or b"") if self.is_error else (None, "")


class Message(Received):
    """One received message, and the dialog on which to answer it."""

    __slots__ = ("dialog",)

    def __init__(self, row: tuple[Any, ...], large: LargeBody | None, dialog: Dialog) -> None:
        super().__init__(row, large)
        self.dialog = dialog

    @property
    def body(self) -> bytes:
        """All of its body. Raises: ValueError, it is a large one and the transaction is over."""
        if self._large is not None:
            return self._large.open().read()
        body: bytes = self._row[4]
        return body

    @property
    def body_length(self) -> int:
        """Bytes of its body, which is not read for that. Raises: as `body`."""
        return len(self._row[4]) if self._large is None else self._large.length()

    def open(self) -> io.BufferedIOBase:
        """Its body as a binary file, in bounded memory, until the transaction ends. Raises: as `body`."""
        return io.BytesIO(self._row[4]) if self._large is None else self._large.open()
