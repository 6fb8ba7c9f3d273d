""""""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Any

import pytest

from broker.flow import Disposition
from broker.observe.health import (
    FINDINGS_MAX,
    NAME_MAX,
    cut,
    fold,
    remedy_of,
    remedy_of_error,
    remedy_of_unreached,
    shorten,
    verdict,
)
from broker.observe.status import drops_of, read_dropped
from broker.observe.views import DISPOSITIONS, make_row

AT = datetime(2026, 1, 1, 12, tzinfo=UTC)


def row(**values: Any) -> tuple[object, ...]:
    usual = {"disposition": "no route", "frames": 3, "to_service_name": "//shop/Billing"}
    return make_row(DISPOSITIONS, **(usual | values))


def test_each_reason_is_told_with_what_to_do() -> None:
    [told] = read_dropped(lambda: [row(last_time=AT)], "gw")

    assert ("no route", 3, "2026-01-01 12:00:00.000") == (told["disposition"], told["frames"], told["last_time"])
    assert "of gw: CREATE ROUTE [//shop/Billing]" in told["do"]


def test_a_status_tells_how_long_ago_the_last_one_was() -> None:
    rows = read_dropped(lambda: [row(last_time=AT), row(disposition="duplicate")], "gw")

    told = drops_of(rows, AT.replace(second=7))

    assert [("no route", 7.0), ("duplicate", None)] == [(one["reason"], one["last_s"]) for one in told]


# --- test_why_remedy ---
# Remedies: one for each reason that an operator can do something about, with the names of the case.


# What heals by itself, or is no end of a message.
NOTHING_TO_DO = {
    Disposition.FORWARDED,
    Disposition.DELIVERED,
    Disposition.MALFORMED,
    Disposition.SHUTDOWN,
    Disposition.DUPLICATE,
    Disposition.OUT_OF_SEQUENCE,
    Disposition.UNKNOWN_CONVERSATION,
    Disposition.CONVERSATION_ENDED,
    Disposition.CORRUPTED,
}


@pytest.mark.parametrize("disposition", sorted(set(Disposition) - NOTHING_TO_DO))
def test_every_reason_has_a_remedy_of_its_own_without_gaps(disposition: Disposition) -> None:
    text = remedy_of(disposition, instance="gateway-a", service="//S", table="orders")

    assert "the page on dispositions" not in text
    assert not re.search(r"[{}]", text)


@pytest.mark.parametrize("disposition", sorted(NOTHING_TO_DO))
def test_other_reasons_lead_to_the_page(disposition: Disposition) -> None:
    text = remedy_of(disposition, instance="gateway-a", service="//S")

    assert "see the page on dispositions: gateway-a tells the reason in broker status" == text


def test_where_a_local_route_led_nowhere_the_first_advice_is_a_route() -> None:
    """AutoCreatedLocal takes what no other route matches, so a route with another name than the service ends so."""
    text = remedy_of(Disposition.SERVICE_NOT_HERE, instance="gateway", service="//S")

    assert "in msdb of gateway, when the service is elsewhere: CREATE ROUTE [//S] WITH SERVICE_NAME = '//S'" in text


def test_names_are_filled_in_and_never_a_format() -> None:
    text = remedy_of(Disposition.NO_ROUTE, instance="{service}", service="{0}{x", table="orders")

    assert text.startswith("in orders of ")
    assert "WITH SERVICE_NAME = '{0}{x'" in text


@pytest.mark.parametrize("code", [-8408, -8428, -8430, -8437, -8457, -8462, -8489, -8490, -8495, -8498, -9616])
def test_every_number_of_the_broker_has_a_remedy_that_ends_the_dialog(code: int) -> None:
    text = remedy_of_error(code, service="//S")

    assert text.endswith("; RECEIVE the Error message and END CONVERSATION here")
    assert "{" not in text


@pytest.mark.parametrize(
    ("code", "text"),
    [
        (None, "RECEIVE the Error message and END CONVERSATION here"),
        (-1, "RECEIVE the Error message and END CONVERSATION here"),
        (17, "the far application ended the dialog with its own error 17: ask there"),
    ],
)
def test_other_errors(code: int | None, text: str) -> None:
    assert remedy_of_error(code, service="//S").startswith(text)


@pytest.mark.parametrize(
    ("problem", "remedy"),
    [
        ("Connection refused", "start the instance at tcp://a:1"),
        ("FATAL from the peer: CN=b may not connect: no GRANT", "in msdb of the instance at tcp://a:1: run the GRANT"),
        ("CN=b may not connect: no GRANT", "in msdb of this instance: run the GRANT CONNECT"),
    ],
)
def test_next_hop_that_is_not_reached_is_started_or_permitted(problem: str, remedy: str) -> None:
    assert remedy_of_unreached("tcp://a:1", problem).startswith(remedy)


def rows(*sizes: float | None) -> list[dict[str, Any]]:
    return [{"name": f"row {at}", "size": size} for at, size in enumerate(sizes)]


def test_the_heaviest_rows_stay_and_the_rest_is_added_up() -> None:
    folded = fold(rows(1, 5, 2, 4), 2, weight=lambda one: one["size"], sums=("size",))

    assert {
        "count": 4,
        "rows": [{"name": "row 1", "size": 5}, {"name": "row 3", "size": 4}],
        "folded": {"count": 2, "size": 3},
    } == folded


def test_nothing_is_folded_where_there_is_room() -> None:
    folded = fold(rows(1, 2), 2, weight=lambda one: one["size"], sums=("size",))

    assert ([2, 1], {"count": 0, "size": 0}) == ([one["size"] for one in folded["rows"]], folded["folded"])


def test_what_nobody_knows_adds_nothing() -> None:
    folded = fold(rows(None, None, None), 1, weight=lambda one: one["size"] or 0, sums=("size",))

    assert {"count": 2, "size": 0} == folded["folded"]


@pytest.mark.parametrize("length", [0, 1, NAME_MAX - 1, NAME_MAX])
def test_a_text_that_fits_stays_as_it_is(length: int) -> None:
    assert "x" * length == shorten("x" * length)


@pytest.mark.parametrize("length", [NAME_MAX + 1, 10_000, 1_000_000])
def test_a_text_that_is_too_long_says_how_long_it_was(length: int) -> None:
    short = shorten("x" * length)

    assert NAME_MAX == len(short)
    assert short.endswith(f"… ({length:,} characters)")


def test_texts_of_a_row_are_cut_and_other_values_are_not() -> None:
    assert {"name": shorten("x" * 999), "size": 10**300, "none": None} == cut(
        {"name": "x" * 999, "size": 10**300, "none": None}
    )


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
