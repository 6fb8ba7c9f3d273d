"""What `broker top` shows of a snapshot, on any terminal."""

from __future__ import annotations

from typing import Any

import pytest
from rich.cells import cell_len

from broker.cli.top_screen import PANELS, Look, page, screen

HOSTILE = "a\x1b[2J" + "x" * 300
PEER = {
    "name": "gateway-b",
    "address": "tcp://b:4022",
    "direction": "out",
    "state": "LOGGED IN",
    "flow": "flowing",
    "flow_reason": "",
    "last_progress": "2026-11-22T11:59:59.000+00:00",
    "round_trip_ms": 1.5,
    "principal": "",
    "slowed_by": "",
    "gone_s": None,
    "frames_received_s": 12.0,
    "bytes_received_s": 2048.0,
    "bytes_sent_s": 0.0,
}
DROP = {
    "reason": "no route",
    "number": 9750,
    "database": None,
    "frames": 7,
    "frames_s": 2.0,
    "last_time": "2026-11-22 11:59:58.000",
    "detail": None,
    "do": "CREATE ROUTE",
    "to_service_name": "//shop/Nobody",
    "conversation_id": "5B0F",
    "message_id": None,
}
DATABASE = {
    "name": "orders",
    "problem": "",
    "role": None,
    "sent_s": 1.0,
    "acknowledged_s": 1.0,
    "delivered_s": 0.0,
    "waiting_messages": 3,
    "oldest_waiting_s": 75.0,
    "quarantined": 1,
    "ledger": "3 sent = 3 held",
    "queues": [{"name": "OrdersQueue", "ready": 4, "quarantined": 0, "oldest_s": 2.0, "is_receive_enabled": False}],
}


def fold(*rows: dict[str, Any], hidden: int = 0) -> dict[str, Any]:
    return {"count": len(rows) + hidden, "rows": list(rows), "folded": {"count": hidden}}


def pulse(**changes: Any) -> dict[str, Any]:
    return {
        "at": "2026-11-22T12:00:01.123+00:00",
        "verdict": {"level": "good", "sentence": "All is well: one connection", "findings": [], "more": 0},
        "instance": {"name": "gateway-a", "state": "ready", "uptime_s": 7200.0},
        "totals": {"sent": 0},
        "rates": {
            "received": 1234.0, "forwarded": 1200.0, "delivered": 0.0, "dropped": 2.0, "sent": 1.0,
            "acknowledged": None, "bytes_received": 1024.0, "bytes_sent": None,
        },
        "pool": {"frames": 12, "bytes": 1024, "limit_bytes": 4096},
        "latency": {"loop_lag_s": 0.001},
        "ledger": {"sentence": "9 frames in = 9 forwarded", "unaccounted": 0},
        "peers": fold(), "next_hops": fold(), "routes": fold(), "waiting": fold(), "drops": fold(), "mirrors": [],
        "databases": fold(), "draining": None,
    } | changes  # fmt: skip


FULL = pulse(
    peers=fold(PEER, PEER | {"name": HOSTILE, "gone_s": 3.0}, hidden=5),
    next_hops=fold(
        {"address": "tcp://b:4022", "health": "connected", "problem": "", "held": 0, "held_bytes": 0, "frames_s": 3}
    ),
    routes=fold({"route": "ToBilling", "next_hop": "tcp://b:4022", "frames": 9, "frames_s": 3.0}),
    waiting=fold(
        {
            "at": "next hop",
            "name": "tcp://c:4022",
            "messages": 12,
            "bytes": 900,
            "oldest_s": 4.0,
            "why": "no connection: refused",
            "next": "tried again in 3 s",
        }
    ),
    drops=fold(DROP),
    databases=fold(DATABASE),
    mirrors=[
        {
            "route": "Pair",
            "service": "//s",
            "state": "NOT_OPERATIONAL",
            "principal": None,
            "epoch": 2,
            "held": 4,
            "alarm": "",
        }
    ],
)


def shown(told: dict[str, Any] | None, look: Look | None = None, *, width: int = 80, height: int = 24) -> list[str]:
    return [line.plain for line in screen(told, look or Look(), width=width, height=height)]


def whole(told: dict[str, Any]) -> str:
    return "\n".join(line.plain for line in page(told, Look(), width=160))


def test_the_head_tells_who_whether_all_is_well_what_moves_and_as_of_when() -> None:
    assert [
        "gateway-a  READY  up 2 h  as of 2026-11-22 12:00:01 UTC",
        "GOOD: All is well: one connection",
        "frames  in 1,234/s  out 1,200/s  delivered 0/s  dropped 2.0/s  (1.0 KiB/s in, -…",
        "held    12 frames, 1.0 KiB of 4.0 KiB (25 %)  loop 1.0 ms late",
        "ledger  9 frames in = 9 forwarded",
    ] == shown(pulse())[:5]


@pytest.mark.parametrize(
    "expected",
    [
        "gateway-b",
        "and 5 more",
        "ToBilling",
        "no connection: refused",
        "tried again in 3 s",
        "no route",
        "CREATE ROUTE; broker why 5B0F",
        "Database",
        "OrdersQueue",
        "OFF",
        "NOT_OPERATIONAL",
        "dialogs sent 1.0/s  acknowledged -/s",
    ],
)
def test_every_part_of_a_snapshot_is_told(expected: str) -> None:
    assert expected in whole(FULL)


@pytest.mark.parametrize("panel", PANELS)
def test_a_panel_is_shown_when_it_is_chosen(panel: str) -> None:
    lines = shown(FULL, Look(panel=panel))

    assert any(f" {panel}]" in line for line in lines)
    assert 24 == len(lines)


@pytest.mark.parametrize("panel", PANELS)
@pytest.mark.parametrize(("width", "height"), [(80, 24), (40, 10), (20, 5), (200, 60)])
def test_nothing_is_wider_or_higher_than_the_terminal(panel: str, width: int, height: int) -> None:
    lines = shown(FULL, Look(panel=panel), width=width, height=height)

    assert height >= len(lines)
    assert [] == [line for line in lines if cell_len(line) > width]


@pytest.mark.parametrize("panel", PANELS)
def test_what_a_terminal_would_obey_is_written_out(panel: str) -> None:
    assert [] == [line for line in shown(FULL, Look(panel=panel), width=200) if not line.isprintable()]


def test_every_word_is_there_without_colour() -> None:
    """A style repeats what a word says: where there is one, the line has a word for it."""
    findings = [{"level": "bad", "about": "x", "what": "the disk is full", "do": "make room"}]
    told = pulse(verdict={"level": "bad", "sentence": "Something is wrong: the disk is full", "findings": findings})

    lines = shown(told)

    assert "BAD: Something is wrong: the disk is full" in lines
    assert "! the disk is full: make room" in lines


@pytest.mark.parametrize(
    ("look", "expected"),
    [
        (Look(age_s=6.0), "NO NEWS for 6.0 s; what follows is old, and this goes on by itself"),
        (
            Look(age_s=1.0, problem="refused"),
            "NO NEWS for 1.0 s: refused; what follows is old, and this goes on by itself",
        ),
        (Look(is_paused=True), "gateway-a  READY  up 2 h  as of 2026-11-22 12:00:01 UTC  PAUSED"),
    ],
    ids=["silent", "gone", "paused"],
)
def test_what_is_old_is_told_to_be(look: Look, expected: str) -> None:
    assert expected in shown(pulse(), look)


def test_a_paused_screen_is_old_and_that_is_no_news() -> None:
    assert [] == [line for line in shown(pulse(), Look(is_paused=True, age_s=60.0)) if "NO NEWS" in line]


def test_draining_is_told() -> None:
    assert "DRAINING: 3 peers left" in shown(pulse(draining={"sentence": "3 peers left"}))


@pytest.mark.parametrize(
    ("look", "expected"),
    [(Look(), "waiting for the first snapshot"), (Look(problem="refused"), "no answer yet: refused")],
)
def test_before_the_first_snapshot_it_says_so(look: Look, expected: str) -> None:
    assert expected == shown(None, look)[0]


def test_a_panel_is_scrolled_to_its_end_and_not_further() -> None:
    rows = [PEER | {"name": f"peer-{number:02}"} for number in range(30)]
    told = pulse(peers=fold(*rows))

    top, bottom = (shown(told, Look(panel="links", offset=offset)) for offset in (0, 10_000))

    assert ("peer-00", "peer-29") == (
        next(line.split()[1] for line in top if "peer-" in line),
        [line.split()[1] for line in bottom if "peer-" in line][-1],
    )
    assert "more lines below" in top[-1]
    assert "more lines below" not in bottom[-1]


def test_what_is_unaccounted_for_stands_out() -> None:
    told = pulse(ledger={"sentence": "1 frames in = 0 forwarded + 1 UNACCOUNTED", "unaccounted": 1})

    [line] = [line for line in screen(told, Look(), width=80, height=24) if line.plain.startswith("ledger")]

    assert ("bold red", True) == (str(line.style), "UNACCOUNTED" in line.plain)
