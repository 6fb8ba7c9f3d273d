"""The log is told why frames are refused, once a minute for each kind."""

import structlog

from broker.dialog.arrivals import TELL_SECONDS, Refusals
from broker.flow import Disposition


def told(refusals: Refusals, disposition: Disposition, now: float) -> list[object]:
    with structlog.testing.capture_logs() as logs:
        refusals.tell({disposition: "because"}, now)
    return [(line["event"], line["database"], line["number"], line["reason"]) for line in logs]


def test_one_line_of_each_kind_and_minute() -> None:
    refusals = Refusals("orders")
    broken = [("frame refused", "orders", 11230, "because")]

    assert broken == told(refusals, Disposition.SEAL_BROKEN, 0.0)
    assert [] == told(refusals, Disposition.SEAL_BROKEN, TELL_SECONDS - 1)
    assert [("frame refused", "orders", 11232, "because")] == told(refusals, Disposition.NOT_SEALED, 1.0)
    assert broken == told(refusals, Disposition.SEAL_BROKEN, TELL_SECONDS)
