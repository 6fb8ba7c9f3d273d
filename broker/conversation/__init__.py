"""
The rules of a conversation: states, places, windows, names. Pure.

`body_check` is an attribute that is imported when it is first asked for: an application whose contracts declare no
message types checks no body, few read an Error message, and the parsers take longer to import than all else that it
needs.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from broker.conversation import body_check

__all__ = ["body_check"]


def __getattr__(name: str) -> object:
    """The module of this name."""
    if name != "body_check":
        raise AttributeError(f"module 'broker.conversation' has no attribute {name!r}")
    return import_module("broker.conversation.body_check")
