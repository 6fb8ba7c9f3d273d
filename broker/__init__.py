"""
A Service-Broker-style message router and forwarder: durable dialogs over stateless gateways.

What applications use is here: `begin_dialog`, `get_dialog`, `send`, `receive`, `get_conversation_group` and
`move_conversation` on their own SQLite connection, the same for asyncio in `broker.aio`, and `serve` to run an instance
inside their own event loop. Each name is imported when it is first asked for, so that importing this package costs next
to nothing, and an application or a command pays only for what it uses.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from broker.application.dialog import Dialog, begin_dialog, get_dialog, move_conversation, send
    from broker.application.message import Message
    from broker.application.reader import Reader, Readers, reader, run_readers
    from broker.application.receiving import get_conversation_group, receive
    from broker.daemon import serve
    from broker.errors import BrokerError, ConversationError, StoreBusyError, StoreUnavailableError

__all__ = [
    "BrokerError",
    "ConversationError",
    "Dialog",
    "Message",
    "Reader",
    "Readers",
    "StoreBusyError",
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

_HOME = {
    "Dialog": "broker.application.dialog",
    "begin_dialog": "broker.application.dialog",
    "get_dialog": "broker.application.dialog",
    "move_conversation": "broker.application.dialog",
    "send": "broker.application.dialog",
    "Message": "broker.application.message",
    "Reader": "broker.application.reader",
    "Readers": "broker.application.reader",
    "reader": "broker.application.reader",
    "get_conversation_group": "broker.application.receiving",
    "receive": "broker.application.receiving",
    "run_readers": "broker.application.reader",
    "serve": "broker.daemon",
    "BrokerError": "broker.errors",
    "ConversationError": "broker.errors",
    "StoreBusyError": "broker.errors",
    "StoreUnavailableError": "broker.errors",
}
_MODULES = frozenset({"aio", "errors"})  # reached as attributes, without an import of their own


def __getattr__(name: str) -> object:
    """The value behind a name of `__all__`, which then stays."""
    if name in _MODULES:
        return import_module(f"broker.{name}")
    home = _HOME.get(name)
    if home is None:
        raise AttributeError(f"module 'broker' has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(home), name)
    return value


def __dir__() -> list[str]:
    """The public names too, before they are imported."""
    return sorted({*globals(), *__all__})
