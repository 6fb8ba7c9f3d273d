"""
Observability: logs, metrics, system views, status, events and diagnosis.

`tsql` is an attribute that is imported when it is first asked for, with the first SELECT: sqlglot takes 9 MB.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from broker.observe import tsql

__all__ = ["tsql"]


def __getattr__(name: str) -> object:
    """The module of this name."""
    if name != "tsql":
        raise AttributeError(f"module 'broker.observe' has no attribute {name!r}")
    return import_module("broker.observe.tsql")
