"""
A Service-Broker-style message router and forwarder: durable dialogs over stateless gateways.

What applications use is here: `begin_dialog`, `get_dialog`, `send`, `receive`, `get_conversation_group` and
`move_conversation` on their own SQLite connection, the same for asyncio in `broker.aio`, and `serve` to run an instance
inside their own event loop. The daemon is loaded only when `serve` is asked for, so that importing
this package stays cheap for an application and for every command.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from broker.application.dialog import Dialog, begin_dialog, get_dialog, move_conversation, send
from broker.application.message import Message
from broker.application.reader import Reader, Readers, reader
from broker.application.receiving import get_conversation_group, receive
from broker.errors import BrokerError, ConversationError, StoreUnavailableError

if TYPE_CHECKING:
    from broker.application.runner import run_readers
    from broker.daemon import serve

__all__ = [
    "BrokerError",
    "ConversationError",
    "Dialog",
    "Message",
    "Reader",
    "Readers",
    "StoreUnavailableError",
    "begin_dialog",
    "get_conversation_group",
    "get_dialog",
    "move_conversation",
    "reader",
    "receive",
    "run_readers",
    "send",
    "serve",
]


def __getattr__(name: str) -> object:
    if name == "serve":
        from broker.daemon import serve  # noqa: PLC0415 - see the docstring

        return serve
    if name == "run_readers":
        from broker.application.runner import run_readers  # noqa: PLC0415 - likewise

        return run_readers
    raise AttributeError(f"module 'broker' has no attribute {name!r}")
