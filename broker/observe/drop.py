"""
What was dropped, as rows of `sys.dm_broker_dispositions`: how many frames by reason, and the last one of each.

The counts are those of `broker_messages_dropped_total` and, beside them, of what came twice. A sample is the beginning
of the last such frame, so one can see which dialog, and which two services, a number is about.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from types import MappingProxyType

from broker.flow import Disposition
from broker.observe.dropped_counts import dropped_by_reason
from broker.observe.function import read_instant
from broker.observe.held import frame_values
from broker.observe.instance import Running
from broker.observe.view import DISPOSITIONS, MEMORY_VIEWS, make_row
from broker.protocol.frame import Header, encode_dialog
from broker.protocol.layout import MIN_DIALOG_FRAME

Row = tuple[object, ...]

_DISPOSITION = MEMORY_VIEWS[DISPOSITIONS].index("disposition")


def read_drops(instance: Running, at: datetime) -> list[Row]:
    """
    The rows of one instance, in the order of the reasons. On the loop.

    Args:
        instance: The daemon.
        at: When the loop's clock said 0.
    """
    elsewhere = dropped_by_reason(instance)
    rows: list[Row] = []
    for name, endpoint in instance.endpoints.items():
        elsewhere.subtract(endpoint.dropped)
        samples = {what: (when, _frame(header)) for what, (when, header) in endpoint.last_dropped.items()}
        rows += _rows(name, endpoint.dropped, samples, at)
    refusal = instance.peers.permissions.last_refusal
    rows += _rows(None, elsewhere, instance.forwarder.last_dropped, at, {Disposition.NOT_PERMITTED: refusal})
    return sorted(rows, key=lambda row: _ORDER[row[_DISPOSITION]])


def seconds_since(last_time: str | None, at: datetime) -> float | None:
    """How long before an instant the last frame was dropped, by `last_time` as views show it; None when none was."""
    return None if last_time is None else max(0.0, (at - read_instant(last_time)).total_seconds())


_ORDER: dict[object, int] = {disposition.value: place for place, disposition in enumerate(Disposition)}


def _rows(
    database: str | None,
    dropped: Mapping[Disposition, int],
    samples: Mapping[Disposition, tuple[float, bytes]],
    at: datetime,
    reasons: Mapping[Disposition, str] = MappingProxyType({}),
) -> list[Row]:
    return [
        _row(
            database,
            disposition,
            dropped[disposition],
            samples.get(disposition),
            at=at,
            reason=reasons.get(disposition),
        )
        for disposition in Disposition
        if dropped[disposition]
    ]


def _row(
    database: str | None,
    disposition: Disposition,
    frames: int,
    sample: tuple[float, bytes] | None,
    *,
    at: datetime,
    reason: str | None,
) -> Row:
    when, frame = (None, b"") if sample is None else (at + timedelta(seconds=sample[0]), sample[1])
    values = frame_values(frame) if len(frame) >= MIN_DIALOG_FRAME else {}
    return make_row(
        DISPOSITIONS,
        disposition=disposition.value,
        message_number=disposition.number or None,
        database_name=database,
        frames=frames,
        last_time=when,
        reason=reason or None,
        **values,
    )


def _frame(header: Header | None) -> bytes:
    return b"" if header is None else encode_dialog(header, b"")
