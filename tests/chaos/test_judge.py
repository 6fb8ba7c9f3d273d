"""The judge finds each thing that must not be, and nothing in a sound history."""

import random
from collections.abc import Callable

import pytest
from msgspec.structs import replace

from tests.chaos.history import Entry, Event, What
from tests.chaos.judge import Circumstances, Kind, judge

UNTIL = 1000.0
DIALOGS = [f"0d000000-0000-4000-8000-00000000000{number}" for number in range(3)]
Told = list[tuple[str, Event]]
"""Application and event; one a second. The database has the application's name."""


def entries(told: Told) -> list[Entry]:
    return [Entry(name, name, at + 1, float(at), event) for at, (name, event) in enumerate(told)]


def sound() -> Told:
    """Dialogs side by side, each message answered, with drafts, timers and headers."""
    note = "//chaos/Billing handle"
    began = Event(What.BEGAN, until=UNTIL - 0.1, until_most=UNTIL, said_until=UNTIL, note=note)
    told = [("orders", replace(began, conversation=name, priority=5)) for name in DIALOGS]
    for number in range(12):
        at = float(number + 1)
        for name in DIALOGS:
            told.append(("orders", Event(What.SET, name, until=at, until_most=at)))
            told.append(("orders", Event(What.TIMER, name, stored_at=at, until=at)))
            for near, far, is_initiator in (("orders", "billing", True), ("billing", "orders", False)):
                digest = f"{name}{is_initiator}{number}"
                one = Event(What.SENT, name, is_initiator=is_initiator, number=number, digest=digest, beside=digest)
                told.append((near, replace(one, what=What.UNDONE, digest=f"{digest}draft")))
                told.append((near, one))
                came = replace(one, what=What.RECEIVED, is_initiator=not is_initiator, stored_at=1.0, priority=5)
                told.append((far, came))
    return told


def places(told: Told, what: What, application: str = "") -> list[int]:
    return [n for n, (name, event) in enumerate(told) if event.what is what and application in {"", name}]


def change(what: What, application: str = "", **values: object) -> Callable[[Told, random.Random], None]:
    """One event of this kind has other values."""

    def do(told: Told, dice: random.Random) -> None:
        place = dice.choice(places(told, what, application))
        told[place] = told[place][0], replace(told[place][1], **values)

    return do


def drop(what: What) -> Callable[[Told, random.Random], None]:
    def do(told: Told, dice: random.Random) -> None:
        del told[dice.choice(places(told, what))]

    return do


def double(told: Told, dice: random.Random) -> None:
    place = dice.choice(places(told, What.RECEIVED))
    told.insert(dice.randrange(place + 1, len(told) + 1), told[place])


def exchange(told: Told, dice: random.Random) -> None:
    """Two messages of one direction."""
    one = dice.choice(places(told, What.RECEIVED))
    like = told[one][1]
    others = [n for n in places(told, What.RECEIVED) if n != one and told[n][1].side == like.side]
    other = dice.choice(others)
    told[one], told[other] = told[other], told[one]


def leak(told: Told, dice: random.Random) -> None:
    place = dice.choice(places(told, What.RECEIVED))
    told[place] = told[place][0], replace(told[place][1], digest=f"{told[place][1].digest}draft")


def move(application: str, to: str) -> Callable[[Told, random.Random], None]:
    def do(told: Told, dice: random.Random) -> None:
        place = dice.choice(places(told, What.RECEIVED, application))
        told[place] = to, told[place][1]

    return do


def mislead(told: Told, dice: random.Random) -> None:
    place = dice.choice(places(told, What.RECEIVED))
    mirror, principal = [(told[place][0], Event(What.ROLE, note=note)) for note in ("mirror", "principal")]
    told[place : place + 1] = [mirror, told[place], principal]


def fail(told: Told, dice: random.Random) -> None:
    told.insert(dice.randrange(3, len(told)), ("orders", Event(What.ERROR, DIALOGS[0], number=-8495, stored_at=1.0)))


PLANTED: list[tuple[Kind, Callable[[Told, random.Random], None]]] = [
    (Kind.GONE, drop(What.RECEIVED)),
    (Kind.DOUBLED, double),
    (Kind.REORDERED, exchange),
    (Kind.INVENTED, change(What.RECEIVED, digest="corrupted")),
    (Kind.INVENTED, drop(What.SENT)),
    (Kind.LATE, change(What.RECEIVED, stored_at=UNTIL + 3)),
    (Kind.MISNUMBERED, change(What.RECEIVED, number=1000)),
    (Kind.SPLIT, move("billing", "billing-2")),
    (Kind.MISDELIVERED, move("orders", "orders-2")),
    (Kind.TO_MIRROR, mislead),
    (Kind.FAILED, fail),
    (Kind.UNDONE, leak),
    (Kind.BESIDE, change(What.RECEIVED, beside="")),
    (Kind.PRIORITY, change(What.RECEIVED, priority=1)),
    (Kind.LOST, drop(What.TIMER)),
    (Kind.EARLY, change(What.TIMER, stored_at=0.0)),
]


@pytest.mark.parametrize(("kind", "plant"), PLANTED, ids=[f"{kind} {n}" for n, (kind, _) in enumerate(PLANTED)])
def test_any_one_change_of_a_sound_history_is_found(kind: Kind, plant: Callable[[Told, random.Random], None]) -> None:
    assert [] == judge(entries(sound()), Circumstances(held=[]))

    for seed in range(20):
        told = sound()
        plant(told, random.Random(seed))

        assert kind in {verdict.kind for verdict in judge(entries(told), Circumstances(held=[]))}, f"seed {seed}"
