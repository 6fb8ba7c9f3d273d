"""What an instance runs by, key by key, as `GET /v1/config` tells it."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec import Meta

from broker.control.config import Settings
from broker.control.origin import in_force


class SettingInForce(msgspec.Struct, frozen=True):
    """One key."""

    key: Annotated[str, Meta(description="As in the reference: endpoint.max_hops.")]
    value: Annotated[Any, Meta(description="As one writes it in the file; null where it is made once and kept.")]
    origin: Annotated[str, Meta(description="default, FILE:LINE:COLUMN, the name of a variable, or flag.")]
    reload: Annotated[str, Meta(description="What makes a change count: live, reconnect or restart.")]


class ConfigAnswer(msgspec.Struct, frozen=True):
    """Every key, in the order of the reference; arguments of programs are masked."""

    settings: list[SettingInForce]


def config_answer(settings: Settings) -> ConfigAnswer:
    """These settings, as values."""
    return ConfigAnswer([SettingInForce(one.key, one.value, one.origin, one.reload) for one in in_force(settings)])
