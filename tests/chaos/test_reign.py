"""What the partners of a pair with one file say is judged: no mirror delivers, and no epoch is that of both."""

from __future__ import annotations

import random
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.chaos import lock_pair
from tests.chaos.cast import STOCK
from tests.chaos.chapter import read_chapter
from tests.chaos.faults.overtaking import Overtaken
from tests.chaos.history import What
from tests.chaos.job import Orders
from tests.chaos.judge import judge
from tests.chaos.reign import Watch
from tests.chaos.verdict import Kind

ONE, OTHER = STOCK
PRINCIPAL, MIRROR = ("principal", "noon", 3), ("mirror", "noon", 3)


@pytest.fixture
def watch(tmp_path: Path) -> Watch:
    """In a phase; nobody is asked."""
    fleet: Any = SimpleNamespace(histories=tmp_path / "histories", orders=tmp_path / "orders.json")
    Orders("001-kill", is_sending=True).write(fleet.orders)
    return Watch(fleet)


def found(watch: Watch, tmp_path: Path) -> list[Kind]:
    return [verdict.kind for verdict in judge(read_chapter(tmp_path / "histories" / "001-kill"))]


def test_a_mirror_that_delivers_is_found(watch: Watch, tmp_path: Path) -> None:
    watch.note(ONE, MIRROR, 100, 7)
    watch.note(ONE, MIRROR, 100, 9)

    [verdict] = judge(read_chapter(tmp_path / "histories" / "001-kill"))
    assert Kind.TO_MIRROR is verdict.kind
    assert "2 messages, by its own count" in str(verdict)


@pytest.mark.parametrize(
    "second",
    [
        (MIRROR, 100, 7),
        (("mirror", "one o'clock", 4), 100, 9),
        (MIRROR, 101, 9),
        (PRINCIPAL, 100, 9),
    ],
    ids=["nothing came", "it was the principal meanwhile", "another process", "it is the principal"],
)
def test_what_is_delivered_by_who_was_the_principal_is_right(
    watch: Watch, tmp_path: Path, second: tuple[tuple[str, str, int], int, int]
) -> None:
    watch.note(ONE, MIRROR, 100, 7)
    watch.note(ONE, *second)

    assert [] == found(watch, tmp_path)
    assert [] == watch.wrong


@pytest.mark.parametrize(("principal", "count"), [(ONE, 0), (OTHER, 1)])
def test_who_has_stepped_down_may_store_what_had_come_until_its_partner_has_the_database(
    principal: str, count: int, watch: Watch, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    delivered = iter([7, 9])
    monkeypatch.setattr(watch._fleet, "principal", principal, raising=False)
    monkeypatch.setattr(watch, "_reign", lambda name: MIRROR if name == ONE else None)
    monkeypatch.setattr(watch, "_process", lambda name: 100)
    monkeypatch.setattr(watch, "_delivered", lambda name: next(delivered) if name == ONE else None)

    watch.look()
    watch.look()

    histories = tmp_path / "histories" / "001-kill"
    assert count == sum(one.kind is Kind.TO_MIRROR for one in judge(read_chapter(histories)))


def test_each_change_of_a_role_is_told_once(watch: Watch, tmp_path: Path) -> None:
    for reign in (MIRROR, MIRROR, PRINCIPAL, MIRROR):
        watch.note(ONE, reign, 100, 7)

    entries = read_chapter(tmp_path / "histories" / "001-kill")
    assert ["mirror", "principal", "mirror"] == [one.event.note for one in entries if one.event.what is What.ROLE]


def test_an_epoch_of_both_partners_is_found_and_one_for_each_is_not(watch: Watch) -> None:
    watch.note(ONE, PRINCIPAL, 100, 0)
    watch.note(ONE, PRINCIPAL, 100, 0)
    watch.note(OTHER, ("principal", "noon", 4), 200, 0)
    before = list(watch.wrong)
    watch.note(OTHER, PRINCIPAL, 200, 0)

    assert [] == before
    assert [f"two principals of epoch 3: {ONE} and {OTHER}"] == watch.wrong


def test_a_principal_that_was_followed_though_it_had_the_lock_is_told_once(watch: Watch, tmp_path: Path) -> None:
    demoted = '{"event":"database demoted","reason":"another daemon has taken it over: its epoch is 3, ours was 2"}'
    logs = {name: tmp_path / f"{name}.log" for name in STOCK}
    logs[ONE].write_text(f'{{"event":"database demoted","reason":"handed over"}}\n{demoted}\n{demoted}\n{demoted[:40]}')
    logs[OTHER].write_text('{"event":"database taken over"}\n')
    daemons: Any = {name: SimpleNamespace(log=log) for name, log in logs.items()}
    watch._fleet.daemons = daemons

    watch.read_logs()
    watch.read_logs()

    assert [f"{ONE} was followed 2 times though it had the lock"] == watch.wrong


class Locked:
    """As much of a fleet as these ask. Shape: `said` what each partner says that it is; `done` what was done."""

    has_lock = True
    principal = ONE
    mirror = OTHER

    def __init__(self, **said: str) -> None:
        self.said = {name.replace("_", "-"): role for name, role in said.items()}
        self.done: list[str] = []
        self.wrong: list[str] = []
        self.watch: Any = SimpleNamespace(roles=lambda: self.said, look=lambda: None, read_logs=lambda: None, wrong=[])
        self.daemons = {name: SimpleNamespace(is_running=name in self.said) for name in STOCK}
        self.traffic = SimpleNamespace(carried=lambda _: 1)

    def freeze(self, name: str) -> None:
        self.done.append(f"freeze {name}")

    def thaw(self, name: str) -> None:
        self.done.append(f"thaw {name}")

    def pause(self, seconds: float) -> None:
        self.done.append("pause")


@pytest.mark.parametrize(
    ("said", "count"),
    [
        ({"stock_1": "principal", "stock_2": "mirror"}, 0),
        ({"stock_1": "principal"}, 0),
        ({"stock_1": "principal", "stock_2": "principal"}, 1),
        ({"stock_1": "mirror", "stock_2": "mirror"}, 1),
    ],
)
def test_roles_that_contradict_the_file_are_told(
    monkeypatch: pytest.MonkeyPatch, said: dict[str, str], count: int
) -> None:
    monkeypatch.setattr(lock_pair, "SECONDS", 0.01)

    told = lock_pair.contradictions(Locked(**said))  # type: ignore[arg-type]

    assert count == len(told)
    assert all(one.startswith("another role than the file of the pair tells: ") for one in told)


def overtaken(fleet: Locked) -> Overtaken:
    return Overtaken(fleet, random.Random(1), STOCK)  # type: ignore[arg-type]


def test_a_principal_with_a_lock_that_stands_still_may_not_be_followed() -> None:
    fleet = Locked(stock_1="principal", stock_2="mirror")

    overtaken(fleet).begin()

    assert [f"freeze {ONE}", "pause", f"thaw {ONE}"] == fleet.done


def test_one_that_was_followed_is_told_and_goes_on() -> None:
    fleet = Locked(stock_1="principal", stock_2="principal")

    with pytest.raises(AssertionError, match=f"{OTHER} is principal while {ONE} stands still and has the lock"):
        overtaken(fleet).begin()

    assert [f"freeze {ONE}", "pause", f"thaw {ONE}"] == fleet.done
