"""Every mistake in a statement about routes, carried out over a store in memory: number, place, and nothing changed."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import AsyncIterator
from contextlib import closing, nullcontext
from itertools import permutations
from pathlib import Path

import pytest

from broker.catalog.catalog import MSDB, Borrow, Catalog, Database
from broker.catalog.execute import execute
from broker.ddl.parser import read_script
from broker.errors import StatementError
from broker.store.sqlite import database
from tests.support.route_errors import ACCEPTED, CASES, EXISTING, NUMBERS, cases_of

NOTHING_IS_READ_BEHIND = {105, 113}


def lent(db: sqlite3.Connection) -> Borrow:
    """The way to a connection that nobody else uses."""
    return lambda: nullcontext(db)


class World:
    """A catalog of msdb and one database, both in memory; the routes of the table are in msdb."""

    def __init__(self, dbs: dict[str, sqlite3.Connection]) -> None:
        self._dbs = dbs
        databases = {name: Database(name, database.broker_instance(db), None, lent(db)) for name, db in dbs.items()}
        self._catalog = Catalog(databases, lambda: None)

    async def run(self, script: str, *, is_declared: bool = False) -> list[str]:
        return await execute(self._catalog, read_script(script), database=MSDB, is_declared=is_declared)

    def stored(self) -> dict[str, list[str]]:
        """Everything that is in the databases."""
        return {name: list(db.iterdump()) for name, db in self._dbs.items()}


@pytest.fixture
async def world() -> AsyncIterator[World]:
    with closing(database.open_store(":memory:")) as msdb, closing(database.open_store(":memory:")) as orders:
        world = World({MSDB: msdb, "orders": orders})
        await world.run(EXISTING)
        yield world


async def refusal(world: World, script: str, *, is_declared: bool = False) -> StatementError:
    """The error in which it ends; nothing may be left of it."""
    before = world.stored()
    with pytest.raises(StatementError) as caught:
        await world.run(script, is_declared=is_declared)
    assert before == world.stored()
    return caught.value


def test_every_number_is_in_the_table_and_no_script_is_there_twice() -> None:
    assert NUMBERS == {case.number for case in CASES}
    assert len(CASES) == len({case.marked for case in CASES})


def test_every_number_is_on_the_page_of_statements() -> None:
    page = (Path(__file__).parents[3] / "docs" / "statements.md").read_text(encoding="utf-8")

    assert NUMBERS <= {int(number) for number in re.findall(r"^\| (\d+) \|", page, re.MULTILINE)}


@pytest.mark.parametrize("number", sorted(NUMBERS))
async def test_a_mistake_has_its_number_and_its_place_and_changes_nothing(world: World, number: int) -> None:
    expected, told = [], []
    for case in cases_of(number):
        error = await refusal(world, case.script)
        expected.append(f"Msg {number}, Level 16, -:{case.line}:{case.column}\n{error.problem}\n{case.caret}")
        told.append(str(error))

    assert expected == told


@pytest.mark.parametrize("number", sorted(NUMBERS))
async def test_a_script_of_the_configuration_is_refused_alike_unless_it_may_say_that_again(
    world: World, number: int
) -> None:
    for case in cases_of(number):
        if case.is_declared_too:
            alone = await refusal(world, case.script)
            declared = await refusal(world, case.script, is_declared=True)
            assert str(alone) == str(declared)
        else:
            assert await world.run(case.script, is_declared=True)


async def test_what_is_just_legal_is_carried_out(world: World) -> None:
    before = world.stored()

    for script in ACCEPTED:
        await world.run(script)
        assert before != world.stored()
        await world.run("DROP ROUTE r")

    assert before == world.stored()


async def test_of_several_mistakes_the_first_one_is_told(world: World) -> None:
    """Whoever finds them: the grammar, the rules of a route, or the database."""
    one_each = [cases_of(number)[0] for number in sorted(NUMBERS - NOTHING_IS_READ_BEHIND)]

    for first, second in permutations(one_each, 2):
        error = await refusal(world, f"{first.script};\n{second.script};")
        assert (first.number, first.line) == (error.number, error.span and error.span.line), second
