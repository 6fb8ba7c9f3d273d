"""
The store on SQLite: one file for each database.

`write_lock` is an attribute that is imported when it is first asked for: an application that waits for no other writer
needs neither it nor `logging`, which takes longer to import than the module of any call.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from broker.store.sqlite import write_lock

__all__ = ["write_lock"]


def __getattr__(name: str) -> object:
    """The module of this name."""
    if name != "write_lock":
        raise AttributeError(f"module 'broker.store.sqlite' has no attribute {name!r}")
    return import_module("broker.store.sqlite.write_lock")
