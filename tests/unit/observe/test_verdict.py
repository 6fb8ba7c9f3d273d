from __future__ import annotations

from typing import Any

import pytest

from broker.observe.health import FINDINGS_MAX, verdict

HOP = "tcp://far:4022"


def status(**parts: Any) -> dict[str, Any]:
    """A status of an instance with which all is well."""
    usual: dict[str, Any] = {
        "ready": True,
        "draining": None,
        "forwarding": {"held": 0, "unaccounted": 0, "pool_bytes": 0, "pool_limit_bytes": 100},
        "connections": [{"name": "a", "flow": "flowing", "flow_reason": ""}],
        "addresses": {HOP: {"health": "connected", "problem": "", "held": 0}},
        "mirrored_routes": [],
        "databases": {},
        "transport": {"warnings": [], "certificates": []},
    }
    return usual | parts


def forwarding(**parts: Any) -> dict[str, Any]:
    return {"held": 0, "unaccounted": 0, "pool_bytes": 0, "pool_limit_bytes": 100} | parts


def mirrored(state: str, alarm: str = "") -> dict[str, Any]:
    return {"mirrored_routes": [{"route": "R", "state": state, "alarm": alarm}]}


def database(**parts: Any) -> dict[str, Any]:
    return {"databases": {"orders": parts}}


def test_all_is_well_where_nothing_is_wrong() -> None:
    told = verdict(status())

    assert {
        "level": "good",
        "sentence": "All is well: 1 connection, nothing waits for a next hop",
        "findings": [],
        "more": 0,
    } == told


def test_next_hops_that_nobody_has_dialled_are_not_passed_over() -> None:
    untried = {"health": "untried", "problem": "", "held": 0}
    failed, waits = untried | {"problem": "refused"}, untried | {"held": 1}

    one, two = ({"addresses": dict.fromkeys(names, untried) | {"c": failed, "d": waits}} for names in ("a", "ab"))

    assert "nothing waits for a next hop, 1 next hop not dialled yet)" in verdict(status(**one))["sentence"]
    assert "nothing waits for a next hop, 2 next hops not dialled yet)" in verdict(status(**two))["sentence"]


DOWN = {"addresses": {HOP: {"health": "suppressed", "problem": "refused", "held": 0}}}
DOWN_AND_WAITED_FOR = {"addresses": {HOP: {"health": "suppressed", "problem": "refused", "held": 4}}}
UNUSABLE = {
    "warnings": ["certificate files are not in use: no match"],
    "certificates": [],
    "problem": "no match",
}
EARLY = "the certificate of this instance is not valid before noon, by the clock of this machine: gw"
EXPIRED = {"warnings": ["the certificate of this instance has expired at noon: gw"], "certificates": [
    {"name": "gw", "days_left": -1}
]}  # fmt: skip


@pytest.mark.parametrize(
    ("parts", "level", "what"),
    [
        ({"ready": False}, "bad", "not ready"),
        ({"ready": False, "draining": {"sentence": "draining: 3 held"}}, "notice", "draining: 3 held"),
        ({"forwarding": forwarding(unaccounted=-2)}, "bad", "-2 frames are unaccounted for"),
        ({"forwarding": forwarding(pool_bytes=95)}, "bad", "95% full"),
        ({"forwarding": forwarding(pool_bytes=75)}, "notice", "75% full"),
        (DOWN, "notice", f"{HOP} is not reached: refused"),
        (DOWN_AND_WAITED_FOR, "bad", "and 4 frames wait for it"),
        ({"connections": [{"name": "a", "flow": "stalled", "flow_reason": "deaf"}]}, "bad", "a is stalled: deaf"),
        ({"connections": [{"name": "a", "flow": "blocked", "flow_reason": ""}]}, "notice", "a is blocked"),
        (mirrored("NOT_OPERATIONAL"), "bad", "R is not operational"),
        (mirrored("PRINCIPAL_ONLY"), "notice", "R is principal only"),
        (mirrored("OPERATIONAL", "two principals"), "bad", "two principals"),
        (database(ledger={"unaccounted": 1}), "bad", "1 messages of the database orders are unaccounted for"),
        (database(problem="disk full"), "bad", "disk full"),
        (database(quarantined=1), "bad", "1 dialog of orders in quarantine"),
        (database(oldest_waiting_s=61.0, waiting_messages=7), "notice", "7 messages of orders are not acknowledged"),
        (database(queues=[{"name": "Q", "is_receive_enabled": False}]), "notice", "the queue Q of orders is off"),
        ({"mirroring": {"shop": {"source": "lock", "problem": "no lock"}}}, "bad", "no lock"),
        ({"journal": {"problem": "no space"}}, "bad", "no space"),
        ({"room_problem": "the disk has 0 KiB left"}, "bad", "the disk has 0 KiB left"),
        ({"audit_problem": "audit a.jsonl: Permission denied"}, "bad", "audit a.jsonl: Permission denied"),
        ({"tasks": [{"name": "pulse", "problem": "has died"}]}, "bad", "pulse, has died"),
        ({"reload": {"problem": "line 3"}}, "bad", "line 3"),
        ({"reload": {"problem": "", "waiting": ["store.synchronous"]}}, "notice", "a setting waits for a restart"),
        ({"reload": {"problem": "", "waiting": list("abcdefghijkl")}}, "notice", "g, h, i, j and 2 more"),
        ({"transport": UNUSABLE}, "bad", "certificate files are not in use: no match"),
        ({"loop_lag_s": 0.5}, "notice", "500 ms late"),
        ({"drops": [{"reason": "no route", "frames_s": 2.0}]}, "notice", "2.0 frames a second are dropped: no route"),
        ({"drops": [{"reason": "no route", "frames_s": 0.0, "last_s": 59.0}]}, "notice", "were dropped: no route"),
        ({"drops": [{"reason": "no route", "last_s": 5.0}]}, "notice", "were dropped: no route"),
        (
            database(queues=[{"name": "Q", "is_receive_enabled": True, "oldest_s": 301.0}]),
            "notice",
            "nobody receives from the queue Q of orders: its first message waits for 301 s",
        ),
        ({"transport": {"warnings": ["not encrypted"], "certificates": []}}, "notice", "not encrypted"),
        ({"transport": EXPIRED}, "bad", "has expired"),
        ({"transport": {"warnings": [EARLY], "certificates": []}}, "bad", "is not valid before noon"),
    ],
)
def test_what_is_not_as_it_should_be_is_found(parts: dict[str, Any], level: str, what: str) -> None:
    told = verdict(status(**parts))

    [finding] = told["findings"]
    assert (level, level) == (told["level"], finding["level"])
    assert what in finding["what"]
    assert finding["what"] in told["sentence"]


@pytest.mark.parametrize(
    "parts",
    [
        {"drops": [{"reason": "duplicate", "frames_s": 50.0}]},
        {"drops": [{"reason": "no route", "frames_s": 0.0}]},
        {"drops": [{"reason": "no route", "frames_s": None}]},
        {"drops": [{"reason": "no route", "frames_s": 0.0, "last_s": 61.0}]},
        {"drops": [{"reason": "duplicate", "last_s": 1.0}]},
        {"drops": None},
        database(queues=[{"name": "Q", "is_receive_enabled": True, "oldest_s": 299.0}]),
        {"mirroring": {"shop": {"source": "off", "problem": "x"}}},
        {"forwarding": forwarding(pool_limit_bytes=0)},
        {"reload": {"problem": ""}},
        database(ledger=None, problem="", quarantined=0, oldest_waiting_s=None),
    ],
)
def test_what_is_harmless_is_not_told(parts: dict[str, Any]) -> None:
    assert [] == verdict(status(**parts))["findings"]


def test_the_worst_comes_first_and_the_others_are_counted() -> None:
    told = verdict(status(**DOWN, journal={"problem": "no space"}, loop_lag_s=1.0, **database(problem="damaged")))

    assert ["bad", "bad", "notice", "notice"] == [one["level"] for one in told["findings"]]
    assert "Something is wrong: the store of orders has failed: damaged, and 1 more" == told["sentence"]


def test_an_own_certificate_that_has_ended_comes_first() -> None:
    """Nobody connects any more, so whatever else is wrong may follow from it."""
    told = verdict(status(**DOWN_AND_WAITED_FOR, transport=EXPIRED))

    assert told["sentence"].startswith("Something is wrong: the certificate of this instance has expired")


@pytest.mark.parametrize(
    "warning",
    [
        "the certificate of this instance ends in 5 hours, at noon: gw",
        "the certificate of this instance has expired at noon: gw",
    ],
)
def test_what_to_do_about_a_certificate_is_told(warning: str) -> None:
    told = verdict(status(transport=EXPIRED | {"warnings": [warning]}))

    assert "renewed files" in told["findings"][0]["do"]


def test_what_to_do_about_a_clock_is_told() -> None:
    told = verdict(status(transport={"warnings": [EARLY], "certificates": []}))

    assert "set the clock of this machine" == told["findings"][0]["do"]


def test_what_to_do_about_a_drop_is_told() -> None:
    told = verdict(status(drops=[{"reason": "no route", "last_s": 1.0, "do": "CREATE ROUTE x"}]))

    assert "CREATE ROUTE x" == told["findings"][0]["do"]


def test_notices_leave_it_working() -> None:
    told = verdict(status(**DOWN, loop_lag_s=1.0))

    assert told["sentence"].startswith("It works (1 connection, nothing waits for a next hop), and 2 things are worth")


def test_of_many_findings_some_are_told_and_the_rest_is_counted() -> None:
    many = {f"tcp://far:{port}": {"health": "suppressed", "problem": "refused", "held": 0} for port in range(1, 1001)}

    told = verdict(status(addresses=many))

    assert (FINDINGS_MAX, 1000 - FINDINGS_MAX) == (len(told["findings"]), told["more"])


def test_a_name_of_ten_kilobytes_does_not_fill_the_sentence() -> None:
    told = verdict(status(connections=[{"name": "x" * 10_000, "flow": "stalled", "flow_reason": ""}]))

    assert len(told["sentence"]) < 400
    assert len(told["findings"][0]["what"]) <= 600
