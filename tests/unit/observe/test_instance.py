from __future__ import annotations

from typing import Any

from broker.observe.instance import Running


async def test_running_instance_has_what_is_asked_of_it(start: Any) -> None:
    instance = await start("near")
    asked: Running = instance

    assert ("near", True, ["near"], 1) == (
        asked.name,
        asked.is_ready,
        list(asked.endpoints),
        len(asked.listeners),
    )
