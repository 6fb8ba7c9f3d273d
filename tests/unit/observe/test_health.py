"""What is not as it should be is found, with how much it matters and what to do."""

from typing import Any

import msgspec
import pytest

from broker.catalog.unscripted import IMPORT_AGAIN
from broker.errors import NOTHING_STORED, TLS_REFUSED
from broker.observe.drops import DEFINITIONS_CHANGED
from broker.observe.health import FINDINGS_MAX, HELD_UP_SECONDS, NAME_MAX, RENEW, SHORT_TRANSACTIONS, judge, shorten
from broker.observe.status import HealthReport, Level, Status, WarningKind

LIST = "broker why lists them, each with what to do"
WHETHER_OVER = "; broker why ID says whether that is over; broker dialogs retry sends it again at once"
CORRECT = "correct the program that kept them open"
RUN = "with broker sql, and in its script if it has one: USE [msdb];"
CONNECT = "GRANT CONNECT ON ENDPOINT::[x] TO [a]"
INTO = "into endpoint.peers (/p/*.pem), or its CA there"
UNTRUSTED = (
    "a peer at h was refused: the peer's certificate is not trusted (CN=a, 2025-01-01 00:00 to 2026-01-01 00:00 UTC,"
    f" sha256:00), why: put that certificate {INTO}"
)
HOP = "tcp://far:4022"
LINK = {"name": "a", "address": HOP, "direction": "in", "state": "LOGGED_IN", "flow": "flowing"}
ROLE = {"broker_instance": None, "role": "mirror", "epoch": 1, "since": "", "source": "lock", "principal": ""}
PAST = {"recent": 5, "recent_s": 250.0, "last_s": 99.0}
LEDGER = {"sent": 1, "acknowledged": 0, "held": 0, "failed": {}, "unaccounted": 1}


def judged(parts: dict[str, Any]) -> HealthReport:
    """The report on a status, as it came over HTTP, of an instance with which all else is well."""
    usual: dict[str, Any] = {"connections": [LINK], "addresses": {HOP: {"health": "connected"}}}
    lag, rates = parts.pop("loop_lag_s", None), parts.pop("rates", None)
    return judge(msgspec.convert(usual | parts, Status), loop_lag_s=lag, drop_rates=rates)


def connection(flow: str, reason: str = "", **more: str) -> dict[str, Any]:
    return {"connections": [LINK | {"flow": flow, "flow_reason": reason} | more]}


def forwarding(**parts: int) -> dict[str, Any]:
    return {"forwarding": {"pool_limit_bytes": 100} | parts}


def mirrored(state: str, alarm: str = "") -> dict[str, Any]:
    route: dict[str, Any] = {"route": "R", "service": "S", "broker_instance": "", "principal": None, "epoch": 1}
    return {"mirrored_routes": [route | {"state": state, "alarm": alarm, "partners": {}, "held": 0, "held_bytes": 0}]}


def role(source: str, problem: str) -> dict[str, Any]:
    return {"mirroring": {"shop": ROLE | {"source": source, "problem": problem}}}


def database(**parts: Any) -> dict[str, Any]:
    return {"databases": {"orders": {"waiting_messages": 0} | parts}}


def locked(**lock: Any) -> dict[str, Any]:
    return database(write_lock={"pid": 7, "process": "python3"} | lock)


def blocked(seconds: float, where: str = HOP, dialogs: int = 47) -> dict[str, Any]:
    return database(blocked=[{"next_hop": where, "dialogs": dialogs, "oldest_s": seconds}])


def queue(*, is_on: bool = True, oldest_s: float = 0.0) -> dict[str, Any]:
    return database(queues=[{"name": "Q", "is_receive_enabled": is_on, "oldest_s": oldest_s}])


def journal(problem: str) -> dict[str, Any]:
    names = ("records", "pending", "shed", "files", "bytes", "errors", "removed_files", "failures")
    return {"journal": dict.fromkeys(names, 0) | {"directory": "/", "sample": 1.0, "problem": problem}}


def draining(sentence: str) -> dict[str, Any]:
    parts: dict[str, Any] = {"stage": "leaving", "reason": "", "held": 3, "peers": 0, "by_hop": {}, "busy": []}
    return {"ready": False, "draining": parts | {"sentence": sentence, "remaining_s": 1.0}}


def drop(
    reason: str, last_s: float | None = None, rate: float | None = None, do: str = "", database: str | None = None
) -> dict[str, Any]:
    drops = [{"reason": reason, "database": database, "frames": 1, "last_s": last_s, "do": do}]
    return {"drops": drops, "rates": {(reason, None): rate}}


def off(database: str, last_s: float) -> dict[str, Any]:
    return drop("queue disabled", last_s=last_s, database=database)


def notice(kind: WarningKind, text: str = "about connections") -> dict[str, Any]:
    return {"transport": {"notices": [{"kind": kind, "text": text}]}}


def address(problem: str, held: int = 0, *, health: str = "suppressed") -> dict[str, Any]:
    return {"addresses": {HOP: {"health": health, "problem": problem, "held": held}}}


def test_all_is_well_where_nothing_is_wrong() -> None:
    sentence = "All is well: 1 connection, nothing waits for a next hop"

    assert HealthReport(Level.GOOD, sentence, [], 0) == judged({})


def test_next_hops_that_nobody_has_dialled_are_counted() -> None:
    untried = {"health": "untried"}
    failed, waits = untried | {"problem": "refused"}, untried | {"held": 1}

    one, two = ({"addresses": dict.fromkeys(names, untried) | {"c": failed, "d": waits}} for names in ("a", "ab"))

    assert "nothing waits for a next hop, 1 next hop not dialled yet)" in judged(one).sentence
    assert "nothing waits for a next hop, 2 next hops not dialled yet)" in judged(two).sentence
    found = judged(blocked(23.0, "no route", 2))
    assert "Something is wrong: 2 dialogs wait, the first for 23 s: no route" == found.sentence


def test_a_next_hop_that_may_not_connect_comes_with_the_statement_that_permits_it() -> None:
    refused = f"CN=a may not connect: no {CONNECT} or public"

    (here,) = judged(address(refused)).findings
    (there,) = judged(address(f"FATAL from CN=c: {refused}")).findings

    first = "if that is not done yet (it is dialled again within 10 s), "
    assert f"{first}at this instance, {RUN} {CONNECT};" == here.do
    other = f" Or, if another instance is meant, correct the route to {HOP}."
    assert f"{first}at the instance at {HOP}, {RUN} {CONNECT};{other}" == there.do


def test_a_remedy_that_ends_the_problem_of_a_next_hop_is_told_once() -> None:
    what, do = f"{TLS_REFUSED}of CN=b is for b and not for a", "correct the route, or make the certificate again"

    (finding,) = judged(address(f"{what}: {do}")).findings

    assert (f"{HOP} is not reached: {what}", do) == (finding.what, finding.do)


@pytest.mark.parametrize(
    ("parts", "level", "what"),
    [
        ({"ready": False}, "bad", "not ready"),
        ({"ready": False} | database(problem="no such file"), "bad", "the store of orders has failed: no such file"),
        (draining("draining: 3 held"), "notice", "draining: 3 held"),
        (forwarding(unaccounted=-2), "bad", "-2 frames are unaccounted for"),
        (forwarding(pool_bytes=90), "bad", "90% full"),
        (forwarding(pool_bytes=70), "notice", "70% full"),
        (address("refused"), "notice", f"{HOP} is not reached: refused"),
        (address("refused", 4), "bad", "and 4 frames wait for it"),
        (connection("stalled", "deaf"), "bad", "a is stalled: deaf"),
        (connection("blocked"), "notice", "a is blocked"),
        (connection("down", name="", direction="out"), "bad", "is down"),
        (mirrored("NOT_OPERATIONAL"), "bad", "R is not operational"),
        (mirrored("PRINCIPAL_ONLY"), "notice", "R is principal only"),
        (mirrored("OPERATIONAL", "two principals"), "bad", "two principals"),
        (database(ledger=LEDGER), "bad", "1 message of the database orders unaccounted for"),
        (database(problem="disk full"), "bad", "disk full"),
        (database(quarantined=1), "bad", "1 dialog of orders in quarantine"),
        (database(failed=1), "notice", "1 dialog of orders has failed, and no application has received the error"),
        (database(replaced="x was in it"), "bad", "the database orders is a new, empty one: x was in it"),
        (locked(waiting_s=12.3, recent=1), "bad", "process 7 (python3) has kept a write transaction"),
        (locked(waiting_s=2.0, recent=5, pid=None), "bad", "another process has kept"),
        (locked(waiting_s=2.0, recent=5), "bad", "open for 2 s, one of 5 such within ten minutes"),
        (locked(**PAST), "notice", "5 times within ten minutes, for 250 s in all, last process 7 (pyth"),
        (address("refused") | blocked(23.0), "bad", "refused, and 47 dialogs wait for it, the first for 23 s"),
        (database(waiting_messages=None), "notice", "the file of orders is not read"),
        (database(oldest_waiting_s=61.0, waiting_messages=7), "notice", "7 messages of orders not acknowledged"),
        (queue(is_on=False), "notice", "the queue Q of orders is off: no application can receive from it"),
        (queue(is_on=False, oldest_s=2.0), "bad", "is off: its first message has waited for 2 s"),
        (queue(is_on=False) | off("orders", 1.0), "bad", "off: messages that arrive are refused, and their senders"),
        (queue(is_on=False) | off("billing", 91.0), "notice", "no application can receive from it"),
        (queue(oldest_s=301.0), "notice", "no application receives from the queue Q of orders"),
        (role("lock", "no lock"), "bad", "no lock"),
        (journal("no space"), "bad", "no space"),
        ({"room_problem": "the disk has 0 KiB left"}, "bad", "the disk has 0 KiB left"),
        ({"room_problem": "the disk has 0 KiB left", "ready": False}, "bad", "the disk has 0 KiB left"),
        ({"audit_problem": "audit a.jsonl: Permission denied"}, "bad", "audit a.jsonl: Permission denied"),
        ({"tasks": [{"name": "pulse", "running": True, "problem": "has died"}]}, "bad", "pulse, has died"),
        ({"reload": {"problem": "line 3\nCREATE"}}, "bad", "line 3"),
        ({"reload": {"waiting": ["store.synchronous"]}}, "notice", "a setting waits for a restart"),
        ({"reload": {"waiting": list("abcdefghijkl")}}, "notice", "g, h, i, j and 2 more"),
        ({"loop_lag_s": 0.5}, "notice", "500 ms late"),
        (drop("no route", rate=2.0), "notice", "2.0 frames a second are dropped: no route"),
        (drop("no route", last_s=89.0, rate=0.0), "notice", "frames were dropped: no route, 89 s ago"),
        ({"transport": {"warnings": ["of an earlier release"]}}, "notice", "of an earlier release"),
        (notice(WarningKind.PLAIN_TEXT), "notice", "about connections"),
        (notice(WarningKind.FILES_NOT_IN_USE), "bad", "about connections"),
        (notice(WarningKind.EXPIRED), "bad", "about connections"),
        (notice(WarningKind.CLOCK), "bad", "about connections"),
    ],
)
def test_what_is_not_as_it_should_be_is_found(parts: dict[str, Any], level: str, what: str) -> None:
    report = judged(dict(parts))

    [finding] = report.findings
    assert (level, level) == (report.level, finding.level)
    assert what in finding.what
    assert finding.what in report.sentence


@pytest.mark.parametrize(
    "parts",
    [
        {"drops": None},
        connection("down", "no HELLO within 10 s", name="", direction="in"),
        drop("duplicate", rate=50.0),
        drop("duplicate", last_s=1.0),
        drop("no route", rate=0.0),
        drop("no route", last_s=91.0),
        drop("no route", last_s=1.0, do=DEFINITIONS_CHANGED),
        queue(oldest_s=299.0),
        role("off", "x"),
        forwarding(pool_limit_bytes=0),
        forwarding(pool_bytes=69),
        mirrored("OPERATIONAL"),
        database(),
        blocked(9.0),
        locked(recent=1, recent_s=2.5),
        locked(**PAST | {"last_s": HELD_UP_SECONDS}),
    ],
)
def test_what_is_harmless_is_no_finding(parts: dict[str, Any]) -> None:
    assert [] == judged(dict(parts)).findings


def test_the_worst_is_first_and_the_others_are_counted() -> None:
    report = judged(address("refused") | journal("no space") | {"loop_lag_s": 1.0} | database(problem="damaged"))

    assert ["bad", "bad", "notice", "notice"] == [one.level for one in report.findings]
    assert "Something is wrong: the store of orders has failed: damaged, and 1 more problem" == report.sentence


def test_an_own_certificate_that_has_expired_is_first() -> None:
    """No peer connects any more, so whatever else is wrong may follow from it."""
    report = judged(address("refused", 4) | notice(WarningKind.EXPIRED, "has expired"))

    assert "Something is wrong: has expired, and 1 more problem" == report.sentence


@pytest.mark.parametrize(
    ("parts", "do"),
    [
        (notice(WarningKind.EXPIRES), RENEW),
        (notice(WarningKind.REFUSED, f"no {CONNECT} or public"), f"at this instance, {RUN} {CONNECT};"),
        (notice(WarningKind.REFUSED, UNTRUSTED), f"put the certificate of CN=a {INTO}"),
        (notice(WarningKind.EXPIRED), RENEW),
        (database(problem=f"it is gone, so {NOTHING_STORED}: if deleted, save it"), "if deleted, save it"),
        (blocked(30.0, "//S: refused by the next hop: no route (9798)"), f"{LIST}{WHETHER_OVER}"),
        (notice(WarningKind.CLOCK), "set the clock of this machine"),
        (notice(WarningKind.PERMISSIONS), ""),
        (notice(WarningKind.IMPORTS_LOST), IMPORT_AGAIN),
        (notice(WarningKind.IMPORTS_LOST) | drop("not permitted", last_s=1.0, do="GRANT SEND x"), IMPORT_AGAIN),
        (drop("no route", last_s=1.0, do="CREATE ROUTE x"), "CREATE ROUTE x"),
        (locked(**PAST), f"{CORRECT} (the last was process 7 (python3)): {SHORT_TRANSACTIONS}"),
        (drop("no route", last_s=1.0), "sys.dm_broker_dispositions has the last such frame"),
    ],
)
def test_a_finding_says_what_to_do(parts: dict[str, Any], do: str) -> None:
    assert [do] == [one.do for one in judged(dict(parts)).findings]


@pytest.mark.parametrize(("reason", "is_kept"), [("no route", True), ("unknown conversation", False)])
def test_that_a_sender_keeps_what_was_dropped_is_said_of_what_it_keeps(reason: str, *, is_kept: bool) -> None:
    [finding] = judged(drop(reason, last_s=1.0)).findings

    assert is_kept == finding.what.endswith("without another one for 90 s, this is over")


def test_it_works_only_where_nothing_says_that_something_does_not_arrive() -> None:
    works = judged(notice(WarningKind.PLAIN_TEXT) | {"loop_lag_s": 1.0})
    unread = judged(database(waiting_messages=None))
    refused = judged(address("refused") | {"loop_lag_s": 1.0})

    assert works.sentence.startswith("It works (1 connection, nothing waits for a next hop), and 2 things are worth")
    assert unread.sentence.startswith("It works (1 connection, nothing waits for a next hop), and one thing is worth")
    assert refused.sentence.startswith(
        "Something may not arrive (1 connection, nothing waits for a next hop): tcp://far"
    )
    scanned = judged(notice(WarningKind.REFUSED, "a peer at h was refused: frame of 7 bytes is above max_frame 4"))
    assert scanned.sentence.startswith("It works (")
    both = judged(notice(WarningKind.PLAIN_TEXT) | address("refused"))
    assert both.sentence.endswith(f"{HOP} is not reached: refused")
    for one in (notice(WarningKind.REFUSED), drop("no route", last_s=1.0), database(oldest_waiting_s=61.0)):
        assert judged(one).sentence.startswith("Something may not arrive")


def test_write_transactions_that_are_over_stop_no_message() -> None:
    held = [judged(locked(**PAST | more)).sentence for more in ({}, {"waiting_s": 2.0})]

    assert [True, True] == [held[0].startswith("It works ("), held[1].startswith("Something is wrong")]


def test_frames_for_a_next_hop_that_was_taken_out_end_by_themselves() -> None:
    left = {"health": "suppressed", "problem": "Connection refused", "held": 4, "is_named": False}

    report = judged({"addresses": {HOP: left}})

    [found] = report.findings
    assert ("notice", f"4 frames wait for {HOP}, to which no route leads now") == (found.level, found.what)
    assert found.do.startswith("nothing: they end")
    assert report.sentence.startswith("It works (")
    assert "bad" == judged({"addresses": {HOP: left | {"is_named": True}}}).level


def test_a_dialog_waits_for_a_next_hop_that_is_not_reached_from_the_beginning() -> None:
    report = judged(address("refused") | blocked(0.0))

    assert ("bad", "Something is wrong") == (report.level, report.sentence[:18])
    assert judged(blocked(0.0)).sentence.endswith("47 dialogs wait for a next hop")


def test_a_grant_that_two_refused_peers_need_is_told_once() -> None:
    notices = [{"kind": WarningKind.REFUSED, "text": f"{host}: no {CONNECT} or public"} for host in "ab"]

    assert 1 == len(judged({"transport": {"notices": notices}}).findings)


def test_of_many_findings_some_are_listed_and_the_rest_is_counted() -> None:
    many = {f"tcp://far:{port}": {"health": "suppressed", "problem": "refused"} for port in range(1, 1001)}

    report = judged({"addresses": many})

    assert (FINDINGS_MAX, 1000 - FINDINGS_MAX) == (len(report.findings), report.more)


def test_a_name_of_ten_kilobytes_does_not_fill_the_sentence() -> None:
    report = judged({"connections": [LINK | {"name": "x" * 10_000, "flow": "stalled"}]})

    assert len(report.sentence) < 400
    assert len(report.findings[0].what) <= 800


@pytest.mark.parametrize("length", [NAME_MAX + 1, 10_000, 1_000_000])
def test_a_text_that_is_too_long_says_how_long_it_was(length: int) -> None:
    short = shorten("x" * length)

    assert "x" * NAME_MAX == shorten("x" * NAME_MAX)
    assert NAME_MAX == len(short)
    assert short.endswith(f"… ({length:,} characters)")
