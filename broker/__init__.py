"""
A Service-Broker-style message router and forwarder: durable dialogs over stateless gateways.

The interface for applications: `begin_dialog`, `get_dialog`, `send`, `receive`, `get_conversation_group` and
`move_conversation` on their own SQLite connection, the same for asyncio in `broker.aio`, and `serve` to run an instance
in their event loop. Each name is imported when it is first asked for, so that importing this package costs next
to nothing, and an application or a command pays only for what it uses.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from broker.client.dialog import Dialog, begin_dialog, get_dialog, move_conversation, send
    from broker.client.reader_pool import Reader, Readers, reader, run_readers
    from broker.client.receiving import Message, get_conversation_group, receive
    from broker.daemon.instance import serve
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

_NAMES = {
    "broker.client.dialog": ("Dialog", "begin_dialog", "get_dialog", "move_conversation", "send"),
    "broker.client.reader_pool": ("Reader", "Readers", "reader", "run_readers"),
    "broker.client.receiving": ("Message", "get_conversation_group", "receive"),
    "broker.daemon.instance": ("serve",),
    "broker.errors": ("BrokerError", "ConversationError", "StoreBusyError", "StoreUnavailableError"),
}
_HOME = {name: module for module, names in _NAMES.items() for name in names}
_MODULES = frozenset({"aio", "errors"})  # reached as attributes, without importing them


def __getattr__(name: str) -> object:
    """The value of a name of `__all__`, imported at its first use."""
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
