"""The benchmarks of load on real daemons, as short as can be: what they count is right, whatever it takes."""

from collections.abc import Iterator

import pytest

from bench.dialogs import Ends, ends
from bench.figures import Row
from bench.generator import compiler
from bench.scenarios import connections, day, open_dialogs, overload, saturation

pytestmark = pytest.mark.skipif(compiler() is None, reason="this machine has no C compiler")


@pytest.fixture(scope="module")
def net() -> Iterator[Ends]:
    """Two databases with a gateway between them, for all that needs no more."""
    with ends() as made:
        yield made


def values(rows: list[Row], mode: str) -> dict[str, dict[str, float]]:
    """Of the rows of one mode, by subject."""
    return {row.subject: row.values for row in rows if row.mode == mode}


@pytest.mark.timeout(240)
def test_what_is_offered_to_dialogs_is_stepped_up_until_it_is_too_much(
    net: Ends, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(saturation, "DIALOG_START", 100.0)
    monkeypatch.setattr(saturation, "YARDSTICK_ROWS", 100)

    *steps, knee, plain = saturation.dialog_rows(net, saturation.Scale(0.1, 0.5, 0, dialog_limit=5.0, attempts=2))

    held = [row.values["offered_s"] for row in steps if row.values["in_time_pct"] >= 99]
    assert (max(held), 2 * max(held)) == (knee.figure, steps[-1].values["offered_s"])
    assert knee.values["p50_us"] <= knee.values["p99_us"] <= 5e6
    assert (False, True) == (knee.is_yardstick, plain.is_yardstick)


@pytest.mark.timeout(240)
def test_open_dialogs_are_begun_used_kept_over_restarts_and_ended(net: Ends, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(open_dialogs, "NEW_DIALOGS", 3)
    monkeypatch.setattr(open_dialogs, "SETTLE_SECONDS", 0.1)

    rows = open_dialogs.phases_of(net, open_dialogs.Scale(dialogs=60, idle_seconds=0.1))

    told = values(rows, "phases")
    assert [
        "nothing open",
        "begun, a message in each",
        "idle",
        "one more message in each",
        "3 new dialogs, one after the other",
        "restart of the sender",
        "restart of the target",
        "one more message in each, restarted",
        "ended by both sides",
    ] == list(told)
    assert all(one["sender_mib"] > 0 and one["target_db_mib"] > 0 for one in told.values())
    assert 0 < told["3 new dialogs, one after the other"]["p50_ms"]
    assert all(0 <= one["resent"] <= 10 * 60 for subject, one in told.items() if "messages_s" in one)


@pytest.mark.timeout(240)
def test_what_is_too_much_for_a_gateway_is_all_accounted_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """It raises when something admitted neither arrives nor is told as dropped."""
    monkeypatch.setattr(overload, "IN_TIME", 0.0)
    monkeypatch.setattr(overload, "NEAR", 1e6)  # neighbours decide how long a message takes
    monkeypatch.setattr(overload, "PATIENCE", 120.0)

    rows = overload.measure(seconds=1.0, knee=20_000.0)

    became = {name: one["value"] for name, one in values(rows, "what became of it").items()}
    offered = became.pop("offered")
    assert offered == sum(became.values())
    assert 0 < became["arrived"] <= offered
    [window] = values(rows, "windows").values()
    assert 0 < window["peak_mib"] <= window["limit_mib"]
    recovery = values(rows, "recovery")
    assert 0 < recovery["pool empty"]["seconds"] <= recovery["light load in time"]["seconds"]
    assert recovery["light load in time"]["seconds"] <= recovery["median as before"]["seconds"]


@pytest.mark.timeout(240)
def test_idle_and_busy_connections_are_told_beside_a_lone_frame(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "PINGS", 20)
    monkeypatch.setattr(connections, "HERTZ", 1000.0)

    rows = connections.measure(connections.Scale(idle=130, busy=10, seconds=0.7, heartbeat="200ms"))

    nobody, idle, busy = values(rows, "states").values()
    assert "pings_s" not in nobody
    assert idle["pings_s"] > 0
    assert idle["connect_s"] > 0
    assert busy["messages_s"] > 0
    assert all(0 < one["p50_us"] <= one["p99_us"] <= one["max_us"] for one in (nobody, idle, busy))


@pytest.mark.timeout(240)
def test_a_day_passes_with_everything_changed_on_the_way_and_nothing_lost() -> None:
    """It raises when a message is lost, doubled or out of order, or a dialog does not end."""
    rows = day.measure(minutes=0.1, messages_s=100.0)

    whole = {name: one["value"] for name, one in values(rows, "the whole day").items()}
    assert 24 == len(values(rows, "hours"))
    assert 600 == whole["messages, each received once and in order"]
    assert 0 == whole["lost, doubled or out of order"]
    assert (12, 23) == (whole["certificates replaced"], whole["changes of routes"])
    assert whole["records in journals"] > 600
    assert whole["files of journals written"] > 0
