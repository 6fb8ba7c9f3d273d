"""docs/from-sql-server.md names everything that the original has, and what it says of each name is so."""

import re
from pathlib import Path

import pytest

from broker.ddl.parser import STATEMENTS, parse_script
from broker.errors import DdlSyntaxError
from broker.flow import COLUMNS, VisitOutcome
from broker.observe.metrics import METRICS
from broker.observe.views import MEMORY_VIEWS
from broker.store.sqlite.views import FILE_VIEWS
from tools.pages.observe import events

PAGE = (Path(__file__).parents[2] / "docs" / "from-sql-server.md").read_text(encoding="utf-8")
VIEWS = {*FILE_VIEWS, *MEMORY_VIEWS}
OURS = {"sys.dm_broker_audit", "sys.dm_broker_dispositions", "sys.dm_broker_ledger", "sys.dm_broker_mirrors"}
EVENT_CLASSES = {124, 136, 138, 139, 140, 141, 142, 143, 144, 149, 158, 159, 160, 161, 163}
COUNTERS = {
    "Broker Statistics": 18,
    "Broker/DBM Transport": 8,
    "Broker Activation": 4,
    "Broker TO Statistics": 1,
}  # rows


def rows_below(heading: str, table: int = 0) -> list[list[str]]:
    """The cells of a table below a heading, without its head."""
    section = PAGE.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    tables = re.findall(r"^\|[^\n]*\n\|[-|]+\|\n((?:\|[^\n]*\n)+)", section, flags=re.MULTILINE)
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in tables[table].splitlines()]


def quoted(cell: str) -> list[str]:
    return re.findall(r"`([^`]+)`", cell)


NAMES = rows_below("Every statement, view, function and permission")


def test_every_statement_and_view_that_the_original_has_too_is_named() -> None:
    as_there = {name for names, here, _ in NAMES for name in quoted(names) if here == "as there"}

    assert set(STATEMENTS) == as_there & set(STATEMENTS)
    assert as_there & VIEWS == VIEWS - OURS
    assert {name for name in as_there if name.startswith("sys.")} <= VIEWS


@pytest.mark.parametrize(
    "name", [name for names, here, _ in NAMES for name in quoted(names) if here == "refused" and "=" not in name]
)
def test_what_is_refused_has_its_sentence(name: str) -> None:
    is_statement = " of a " not in next(names for names, *_ in NAMES if name in quoted(names))
    if not is_statement:
        assert name not in STATEMENTS
        return
    with pytest.raises(DdlSyntaxError, match="is not a statement here"):
        parse_script(f"{name} x")


def test_what_stands_for_a_name_is_there() -> None:
    said = set(re.findall(r"`((?:sys\.|broker_)\w+)", PAGE.partition("\n## Every statement")[2]))
    absent = {name for names, here, _ in NAMES for name in quoted(names) if here == "not there"}

    assert {name for name in said if name.startswith("sys.")} - absent <= VIEWS
    assert {name for name in said if name.startswith("broker_")} <= {one.name for one in METRICS}


def test_every_counter_has_its_row() -> None:
    found: dict[str, int] = {}
    where = ""
    for names, _ in rows_below("Every performance counter"):
        head, colon, _ = names.partition(": ")
        where = head if colon else where
        found[where] = found.get(where, 0) + 1

    assert found == COUNTERS


def test_every_event_class_has_log_events_and_records_that_exist() -> None:
    classes = rows_below("Every Profiler event")
    columns = rows_below("Every Profiler event", 1)
    words = {*(column.name for column in COLUMNS), *map(str, VisitOutcome), "ack"}

    assert {int(name.split()[0]) for name, *_ in classes} == EVENT_CLASSES
    assert {event for _, logged, _ in classes for event in quoted(logged)} <= set(events())
    recorded = {word for *_, cell in (*classes, *columns) for word in quoted(cell)}
    assert {word for word in recorded if not re.match(r"sys\.|broker ", word)} <= words
