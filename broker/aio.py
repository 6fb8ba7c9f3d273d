"""
The application's side for asyncio: the same names as in `broker`, as awaitables.

```python
async with broker.aio.connect("billing.db") as db:
    async with db:  # one transaction
        for message in await broker.aio.receive(db, queue="BillingQueue", wait=30):
            await message.dialog.send(b"ok")
            await db.execute("UPDATE bills SET state = 'sent'")
```

Calls run in the connection's own thread (`broker.client.async_connection`). To receive needs a transaction, so that a
task that is cancelled loses nothing: what it had received is there again. No dependency is needed.
"""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator, Awaitable, Iterable
from datetime import datetime, timedelta
from os import PathLike
from typing import Any, TypeAlias

from broker.client import dialog as application
from broker.client.arguments import check_dialog
from broker.client.async_connection import Connecting, Connection, check_awaited
from broker.client.body import Body, Headers, LargeBody, joined
from broker.client.receiving import Received, getting_group, receiving
from broker.client.sending import Item
from broker.conversation.message_types import DEFAULT, DEFAULT_LIFETIME
from broker.conversation.state import ConversationState
from broker.store.sqlite.failure import ATTEMPTS

__all__ = [
    "Connection",
    "Dialog",
    "Message",
    "begin_dialog",
    "connect",
    "get_conversation_group",
    "get_dialog",
    "move_conversation",
    "receive",
    "send",
]

PIECE_BYTES = 256 * 1024  # of a large body, read in one call


def connect(path: str | PathLike[str], **options: Any) -> Connecting:
    """
    Connect to a database of the broker, with `async with`, or with `await` and `close`.

    Args:
        path: Path of the file.
        options: Options of `sqlite3.connect`: timeout, detect_types, factory, cached_statements, uri.

    Raises:
        StoreUnavailableError: the file cannot be opened.
    """
    return Connecting(path, options)


class Dialog:
    """One side of a dialog: the calls and properties of `broker.Dialog`, to be awaited."""

    __slots__ = ("_db", "_dialog")

    def __init__(self, db: Connection, dialog: application.Dialog) -> None:
        self._db = db
        self._dialog = dialog

    def __repr__(self) -> str:
        return repr(self._dialog)

    @property
    def conversation_handle(self) -> uuid.UUID:
        """GUID of this side, known without `await`."""
        return self._dialog.conversation_handle

    @property
    def conversation_id(self) -> uuid.UUID:
        """GUID that both sides have in common, known without `await`."""
        return self._dialog.conversation_id

    @property
    def state(self) -> Awaitable[ConversationState]:
        """State of this side."""
        return self._db.run(lambda: self._dialog.state)

    @property
    def conversation_group_id(self) -> Awaitable[uuid.UUID]:
        """Conversation group."""
        return self._db.run(lambda: self._dialog.conversation_group_id)

    @property
    def priority(self) -> Awaitable[int]:
        """Priority from 1 to 10."""
        return self._db.run(lambda: self._dialog.priority)

    @property
    def lifetime(self) -> Awaitable[datetime]:
        """Time (UTC) when the dialog fails at this side."""
        return self._db.run(lambda: self._dialog.lifetime)

    @property
    def far_broker_instance(self) -> Awaitable[uuid.UUID | None]:
        """GUID of the far database; None while any may answer."""
        return self._db.run(lambda: self._dialog.far_broker_instance)

    @property
    def transmission_status(self) -> Awaitable[str]:
        """Reason why sent messages are not acknowledged yet."""
        return self._db.run(lambda: self._dialog.transmission_status)

    async def send(
        self,
        body: Body,
        *,
        type: str = DEFAULT,  # noqa: A002 - the original's word
        headers: Headers | None = None,
    ) -> int:
        """SEND ON CONVERSATION, as `broker.Dialog.send`. A file or iterable is read in the connection's thread."""
        return await self._db.run(self._dialog.send, body, type=type, headers=joined(headers))

    async def send_many(
        self,
        bodies: Iterable[Item],
        *,
        type: str = DEFAULT,  # noqa: A002 - the original's word
        headers: Headers | None = None,
    ) -> range:
        """SEND for many messages in one pass, as `broker.Dialog.send_many`."""
        return await self._db.run(self._dialog.send_many, bodies, type=type, headers=joined(headers))

    async def end(self, *, error: int | None = None, description: str = "", cleanup: bool = False) -> None:
        """END CONVERSATION, as `broker.Dialog.end`."""
        await self._db.run(self._dialog.end, error=error, description=description, cleanup=cleanup)

    async def set_timer(self, seconds: float | timedelta) -> None:
        """BEGIN CONVERSATION TIMER, as `broker.Dialog.set_timer`."""
        await self._db.run(self._dialog.set_timer, seconds)

    async def cancel_timer(self) -> None:
        """End a conversation timer that has not fired."""
        await self._db.run(self._dialog.cancel_timer)


class Message(Received):
    """
    One received message.

    Attributes:
        dialog: The dialog on which to answer.
    """

    __slots__ = ("_db", "dialog")
    dialog: Dialog

    def __init__(self, db: Connection, row: tuple[Any, ...], large: LargeBody | None, dialog: Dialog) -> None:
        super().__init__(row, large)
        self._db = db
        self.dialog = dialog

    @property
    def body(self) -> bytes:
        """The body. Raises ValueError if `is_large`: await `read` then."""
        if self._large is not None:
            raise ValueError("the body is a large one: await read() it, or go through its pieces()")
        body: bytes = self._row[4]
        return body

    async def read(self) -> bytes:
        """Return the whole body. Raises ValueError if `is_large` and the transaction is over."""
        return b"".join([piece async for piece in self.pieces()])

    async def pieces(self) -> AsyncIterator[bytes]:
        """Iterate over the body in pieces, in bounded memory, until the transaction ends. Raises as `read`."""
        if self._large is None:
            yield self.body
            return
        file = await self._db.run(self._large.open)
        while piece := await self._db.run(file.read, PIECE_BYTES):
            yield piece


Related: TypeAlias = Dialog | uuid.UUID | str
"""A dialog, or its conversation handle."""


async def begin_dialog(
    db: Connection,
    *,
    from_service: str,
    to_service: str,
    contract: str = DEFAULT,
    broker_instance: uuid.UUID | str | None = None,
    lifetime: float | timedelta = DEFAULT_LIFETIME,
    related_conversation: Related | None = None,
    related_conversation_group: uuid.UUID | str | None = None,
    encryption: bool | None = None,
) -> Dialog:
    """BEGIN DIALOG CONVERSATION, as `broker.begin_dialog`."""
    check_awaited(db)
    dialog = await db.run(
        application.begin_dialog,
        db._db,  # noqa: SLF001 - this module is the other half of the connection
        from_service=from_service,
        to_service=to_service,
        contract=contract,
        broker_instance=broker_instance,
        lifetime=lifetime,
        related_conversation=_handle(related_conversation),
        related_conversation_group=related_conversation_group,
        encryption=encryption,
    )
    return Dialog(db, dialog)


async def get_dialog(db: Connection, conversation_handle: uuid.UUID | str) -> Dialog:
    """Find the dialog of a conversation handle, as `broker.get_dialog`."""
    check_awaited(db)
    return Dialog(db, await db.run(application.get_dialog, db._db, conversation_handle))  # noqa: SLF001 - likewise


async def send(
    dialogs: Iterable[Dialog],
    body: Body,
    *,
    type: str = DEFAULT,  # noqa: A002 - the original's word
    headers: Headers | None = None,
) -> list[int]:
    """SEND ON CONVERSATION (h1, h2, ...) for dialogs of one connection, as `broker.send`."""
    chosen = list(dialogs)
    for dialog in chosen:
        check_dialog(dialog, Dialog)
    if not chosen:
        return []
    plain = [dialog._dialog for dialog in chosen]  # noqa: SLF001 - of the class above
    db = chosen[0]._db  # noqa: SLF001 - likewise
    return await db.run(application.send, plain, body, type=type, headers=joined(headers))


async def receive(
    db: Connection,
    *,
    queue: str,
    top: int = 100,
    wait: float = 0.0,
    conversation: Related | None = None,
    conversation_group: uuid.UUID | str | None = None,
    poison: int = ATTEMPTS,
) -> list[Message]:
    """
    RECEIVE inside `async with db:`, with the arguments of `broker.receive`. While it waits, the file is not locked.

    Raises:
        ConversationError: 628 there is no transaction.
        BrokerError: as `broker.receive`.
    """
    check_awaited(db)
    handle = _handle(conversation)
    taken = await db.run_steps(
        lambda plain: receiving(plain, queue, top, wait, conversation=handle, group=conversation_group, poison=poison)
    )
    dialogs = {id(dialog): Dialog(db, dialog) for _, _, dialog in taken}
    return [Message(db, row, large, dialogs[id(dialog)]) for row, large, dialog in taken]


async def get_conversation_group(db: Connection, *, queue: str, wait: float = 0.0) -> uuid.UUID | None:
    """GET CONVERSATION GROUP inside `async with db:`, as `broker.get_conversation_group`."""
    check_awaited(db)
    found = await db.run_steps(lambda plain: getting_group(plain, queue, wait))
    return found[0] if found else None


async def move_conversation(dialog: Dialog, group: uuid.UUID | str) -> None:
    """MOVE CONVERSATION, as `broker.move_conversation`."""
    check_dialog(dialog, Dialog)
    await dialog._db.run(application.move_conversation, dialog._dialog, group)  # noqa: SLF001 - likewise


def _handle(related: Related | None) -> uuid.UUID | str | None:
    return related.conversation_handle if isinstance(related, Dialog) else related
