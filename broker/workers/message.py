"""
What a supervisor asks its workers, and what a worker tells of itself.

A question travels as MessagePack with a number, and so does its answer; a worker asks nothing. What comes from a worker
is data of known types only, because a worker reads what strangers send. The one exception goes the other way: a worker
takes its settings from the process that started it as they are (pickled).
"""

from __future__ import annotations

import pickle
from typing import Any, TypeAlias

import msgspec

from broker.control.config import Settings
from broker.observe.label import Labels
from broker.observe.logs import LogLevel
from broker.routing.address import NetworkAddress
from broker.routing.route import MirroredPair


class Begin(msgspec.Struct, frozen=True, tag="begin"):
    """Start to serve. Shape: `settings` pickled, its ports bound by the supervisor; `broker_instance` 16 bytes."""

    settings: bytes
    broker_instance: bytes


class Load(msgspec.Struct, frozen=True, tag="load"):
    """Read the routes of msdb anew, and decide by them."""


class Report(msgspec.Struct, frozen=True, tag="report"):
    """Tell everything but rows and what passed."""


class Rows(msgspec.Struct, frozen=True, tag="rows"):
    """The rows of a view that lives in memory."""

    view: str


class Passed(msgspec.Struct, frozen=True, tag="passed"):
    """What passed through lately."""


class Levels(msgspec.Struct, frozen=True, tag="levels"):
    """Another level of the log for a time, as `broker.observe.log_level`."""

    component: str
    level: LogLevel | None
    seconds: float


class Prepare(msgspec.Struct, frozen=True, tag="prepare"):
    """Make ready for other settings, pickled as those of `Begin`; nothing changes yet."""

    settings: bytes


class Adopt(msgspec.Struct, frozen=True, tag="adopt"):
    """Live by the settings that were prepared."""


class Abandon(msgspec.Struct, frozen=True, tag="abandon"):
    """The settings that were prepared, if any, will not hold."""


class Leave(msgspec.Struct, frozen=True, tag="leave"):
    """Begin to leave, within so many seconds; the answer comes when that has begun."""

    seconds: float


class Remains(msgspec.Struct, frozen=True, tag="remains"):
    """Tell what has not left yet."""


Question: TypeAlias = Begin | Load | Report | Rows | Passed | Levels | Prepare | Adopt | Abandon | Leave | Remains


class Asked(msgspec.Struct, frozen=True):
    """A question under its number."""

    number: int
    question: Question


class Answered(msgspec.Struct, frozen=True):
    """The answer under the number of its question. Shape: `problem` why there is none; empty when there is one."""

    number: int
    answer: msgspec.Raw = msgspec.Raw(b"\xc0")
    problem: str = ""


class Reached(msgspec.Struct, frozen=True):
    """What a worker knows of an address. Shape: `health` the name of a `Health`; `problem` empty when there is none."""

    address: NetworkAddress
    health: str
    problem: str


class PairKnown(msgspec.Struct, frozen=True):
    """What a worker knows of a mirrored pair. Shape: `principal` None while it knows none; `told` in words."""

    pair: MirroredPair
    principal: NetworkAddress | None
    epoch: int
    told: str


class WorkerReport(msgspec.Struct, frozen=True):
    """
    What one worker tells of itself.

    Shape: `status` as of `read_status`, `samples` as of `read_metrics`; `down` addresses that it does not reach;
    `reached` what it knows of addresses; `addresses` as it tells its peers; `own` those that lead back to the gateway;
    `pairs` what it knows of mirrored pairs.
    """

    status: dict[str, Any]
    samples: dict[str, list[tuple[Labels, float]]]
    down: list[NetworkAddress]
    reached: list[Reached]
    addresses: list[str]
    own: list[NetworkAddress]
    pairs: list[PairKnown]


def pack_settings(settings: Settings) -> bytes:
    """Settings as they are, for `unpack_settings` in a process of the same program."""
    return pickle.dumps(settings)


def unpack_settings(packed: bytes) -> Settings:
    """
    The settings that the process which started this one has packed.

    Raises:
        TypeError: it is something else.
    """
    settings = pickle.loads(packed)  # noqa: S301 - of the process that started this one, which could do anything anyway
    if not isinstance(settings, Settings):
        raise TypeError(f"{type(settings).__name__} instead of settings")
    return settings
