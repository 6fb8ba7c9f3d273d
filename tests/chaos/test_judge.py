"""The judge finds each thing that must not be, names it with the lines that prove it, and finds nothing else."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace

import pytest

from tests.chaos.history import Entry, Event, What
from tests.chaos.judge import judge
from tests.chaos.verdict import Circumstances, Kind

DIALOG = "0d000000-0000-4000-8000-000000000001"
UNTIL = 1000.0


def entries(*told: tuple[str, Event]) -> list[Entry]:
    """One a second; `told` application and event. The database has the application's name."""
    lines: dict[str, int] = {}
    made = []
    for at, (application, event) in enumerate(told):
        lines[application] = lines.get(application, 0) + 1
        made.append(Entry(application, application, lines[application], float(at), event))
    return made


def began(conversation: str = DIALOG, *, said_until: float = UNTIL) -> Event:
    """It took a tenth of a second."""
    note = "//chaos/Billing handle"
    return Event(What.BEGAN, conversation, until=UNTIL - 0.1, until_most=UNTIL, said_until=said_until, note=note)


def sent(number: int, *, is_initiator: bool = True) -> Event:
    return Event(What.SENT, DIALOG, is_initiator=is_initiator, number=number, digest=f"{is_initiator}{number}")


def received(number: int, *, by_initiator: bool = False, stored_at: float = 1.0) -> Event:
    digest = f"{not by_initiator}{number}"
    return Event(What.RECEIVED, DIALOG, is_initiator=by_initiator, number=number, digest=digest, stored_at=stored_at)


def error(code: int, *, is_initiator: bool = True, stored_at: float = UNTIL + 0.5) -> Event:
    return Event(What.ERROR, DIALOG, is_initiator=is_initiator, number=code, stored_at=stored_at)


def came(event: Event, *, call: float = 1.0, priority: int = 5, group: str = "") -> Event:
    """Given by a RECEIVE."""
    return replace(event, call=call, priority=priority, group=group)


BEGAN = ("orders", began())
TARGET_ENDED = ("billing", Event(What.ENDED, DIALOG, is_initiator=False))
TARGET_FAILED = ("billing", Event(What.ENDED, DIALOG, is_initiator=False, number=31, note="not wanted"))
INITIATOR_ENDED = ("orders", Event(What.ENDED, DIALOG))
TOLD = Event(What.ERROR, DIALOG, number=31, note="not wanted", stored_at=5.0)  # of that
SERVICES = {"billing": "//chaos/Billing", "billing-2": "//chaos/Billing", "parcel-1": "//chaos/Parcel"}
TWO_SENT = [BEGAN, ("orders", sent(0)), ("orders", sent(1))]
TWO_THERE = [*TWO_SENT, ("billing", received(0)), ("billing", received(1))]
SOUND = [
    *TWO_THERE,
    ("billing", sent(0, is_initiator=False)),
    ("orders", received(0, by_initiator=True)),
    TARGET_ENDED,
    ("orders", Event(What.END, DIALOG)),
    ("orders", Event(What.ENDED, DIALOG)),
    ("billing", Event(What.END, DIALOG, is_initiator=False)),
]
ANSWERED = [*TWO_THERE, ("billing", sent(0, is_initiator=False)), ("orders", received(0, by_initiator=True))]
ENDED_WITH_ERROR = [
    *TWO_THERE,
    ("billing", sent(0, is_initiator=False)),
    TARGET_FAILED,
    ("orders", TOLD),
    ("orders", received(0, by_initiator=True)),
    ("orders", Event(What.ENDED, DIALOG)),
]
INITIATOR_FAILED = ("orders", Event(What.ENDED, DIALOG, number=32, note="called off"))
HEARD = ("billing", Event(What.ERROR, DIALOG, is_initiator=False, number=32, note="called off", stored_at=5.0))
END_HEARD = ("billing", Event(What.END, DIALOG, is_initiator=False))
INITIATOR_CLEANED = ("orders", Event(What.CLEANED, DIALOG))
TARGET_CLEANED = ("billing", Event(What.CLEANED, DIALOG, is_initiator=False))
GONE_HEARD = ("billing", error(-8462, is_initiator=False, stored_at=5.0))
SET = ("orders", Event(What.SET, DIALOG, until=10.0, until_most=10.1))
TIMER = ("orders", Event(What.TIMER, DIALOG, stored_at=10.2, until=10.3))
UNDONE = ("orders", replace(sent(1), what=What.UNDONE, digest="draft"))
OTHER = "0d000000-0000-4000-8000-000000000002"
EXPIRED = [*TWO_SENT, ("billing", received(0)), ("orders", error(-8489)), ("billing", error(-8489, is_initiator=False))]

CASES = {
    "lost": ([*TWO_SENT, ("billing", received(0))], None, [(Kind.LOST, 1, [("orders", 3)])]),
    "lost, and its sender keeps it": (
        [*TWO_SENT, ("billing", received(0))],
        Circumstances(held=[(DIALOG, True, 1)]),
        [(Kind.LOST, 1, [("orders", 3)])],
    ),
    "acknowledged but gone": (
        [*TWO_SENT, ("billing", received(0))],
        Circumstances(held=[]),
        [(Kind.GONE, 1, [("orders", 3)])],
    ),
    "lost on the way back": (
        [*TWO_THERE, ("billing", sent(0, is_initiator=False))],
        None,
        [(Kind.LOST, 0, [("billing", 3)])],
    ),
    "doubled": (
        [*TWO_THERE, ("billing", received(1))],
        None,
        [(Kind.DOUBLED, 1, [("orders", 3), ("billing", 2), ("billing", 3)])],
    ),
    "doubled in another database": (
        [*TWO_THERE, ("billing-2", received(1))],
        None,
        [(Kind.DOUBLED, 1, [("orders", 3), ("billing", 2), ("billing-2", 1)])],
    ),
    "reordered": (
        [*TWO_SENT, ("billing", received(1)), ("billing", received(0))],
        None,
        [(Kind.REORDERED, 0, [("orders", 2), ("billing", 1), ("billing", 2)])],
    ),
    "received behind the end": (
        [
            *TWO_SENT,
            ("orders", Event(What.ENDED, DIALOG)),
            ("billing", received(0)),
            ("billing", Event(What.END, DIALOG, is_initiator=False)),
            ("billing", received(1)),
        ],
        None,
        [(Kind.REORDERED, 1, [("orders", 3), ("billing", 2), ("billing", 3)])],
    ),
    "the end came, and a message before it did not": (
        [
            *TWO_SENT,
            ("orders", Event(What.ENDED, DIALOG)),
            ("billing", received(0)),
            ("billing", Event(What.END, DIALOG, is_initiator=False)),
            ("orders", error(-8489)),
        ],
        None,
        [(Kind.LOST, 1, [("orders", 3)])],
    ),
    "the end was lost": ([*TWO_THERE, ("orders", Event(What.ENDED, DIALOG))], None, [(Kind.LOST, -1, [("orders", 4)])]),
    "an end that nobody made": (
        [*TWO_THERE, ("billing", Event(What.END, DIALOG, is_initiator=False))],
        None,
        [(Kind.INVENTED, -1, [("billing", 3)])],
    ),
    "an end received twice": (
        [*SOUND, ("orders", Event(What.END, DIALOG))],
        None,
        [(Kind.DOUBLED, -1, [("billing", 4), ("orders", 5), ("orders", 7)])],
    ),
    "an error received twice": (
        [*EXPIRED, ("orders", error(-8489))],
        None,
        [(Kind.DOUBLED, -1, [("orders", 5), ("orders", 4)])],
    ),
    "an end received at a mirror": (
        [*SOUND[:-1], ("billing", Event(What.ROLE, note="mirror")), SOUND[-1]],
        None,
        [(Kind.TO_MIRROR, -1, [("billing", 6)])],
    ),
    "an error received at a mirror": (
        [*EXPIRED[:-1], ("billing", Event(What.ROLE, note="mirror")), EXPIRED[-1]],
        None,
        [(Kind.TO_MIRROR, -1, [("billing", 3)])],
    ),
    "content that nobody sent": (
        [*TWO_THERE, ("billing", replace(received(1), digest="other"))],
        None,
        [(Kind.INVENTED, 1, [("billing", 3)])],
    ),
    "a dialog that nobody began": ([("billing", received(0))], None, [(Kind.INVENTED, 0, [("billing", 1)])]),
    "one's own message": (
        [*TWO_THERE, ("orders", replace(received(0), is_initiator=True))],
        None,
        [(Kind.INVENTED, 0, [("orders", 4)])],
    ),
    "received at a mirror": (
        [*TWO_SENT, ("billing", received(0)), ("billing", Event(What.ROLE, note="mirror")), ("billing", received(1))],
        None,
        [(Kind.TO_MIRROR, 1, [("billing", 3)])],
    ),
    "stored at a mirror": (
        [*TWO_THERE, ("billing-2", Event(What.FOUND, DIALOG, number=1))],
        None,
        [(Kind.TO_MIRROR, 1, [("billing-2", 1)])],
    ),
    "received after the lifetime": (
        [*TWO_SENT, ("billing", received(0)), ("billing", received(1, stored_at=UNTIL + 2.5))],
        None,
        [(Kind.LATE, 1, [("orders", 3), ("orders", 1), ("billing", 2)])],
    ),
    "failed before the lifetime": (
        [*TWO_THERE, TARGET_ENDED, ("orders", error(-8489, stored_at=UNTIL - 5))],
        None,
        [(Kind.FAILED, -1, [("orders", 4), ("orders", 1)])],
    ),
    "failed for another reason": (
        [*TWO_THERE, TARGET_ENDED, ("orders", error(-8462))],
        None,
        [(Kind.FAILED, -1, [("orders", 4), ("orders", 1)])],
    ),
    "divided between two databases": (
        [*TWO_SENT, ("billing", received(0)), ("billing-2", received(1))],
        None,
        [(Kind.SPLIT, 1, [("billing-2", 1), ("billing", 1)])],
    ),
    "a gap in a dialog that failed": (
        [
            *TWO_SENT,
            ("billing", received(1)),
            ("orders", error(-8489)),
            ("billing", error(-8489, is_initiator=False)),
        ],
        None,
        [(Kind.LOST, 0, [("orders", 2)])],
    ),
    "received as another message": (
        [*TWO_SENT, ("billing", received(0)), ("billing", replace(received(1), number=2))],
        None,
        [(Kind.MISNUMBERED, 1, [("orders", 3), ("billing", 2)])],
    ),
    "stored behind one's own error": (
        [
            *TWO_SENT,
            ("billing", received(0)),
            ("orders", error(-8489)),
            ("billing", error(-8489, is_initiator=False)),
            ("billing", received(1, stored_at=UNTIL + 0.6)),
        ],
        None,
        [(Kind.REORDERED, 1, [("orders", 3), ("billing", 2), ("billing", 3)])],
    ),
    "the end stored behind one's own error": (
        [
            *SOUND[:-3],
            ("orders", error(-8489)),
            ("orders", Event(What.END, DIALOG, stored_at=UNTIL + 0.6)),
            *SOUND[-2:],
        ],
        None,
        [(Kind.REORDERED, -1, [("billing", 4), ("orders", 5), ("orders", 6)])],
    ),
    "lost, and only the far side was told": (
        [*TWO_SENT, ("billing", received(0)), ("billing", error(-8489, is_initiator=False))],
        None,
        [(Kind.LOST, 1, [("orders", 3)]), (Kind.LOST, -1, [("billing", 2)])],
    ),
    "lost, and its sender was only told of the end": (
        [
            *TWO_SENT,
            ("billing", received(0)),
            ("billing", error(-8489, is_initiator=False)),
            TARGET_ENDED,
            ("orders", Event(What.END, DIALOG)),
            ("orders", Event(What.ENDED, DIALOG)),
        ],
        None,
        [(Kind.LOST, 1, [("orders", 3)])],
    ),
    "its target was not told that it failed": (
        [*TWO_THERE, ("orders", error(-8489)), ("orders", Event(What.ENDED, DIALOG))],
        None,
        [(Kind.LOST, -1, [("orders", 4)])],
    ),
    "late by more than a fault can have hidden": (
        [*TWO_SENT[:2], ("billing", received(0, stored_at=UNTIL + 7.5))],
        Circumstances(hidden=[(UNTIL, UNTIL + 5.0)]),
        [(Kind.LATE, 0, [("orders", 2), ("orders", 1), ("billing", 1)])],
    ),
    "late, though nothing can have hidden it since it was sent": (
        [*TWO_SENT[:2], ("billing", received(0, stored_at=UNTIL + 3.0))],
        Circumstances(hidden=[(-60.0, 0.5), (UNTIL + 4.0, UNTIL + 60.0)]),
        [(Kind.LATE, 0, [("orders", 2), ("orders", 1), ("billing", 1)])],
    ),
    "late in a dialog that was over before the clock of its target was wrong": (
        [*TWO_SENT[:2], ("billing", received(0, stored_at=UNTIL + 3.0))],
        Circumstances(astray=[("billing", (5.0, 60.0))]),
        [(Kind.LATE, 0, [("orders", 2), ("orders", 1), ("billing", 1)])],
    ),
    "late while the clock of another database was wrong": (
        [*TWO_SENT[:2], ("billing", received(0, stored_at=UNTIL + 3.0))],
        Circumstances(astray=[("stock", (0.0, 60.0))]),
        [(Kind.LATE, 0, [("orders", 2), ("orders", 1), ("billing", 1)])],
    ),
    "late as its receiver knows, whatever its daemon says": (
        [*TWO_SENT[:2], ("billing", replace(received(0), idle_at=UNTIL + 15.0))],
        None,
        [(Kind.LATE, 0, [("orders", 2), ("orders", 1), ("billing", 1)])],
    ),
    "an end after the lifetime": (
        [*ANSWERED, TARGET_ENDED, ("orders", Event(What.END, DIALOG, stored_at=UNTIL + 2.5))],
        None,
        [(Kind.LATE, -1, [("billing", 4), ("orders", 1), ("orders", 5)])],
    ),
    "an error of the far side after the lifetime": (
        [*ANSWERED, TARGET_FAILED, ("orders", replace(TOLD, stored_at=UNTIL + 2.5)), INITIATOR_ENDED],
        None,
        [(Kind.LATE, -1, [("billing", 4), ("orders", 1), ("orders", 5)])],
    ),
    "a lifetime that nobody asked for": (
        [("orders", began(said_until=UNTIL + 0.3)), *TWO_THERE[1:]],
        None,
        [(Kind.LIFETIME, -1, [("orders", 1)])],
    ),
    "a lifetime that is too short": (
        [("orders", began(said_until=UNTIL - 0.4)), *TWO_THERE[1:]],
        None,
        [(Kind.LIFETIME, -1, [("orders", 1)])],
    ),
    "failed at its initiator a little before the lifetime": (
        [*TWO_THERE, TARGET_ENDED, ("orders", error(-8489, stored_at=UNTIL - 0.4))],
        None,
        [(Kind.FAILED, -1, [("orders", 4), ("orders", 1)])],
    ),
    "failed at its target before the lifetime by more than it was told": (
        [*TWO_THERE, ("billing", error(-8489, is_initiator=False, stored_at=UNTIL - 1.4)), ("orders", error(-8489))],
        None,
        [(Kind.FAILED, -1, [("billing", 3), ("orders", 1)])],
    ),
    "sent in another order than the numbers say": (
        [
            BEGAN,
            ("orders", replace(sent(0), number=1)),
            ("orders", replace(sent(1), number=0)),
            ("billing", replace(received(1), number=0)),
            ("billing", replace(received(0), number=1)),
        ],
        None,
        [
            (Kind.MISNUMBERED, 1, [("orders", 2)]),
            (Kind.MISNUMBERED, 0, [("orders", 3)]),
            (Kind.REORDERED, 1, [("orders", 2), ("billing", 1), ("billing", 2)]),
        ],
    ),
    "all of one number": (
        [
            *TWO_SENT[:2],
            ("orders", replace(sent(1), number=0)),
            ("billing", replace(received(1), number=0)),
            ("billing", received(0)),
        ],
        None,
        [
            (Kind.MISNUMBERED, 0, [("orders", 3)]),
            (Kind.REORDERED, 0, [("orders", 2), ("billing", 1), ("billing", 2)]),
        ],
    ),
    "delivered to another service": (
        [*TWO_SENT[:2], ("parcel-1", received(0))],
        Circumstances(services=SERVICES),
        [(Kind.MISDELIVERED, 0, [("parcel-1", 1), ("orders", 1)])],
    ),
    "an answer delivered to another initiator": (
        [*TWO_THERE, ("billing", sent(0, is_initiator=False)), ("orders-2", received(0, by_initiator=True))],
        None,
        [(Kind.MISDELIVERED, 0, [("orders-2", 1), ("orders", 1)])],
    ),
    "an end delivered to another initiator": (
        [*ANSWERED, TARGET_ENDED, ("orders-2", Event(What.END, DIALOG))],
        None,
        [(Kind.MISDELIVERED, -1, [("orders-2", 1), ("orders", 1)])],
    ),
    "an error delivered to another service": (
        [*EXPIRED[:-1], ("parcel-1", error(-8489, is_initiator=False))],
        Circumstances(services=SERVICES, copies={"parcel-1": "billing"}),
        [(Kind.MISDELIVERED, -1, [("parcel-1", 1), ("orders", 1)])],
    ),
    "an error of the far side that it did not tell": (
        [*ANSWERED, TARGET_FAILED, ("orders", replace(TOLD, number=32)), INITIATOR_ENDED],
        None,
        [(Kind.FAILED, -1, [("orders", 5), ("orders", 1)])],
    ),
    "told of the end where the far side told of an error": (
        [*ANSWERED, TARGET_FAILED, ("orders", Event(What.END, DIALOG)), ("orders", Event(What.ENDED, DIALOG))],
        None,
        [(Kind.INVENTED, -1, [("orders", 5)])],
    ),
    "an error of the far side was lost": (
        [*ANSWERED, TARGET_FAILED],
        None,
        [(Kind.LOST, -1, [("billing", 4)])],
    ),
    "an answer before an error of the far side was lost": (
        [*ENDED_WITH_ERROR[:-2], ENDED_WITH_ERROR[-1]],
        None,
        [(Kind.LOST, 0, [("billing", 3)])],
    ),
    "its target was never told that the initiator has forgotten it": (
        [*TWO_THERE, INITIATOR_CLEANED],
        None,
        [(Kind.LOST, -1, [("orders", 4)])],
    ),
    "a gap before what was forgotten": (
        [*TWO_SENT, ("billing", received(1)), INITIATOR_CLEANED, GONE_HEARD],
        None,
        [(Kind.LOST, 0, [("orders", 2)])],
    ),
    "its target was told that the initiator has forgotten it before it had": (
        [*TWO_THERE, GONE_HEARD, INITIATOR_CLEANED],
        None,
        [(Kind.FAILED, -1, [("billing", 3), ("orders", 4)])],
    ),
    "told that the initiator has forgotten what it had not": (
        [*TWO_THERE, GONE_HEARD, INITIATOR_ENDED],
        None,
        [(Kind.FAILED, -1, [("billing", 3), ("orders", 1)])],
    ),
    "an answer received behind a cleanup": (
        [*TWO_THERE, INITIATOR_CLEANED, *ANSWERED[-2:], GONE_HEARD],
        None,
        [(Kind.REORDERED, 0, [("orders", 5), ("orders", 4)])],
    ),
    "a message before the end that its target cleaned up at was lost": (
        [*TWO_SENT, ("billing", received(0)), INITIATOR_ENDED, END_HEARD, TARGET_CLEANED],
        None,
        [(Kind.LOST, 1, [("orders", 3)])],
    ),
    "a message before the end of its initiator was lost, and the target has ended": (
        [*TWO_SENT, ("billing", received(0)), INITIATOR_ENDED, TARGET_ENDED],
        None,
        [(Kind.LOST, 1, [("orders", 3)])],
    ),
    "a gap in the answers to an initiator that has ended": (
        [
            *ANSWERED[:-2],
            *[("billing", sent(number, is_initiator=False)) for number in (0, 1)],
            ("orders", received(1, by_initiator=True)),
            INITIATOR_ENDED,
            END_HEARD,
        ],
        None,
        [(Kind.LOST, 0, [("billing", 3)])],
    ),
    "an error of the initiator was lost": ([*TWO_THERE, INITIATOR_FAILED], None, [(Kind.LOST, -1, [("orders", 4)])]),
    "a message before an error of the initiator was lost": (
        [*TWO_SENT, ("billing", received(0)), INITIATOR_FAILED, HEARD, TARGET_ENDED],
        None,
        [(Kind.LOST, 1, [("orders", 3)])],
    ),
    "an error of the initiator that it did not tell": (
        [*TWO_THERE, INITIATOR_FAILED, ("billing", replace(HEARD[1], note="other")), TARGET_ENDED],
        None,
        [(Kind.FAILED, -1, [("billing", 3), ("orders", 1)])],
    ),
    "what was rolled back was received": (
        [*TWO_SENT, UNDONE, ("billing", received(0)), ("billing", replace(received(1), digest="draft"))],
        Circumstances(is_over=False),
        [(Kind.UNDONE, 1, [("orders", 4), ("billing", 2)])],
    ),
    "a dialog that was rolled back was received": (
        [UNDONE, ("billing", replace(received(1), digest="draft"))],
        None,
        [(Kind.UNDONE, 1, [("orders", 1), ("billing", 1)])],
    ),
    "other headers": (
        [BEGAN, ("orders", replace(sent(0), beside="a")), ("billing", replace(received(0), beside="b"))],
        None,
        [(Kind.BESIDE, 0, [("orders", 2), ("billing", 1)])],
    ),
    "headers were lost": (
        [BEGAN, ("orders", replace(sent(0), beside="a")), ("billing", received(0))],
        None,
        [(Kind.BESIDE, 0, [("orders", 2), ("billing", 1)])],
    ),
    "another priority at the target": (
        [("orders", replace(began(), priority=9)), TWO_SENT[1], ("billing", came(received(0), priority=5))],
        None,
        [(Kind.PRIORITY, 0, [("billing", 1), ("orders", 1)])],
    ),
    "the less urgent first, in one call": (
        [
            BEGAN,
            ("orders", began(OTHER)),
            ("orders", sent(0)),
            ("orders", replace(sent(0), conversation=OTHER)),
            ("billing", came(received(0), priority=2)),
            ("billing", came(replace(received(0), conversation=OTHER), priority=9)),
        ],
        None,
        [(Kind.URGENCY, 0, [("billing", 1), ("billing", 2)])],
    ),
    "an error behind what waits, in one call": (
        [
            *TWO_SENT,
            ("billing", came(received(0))),
            ("billing", came(received(1))),
            INITIATOR_FAILED,
            ("billing", came(HEARD[1])),
            TARGET_ENDED,
        ],
        None,
        [(Kind.URGENCY, 1, [("billing", 2), ("billing", 3)])],
    ),
    "another group than was asked for": (
        [*TWO_SENT[:2], ("billing", replace(came(received(0), group="one"), asked_group="other"))],
        None,
        [(Kind.GROUP, 0, [("billing", 1)])],
    ),
    "begun in another group than it was related to": (
        [("orders", replace(began(), group="one", asked_group="other"))],
        None,
        [(Kind.GROUP, -1, [("orders", 1)])],
    ),
    "an answer in another group than its dialog began in": (
        [("orders", replace(began(), group="one")), *ANSWERED[1:-1], ("orders", came(ANSWERED[-1][1], group="two"))],
        None,
        [(Kind.GROUP, 0, [("orders", 4), ("orders", 1)])],
    ),
    "a target that changed its group": (
        [*TWO_SENT, ("billing", came(received(0), group="one")), ("billing", came(received(1), group="two"))],
        None,
        [(Kind.GROUP, 1, [("billing", 2), ("billing", 1)])],
    ),
    "two targets in one group": (
        [
            BEGAN,
            ("orders", began(OTHER)),
            ("orders", sent(0)),
            ("orders", replace(sent(0), conversation=OTHER)),
            ("billing", came(received(0), group="one")),
            ("billing", came(replace(received(0), conversation=OTHER), group="one")),
        ],
        None,
        [(Kind.GROUP, 0, [("billing", 2), ("billing", 1)])],
    ),
    "a timer that never came": ([BEGAN, SET], None, [(Kind.LOST, -1, [("orders", 2)])]),
    "a timer that never came, long before its side ended": (
        [BEGAN, SET, INITIATOR_ENDED],
        Circumstances(utc_at_zero=38.2),
        [(Kind.LOST, -1, [("orders", 3)]), (Kind.LOST, -1, [("orders", 2)])],
    ),
    "the second of two timers never came": (
        [BEGAN, SET, TIMER, ("orders", replace(SET[1], until=20.0, until_most=20.0))],
        None,
        [(Kind.LOST, -1, [("orders", 4)])],
    ),
    "a timer that came twice": ([BEGAN, SET, TIMER, TIMER], None, [(Kind.DOUBLED, -1, [("orders", 4), ("orders", 2)])]),
    "a timer that nobody set": ([BEGAN, TIMER], None, [(Kind.INVENTED, -1, [("orders", 2)])]),
    "a timer before its time, as its daemon says": (
        [BEGAN, SET, ("orders", replace(TIMER[1], stored_at=9.7))],
        None,
        [(Kind.EARLY, -1, [("orders", 3), ("orders", 2)])],
    ),
    "a timer before its time, as its application knows": (
        [BEGAN, SET, ("orders", replace(TIMER[1], until=9.7))],
        None,
        [(Kind.EARLY, -1, [("orders", 3), ("orders", 2)])],
    ),
    "a timer at a mirror": (
        [BEGAN, SET, ("orders", Event(What.ROLE, note="mirror")), TIMER],
        None,
        [(Kind.TO_MIRROR, -1, [("orders", 4)])],
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_each_wrong_is_found_and_named(name: str) -> None:
    told, circumstances, expected = CASES[name]

    found = [(verdict.kind, verdict.number, list(verdict.lines)) for verdict in judge(entries(*told), circumstances)]

    assert expected == found


SOUND_HISTORIES = {
    "a whole dialog": SOUND,
    "one that its target ended with an error": ENDED_WITH_ERROR,
    "one that failed though its target had ended it with an error": [
        *TWO_THERE, ("billing", sent(0, is_initiator=False)), TARGET_FAILED, ("orders", error(-8489)),
    ],
    "one that failed at its target sooner, by what it was told": [
        *TWO_SENT, ("billing", error(-8489, is_initiator=False, stored_at=UNTIL - 1.1)), ("orders", error(-8489)),
    ],
    "stored before the look that found nothing, when a daemon needed seconds to commit": [
        *TWO_SENT[:2], ("billing", replace(received(0), idle_at=UNTIL + 10.0)),
    ],
    "one that failed at its lifetime": EXPIRED,
    "sent in a file that is read later": [BEGAN, ("billing", received(0)), ("orders", sent(0))],
    "a mirror that became the principal": [
        ("billing", Event(What.ROLE, note="mirror")), ("billing", Event(What.ROLE, note="principal")), *TWO_THERE,
    ],
    "one that failed before its target heard of it": [*TWO_SENT, ("orders", error(-8489))],
    "answers that do not come to one who has failed": [
        *TWO_THERE, ("billing", sent(0, is_initiator=False)), TARGET_ENDED,
        ("orders", error(-8489)), ("orders", Event(What.ENDED, DIALOG)),
    ],
    "an error that is received before what waits": [
        *TWO_SENT, ("billing", received(0)), ("billing", error(-8489, is_initiator=False)), ("billing", received(1)),
        ("orders", error(-8489)),
    ],
    "received in time as far as clocks can tell": [*TWO_SENT[:2], ("billing", received(0, stored_at=UNTIL + 1.5))],
    "one that its initiator ended first": [*ANSWERED, INITIATOR_ENDED, END_HEARD, TARGET_ENDED],
    "one that its initiator ended first, and the target forgot": [
        *ANSWERED, INITIATOR_ENDED, END_HEARD, TARGET_CLEANED,
    ],
    "one that its initiator ended before the answers came": [
        *ANSWERED, INITIATOR_ENDED, ("billing", sent(1, is_initiator=False)), END_HEARD, TARGET_ENDED,
    ],
    "one that both ended before they heard of it": [*ANSWERED, INITIATOR_ENDED, TARGET_ENDED],
    "one that its initiator ended with an error, read before what waits": [
        *TWO_SENT, ("billing", received(0)), INITIATOR_FAILED, ("billing", came(HEARD[1])),
        ("billing", came(received(1), call=2.0)), TARGET_ENDED,
    ],
    "one that its initiator has forgotten before all was sent": [
        *TWO_SENT, ("billing", received(0)), ("billing", sent(0, is_initiator=False)), INITIATOR_CLEANED, GONE_HEARD,
        TARGET_ENDED,
    ],
    "one that its initiator has forgotten, and whose lifetime was over": [
        *TWO_THERE, INITIATOR_CLEANED, ("billing", error(-8489, is_initiator=False)), TARGET_ENDED,
    ],
    "one that its initiator has forgotten before its target heard of it": [*TWO_SENT, INITIATOR_CLEANED],
    "sent again when it had been rolled back": [*TWO_SENT, UNDONE, *TWO_THERE[3:]],
    "sent again as it was when it had been rolled back": [
        *TWO_SENT, ("orders", replace(sent(1), what=What.UNDONE)), *TWO_THERE[3:],
    ],
    "headers as they were sent": [
        BEGAN, ("orders", replace(sent(0), beside="a")), ("billing", replace(received(0), beside="a")),
    ],
    "an error, then what is more urgent, then the rest, and another call": [
        ("orders", replace(began(), priority=9)), *TWO_SENT[1:], INITIATOR_FAILED,
        ("billing", came(HEARD[1], priority=9)), ("billing", came(received(0), priority=9)),
        ("billing", came(received(1), priority=9, call=2.0)), TARGET_ENDED,
    ],
    "the less urgent in an earlier call": [
        BEGAN, ("orders", began(OTHER)), ("orders", sent(0)), ("orders", replace(sent(0), conversation=OTHER)),
        ("billing", came(received(0), priority=2)),
        ("billing", came(replace(received(0), conversation=OTHER), priority=9, call=2.0)),
    ],
    "two dialogs of one group, and each target in its own": [
        ("orders", replace(began(), group="one")), ("orders", replace(began(OTHER), group="one", asked_group="one")),
        ("orders", sent(0)), ("orders", replace(sent(0), conversation=OTHER)),
        ("billing", replace(came(received(0), group="a"), asked_group="a")),
        ("billing", came(replace(received(0), conversation=OTHER), group="b")),
    ],
    "two timers, one after the other": [BEGAN, SET, TIMER, SET, TIMER],
    "a timer of a dialog that failed": [*TWO_SENT, SET, ("orders", error(-8489)), INITIATOR_ENDED],
    "a timer of a side that ended before it was due": [*TWO_THERE, SET, INITIATOR_ENDED, END_HEARD, TARGET_ENDED],
}  # fmt: skip


@pytest.mark.parametrize("name", SOUND_HISTORIES)
def test_nothing_is_found_where_nothing_is_wrong(name: str) -> None:
    assert [] == judge(entries(*SOUND_HISTORIES[name]), Circumstances(held=[]))


def test_what_is_still_on_its_way_is_not_lost_yet() -> None:
    assert [] == judge(entries(*TWO_SENT), Circumstances(is_over=False))


def test_what_waits_in_the_queue_of_its_receiver_is_neither_lost_nor_gone() -> None:
    told = [*TWO_SENT, ("billing", received(0))]

    assert [] == judge(entries(*told), Circumstances(held=[], waiting=[(DIALOG, True, 1)]))


def test_a_clock_that_was_wrong_proves_nothing_about_timers() -> None:
    early, lost = [BEGAN, SET, ("orders", replace(TIMER[1], stored_at=1.0))], [BEGAN, SET]

    for told in (early, lost):
        assert [] == judge(entries(*told), Circumstances(astray=[("orders", (1.0, 1.5))]))
    assert [] == judge(entries(*lost), Circumstances(astray=[("orders", (-90.0, -59.0))]))


def test_two_files_of_one_database_divide_nothing() -> None:
    told = [*TWO_SENT, ("billing", received(0)), ("billing-2", received(1))]

    assert [] == judge(entries(*told), Circumstances(copies={"billing": "billing", "billing-2": "billing"}))


def test_a_clock_that_was_wrong_proves_nothing_about_lifetimes() -> None:
    told = [*TWO_SENT[:2], ("billing", received(0, stored_at=UNTIL + 3600))]

    assert [] == judge(entries(*told), Circumstances(astray=[("billing", (1.0, 1.5))]))


def test_what_was_sent_long_after_the_lifetime_is_late_whatever_its_daemon_says() -> None:
    told = entries(*TWO_SENT[:2], ("billing", received(0)))
    told[1:] = [replace(entry, at=UNTIL + 15.0) for entry in told[1:]]

    assert [Kind.LATE] == [verdict.kind for verdict in judge(told)]


def test_a_clock_that_has_just_jumped_ends_nothing_yet() -> None:
    told = [*TWO_SENT[:2], ("billing", received(0, stored_at=UNTIL + 3.0))]

    assert [] == judge(entries(*told), Circumstances(astray=[("billing", (-90.0, -59.0))]))
    assert [] != judge(entries(*told), Circumstances(astray=[("billing", (-90.0, -63.0))]))


def test_a_dialog_that_began_while_the_clock_was_ahead_outlives_its_far_side() -> None:
    over = ("billing", error(-8489, is_initiator=False, stored_at=5.0))
    told = [("orders", replace(began(), until=1800.0)), *TWO_SENT[1:], ("billing", received(0)), over]
    ahead = Circumstances(held=[], astray=[("orders", (0.0, 1.5))])

    assert [] == judge(entries(*told), ahead)
    assert {Kind.GONE, Kind.LOST} <= {one.kind for one in judge(entries(*told), replace(ahead, astray=[]))}
    short = [("orders", replace(began(), until=4.0)), *told[1:]]
    assert {Kind.GONE, Kind.LOST} == {one.kind for one in judge(entries(*short), ahead)}
    assert {Kind.GONE} == {one.kind for one in judge(entries(*told[:-1]), ahead)}


def test_a_clock_that_was_wrong_proves_nothing_about_what_was_asked_for() -> None:
    told = [("orders", began(said_until=UNTIL + 1800.0)), *TWO_THERE[1:]]

    assert [] == judge(entries(*told), Circumstances(astray=[("orders", (0.0, 5.0))]))


def test_a_dialog_received_by_who_has_the_service_is_where_it_should_be() -> None:
    assert [] == judge(entries(*SOUND), Circumstances(services=SERVICES))


def test_an_initiator_with_two_files_hears_its_answers_in_both() -> None:
    told = [*TWO_THERE, ("billing", sent(0, is_initiator=False)), ("orders-2", received(0, by_initiator=True))]

    assert [] == judge(entries(*told), Circumstances(copies={"orders": "orders", "orders-2": "orders"}))


def test_what_a_fault_can_have_hidden_is_not_late() -> None:
    told = [*TWO_SENT[:2], ("billing", received(0, stored_at=UNTIL + 5.5))]
    utc_at_zero = UNTIL - 100.0

    assert [] == judge(entries(*told), Circumstances(hidden=[(100.5, 104.5)], utc_at_zero=utc_at_zero))


def test_a_verdict_is_a_sentence_with_its_proof() -> None:
    [verdict] = judge(entries(*TWO_THERE, ("billing", received(1))))

    expected = f"doubled: orders: message 1 of dialog {DIALOG}: received twice (orders:3, billing:2, billing:3)"
    assert expected == str(verdict)


def long_history(dialogs: int = 6, messages: int = 20) -> list[tuple[str, Event]]:
    """A sound one, of several dialogs side by side, each message answered."""
    told: list[tuple[str, Event]] = []
    names = [f"0d000000-0000-4000-8000-00000000000{number}" for number in range(dialogs)]
    told += [("orders", began(name)) for name in names]
    for number in range(messages):
        for name in names:
            for application, is_initiator in (("orders", True), ("billing", False)):
                digest = f"{name}{is_initiator}{number}"
                far = "billing" if is_initiator else "orders"
                one = Event(What.SENT, name, is_initiator=is_initiator, number=number, digest=digest)
                told += [
                    (application, one),
                    (far, replace(one, what=What.RECEIVED, is_initiator=not is_initiator, stored_at=1.0)),
                ]
    return told


def places(told: list[tuple[str, Event]], what: What) -> list[int]:
    return [place for place, (_, event) in enumerate(told) if event.what is what]


def drop(told: list[tuple[str, Event]], dice: random.Random) -> Kind:
    del told[dice.choice(places(told, What.RECEIVED))]
    return Kind.GONE


def double(told: list[tuple[str, Event]], dice: random.Random) -> Kind:
    place = dice.choice(places(told, What.RECEIVED))
    told.insert(dice.randrange(place + 1, len(told) + 1), told[place])
    return Kind.DOUBLED


def exchange(told: list[tuple[str, Event]], dice: random.Random) -> Kind:
    one = dice.choice(places(told, What.RECEIVED))
    like = told[one][1]
    others = [
        place
        for place in places(told, What.RECEIVED)
        if place != one
        and (told[place][1].conversation, told[place][1].is_initiator) == (like.conversation, like.is_initiator)
    ]
    other = dice.choice(others)
    told[one], told[other] = told[other], told[one]
    return Kind.REORDERED


def corrupt(told: list[tuple[str, Event]], dice: random.Random) -> Kind:
    place = dice.choice(places(told, What.RECEIVED))
    told[place] = told[place][0], replace(told[place][1], digest="corrupted")
    return Kind.INVENTED


def confuse(told: list[tuple[str, Event]], dice: random.Random) -> Kind:
    place = dice.choice(places(told, What.RECEIVED))
    wrong = dice.choice(sorted({event.conversation for _, event in told} - {told[place][1].conversation}))
    told[place] = told[place][0], replace(told[place][1], conversation=wrong)
    return Kind.INVENTED


def delay(told: list[tuple[str, Event]], dice: random.Random) -> Kind:
    place = dice.choice(places(told, What.RECEIVED))
    told[place] = told[place][0], replace(told[place][1], stored_at=UNTIL + 3)
    return Kind.LATE


def unsend(told: list[tuple[str, Event]], dice: random.Random) -> Kind:
    del told[dice.choice(places(told, What.SENT))]
    return Kind.INVENTED


def mislead(told: list[tuple[str, Event]], dice: random.Random) -> Kind:
    place = dice.choice(places(told, What.RECEIVED))
    role = [(told[place][0], Event(What.ROLE, note=note)) for note in ("mirror", "principal")]
    told[place : place + 1] = [role[0], told[place], role[1]]
    return Kind.TO_MIRROR


def fail(told: list[tuple[str, Event]], dice: random.Random) -> Kind:
    name = told[dice.choice(places(told, What.BEGAN))][1].conversation
    told.insert(dice.randrange(len(told)), ("orders", Event(What.ERROR, name, number=-8495, stored_at=1.0)))
    return Kind.FAILED


def divert(told: list[tuple[str, Event]], dice: random.Random) -> Kind:
    place = dice.choice([place for place in places(told, What.RECEIVED) if told[place][0] == "billing"])
    told[place] = "billing-2", told[place][1]
    return Kind.SPLIT


def renumber(told: list[tuple[str, Event]], dice: random.Random) -> Kind:
    place = dice.choice(places(told, What.RECEIVED))
    told[place] = told[place][0], replace(told[place][1], number=told[place][1].number + dice.choice([-1, 1, 1000]))
    return Kind.MISNUMBERED


def misdeliver(told: list[tuple[str, Event]], dice: random.Random) -> Kind:
    place = dice.choice([place for place in places(told, What.RECEIVED) if told[place][0] == "orders"])
    told[place] = "orders-2", told[place][1]
    return Kind.MISDELIVERED


def number_anew(told: list[tuple[str, Event]], dice: random.Random) -> Kind:
    """As if two had been sent in the other order, by all that the system says."""
    one = dice.choice(places(told, What.SENT))
    like = told[one][1]
    name, side = like.conversation, like.is_initiator
    sent_there = [
        place
        for place in places(told, What.SENT)
        if (told[place][1].conversation, told[place][1].is_initiator) == (name, side) and place != one
    ]
    other = dice.choice(sent_there)
    told[one], told[other] = told[other], told[one]
    return Kind.REORDERED


MUTATIONS = [
    *(drop, double, exchange, corrupt, confuse, delay, unsend, mislead, fail, divert, renumber),
    *(misdeliver, number_anew),
]


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda one: one.__name__)
def test_any_one_change_of_a_sound_history_is_found(
    mutation: Callable[[list[tuple[str, Event]], random.Random], Kind],
) -> None:
    assert [] == judge(entries(*long_history()), Circumstances(held=[]))

    for seed in range(20):
        told = long_history()
        kind = mutation(told, random.Random(seed))

        assert kind in {verdict.kind for verdict in judge(entries(*told), Circumstances(held=[]))}, f"seed {seed}"


def varied_history() -> list[tuple[str, Event]]:
    """A sound one: two related dialogs with headers, priorities and timers, one that is cleaned up, and a draft."""
    told: list[tuple[str, Event]] = []
    names = [f"0d000000-0000-4000-8000-00000000000{number}" for number in range(3)]
    levels = dict(zip(names, (9, 2, 5), strict=True))
    told += [
        ("orders", replace(began(name), priority=levels[name], group="group", asked_group="group")) for name in names
    ]
    for number in range(8):
        call = float(number + 1)
        for name in names[:2]:
            told.append(("orders", Event(What.SET, name, until=call, until_most=call)))
            told.append(("orders", Event(What.TIMER, name, stored_at=call, until=call, group="group", call=call + 0.5)))
        one = Event(What.SENT, number=number)
        sent_ones = [
            replace(one, conversation=name, digest=f"{name}{number}", beside=f"{name}{number}") for name in names
        ]
        told += [("orders", replace(one, what=What.UNDONE, digest=f"{one.digest}draft")) for one in sent_ones]
        told += [("orders", one) for one in sent_ones]
        ordered = sorted(sent_ones, key=lambda one: -levels[one.conversation])
        for one in ordered:
            there = replace(one, what=What.RECEIVED, is_initiator=False, stored_at=1.0, group=f"of {one.conversation}")
            told.append(("billing", came(there, call=call, priority=levels[one.conversation], group=there.group)))
    told.append(("orders", Event(What.CLEANED, names[2])))
    told.append(("billing", Event(What.ERROR, names[2], is_initiator=False, number=-8462, stored_at=5.0)))
    told += [("orders", Event(What.ENDED, name)) for name in names[:2]]
    told += [("billing", Event(What.END, name, is_initiator=False)) for name in names[:2]]
    return told


def change(told: list[tuple[str, Event]], place: int, **values: object) -> None:
    told[place] = told[place][0], replace(told[place][1], **values)  # type: ignore[arg-type]


def behead(told: list[tuple[str, Event]], dice: random.Random) -> Kind:
    change(told, dice.choice(places(told, What.RECEIVED)), beside="")
    return Kind.BESIDE


def demote(told: list[tuple[str, Event]], dice: random.Random) -> Kind:
    change(told, dice.choice(places(told, What.RECEIVED)), priority=dice.choice([1, 3, 10]))
    return Kind.PRIORITY


def overtake(told: list[tuple[str, Event]], dice: random.Random) -> Kind:
    place = dice.choice(places(told, What.RECEIVED)[::3])
    told[place : place + 3] = reversed(told[place : place + 3])
    return Kind.URGENCY


def regroup(told: list[tuple[str, Event]], dice: random.Random) -> Kind:
    change(told, dice.choice(places(told, What.RECEIVED) + places(told, What.TIMER)), group="another")
    return Kind.GROUP


def share(told: list[tuple[str, Event]], dice: random.Random) -> Kind:
    for place in places(told, What.RECEIVED):
        change(told, place, group="one")
    return Kind.GROUP


def leak(told: list[tuple[str, Event]], dice: random.Random) -> Kind:
    place = dice.choice(places(told, What.RECEIVED))
    change(told, place, digest=f"{told[place][1].digest}draft")
    return Kind.UNDONE


def stop(told: list[tuple[str, Event]], dice: random.Random) -> Kind:
    del told[dice.choice(places(told, What.TIMER))]
    return Kind.LOST


def ring_again(told: list[tuple[str, Event]], dice: random.Random) -> Kind:
    place = places(told, What.TIMER)[-dice.randint(1, 2)]
    told.insert(dice.randrange(place + 1, len(told)), told[place])
    return Kind.DOUBLED


def ring_early(told: list[tuple[str, Event]], dice: random.Random) -> Kind:
    place = dice.choice(places(told, What.TIMER))
    change(told, place, **{dice.choice(["stored_at", "until"]): told[place][1].until - dice.uniform(0.25, 3.0)})
    return Kind.EARLY


def keep_secret(told: list[tuple[str, Event]], dice: random.Random) -> Kind:
    del told[dice.choice(places(told, What.ERROR) + places(told, What.END))]
    return Kind.LOST


def skip(told: list[tuple[str, Event]], dice: random.Random) -> Kind:
    """Not even a dialog that was cleaned up may have a gap."""
    cleaned = [place for place in places(told, What.RECEIVED) if told[place][1].conversation.endswith("2")]
    del told[dice.choice(cleaned[:-1])]
    return Kind.GONE


VARIED_MUTATIONS = [
    *(behead, demote, overtake, regroup, share, leak, stop, ring_again, ring_early, keep_secret, skip),
]


@pytest.mark.parametrize("mutation", VARIED_MUTATIONS, ids=lambda one: one.__name__)
def test_any_one_change_of_a_sound_history_of_other_shapes_is_found(
    mutation: Callable[[list[tuple[str, Event]], random.Random], Kind],
) -> None:
    known = Circumstances(held=[])
    assert [] == judge(entries(*varied_history()), known)

    for seed in range(20):
        told = varied_history()
        kind = mutation(told, random.Random(seed))

        assert kind in {verdict.kind for verdict in judge(entries(*told), known)}, f"seed {seed}"
