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


def came(event: Event, *, call: float = 1.0, priority: int = 5, group: str = "") -> Event:
    """Given by a RECEIVE."""
    return replace(event, call=call, priority=priority, group=group)


BEGAN = ("orders", began())
SET = ("orders", Event(What.SET, DIALOG, until=10.0, until_most=10.1))
TIMER = ("orders", Event(What.TIMER, DIALOG, stored_at=10.2, until=10.3))
UNDONE = ("orders", replace(sent(1), what=What.UNDONE, digest="draft"))


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
