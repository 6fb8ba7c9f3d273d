"""
A Service-Broker-style message router and forwarder: durable dialogs over stateless gateways.

What applications use is here: `begin_dialog`, `receive`, `get_dialog` on their own SQLite connection, and `serve` to
run an instance inside their own event loop. The daemon is loaded only when `serve` is asked for, so that importing
this package stays cheap for an application and for every command.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from broker.dialog.application import Dialog, Message, begin_dialog, get_dialog, receive
from broker.errors import BrokerError, ConversationError, StoreUnavailableError

if TYPE_CHECKING:
    from broker.daemon import serve

__all__ = [
    "BrokerError",
    "ConversationError",
    "Dialog",
    "Message",
    "StoreUnavailableError",
    "begin_dialog",
    "get_dialog",
    "receive",
    "serve",
]


def __getattr__(name: str) -> object:
    if name == "serve":
        from broker.daemon import serve  # noqa: PLC0415 - see the docstring

        return serve
    raise AttributeError(f"module 'broker' has no attribute {name!r}")
