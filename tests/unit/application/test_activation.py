"""What is known of a function that reads a queue: where it is, and where it runs."""

from __future__ import annotations

from functools import partial
from typing import Any

from broker.client.reader_worker import Activation


def handle(db: Any, messages: Any) -> Any:
    return db, messages


async def handle_later(db: Any, messages: Any) -> Any:
    return db, messages


def test_a_coroutine_function_is_known_by_itself() -> None:
    assert (False, True) == (Activation(handle, "Q").is_async, Activation(handle_later, "Q").is_async)


def test_logs_tell_where_the_function_is() -> None:
    assert Activation(handle, "Q").name.endswith("test_activation.handle")
    assert "partial" in Activation(partial(handle, None), "Q").name
