"""The house rules that a machine can hold: docstrings, no rings of imports, tables of a database, fates of frames."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import grimp

from broker.flow import NUMBER, Disposition

ROOT = Path(__file__).parents[2]
MODULES = sorted((ROOT / "broker").rglob("*.py"))
COMPILED = sorted([*(ROOT / "broker").rglob("*.pyx"), *(ROOT / "broker").rglob("*.pxi")])
LINE_CHARACTERS = 120  # of compiled files, which ruff does not read


def names(module: Path) -> str:
    return str(module.relative_to(ROOT))


def test_modules_say_what_they_hold() -> None:
    text = {module: module.read_text(encoding="utf-8") for module in (*MODULES, *COMPILED)}

    assert [] == [names(module) for module in MODULES if not ast.get_docstring(ast.parse(text[module]))]
    assert [] == [names(module) for module in COMPILED if not re.match(r'(# cython: .*\n)?"""\n', text[module])]
    lines = [line for module in COMPILED for line in text[module].splitlines()]
    assert [] == [line for line in lines if len(line) > LINE_CHARACTERS]


def rings(*, with_types: bool) -> list[set[str]]:
    """For each module that leads back to itself all those that it leads to and that lead to it."""
    graph = grimp.build_graph("broker", exclude_type_checking_imports=not with_types, cache_dir=None)
    both = {one: graph.find_upstream_modules(one) & graph.find_downstream_modules(one) for one in graph.modules}
    return [{one, *others} for one, others in both.items() if others]


def test_modules_import_each_other_in_no_ring_and_for_types_in_none_of_more_than_two() -> None:
    """Nor inside functions."""
    assert [] == rings(with_types=False)
    assert [] == [ring for ring in rings(with_types=True) if len(ring) > 2]


# Who may name the tables of a database: the store, and what runs in the transactions of applications.
KEEPERS = (ROOT / "broker" / "store", ROOT / "broker" / "client")
TABLES = re.findall(
    r"^CREATE TABLE (broker_\w+)", (KEEPERS[0] / "sqlite" / "schema.sql").read_text(encoding="utf-8"), re.MULTILINE
)
NAMES_A_TABLE = re.compile(
    rf"\b(?:{'|'.join(TABLES)})\b|\b(?:FROM|INTO|UPDATE|JOIN|TABLE)\s+(?:\w+\.)?broker_", re.IGNORECASE
)


def literals(module: Path) -> Iterator[tuple[int, str]]:
    """The texts of a module that are no docstrings, each with its line; `x` stands for what is put into one."""
    nodes = list(ast.walk(ast.parse(module.read_text(encoding="utf-8"))))
    told = {id(node.value) for node in nodes if isinstance(node, ast.Expr)}
    for node in nodes:
        if isinstance(node, ast.JoinedStr):
            parts = (str(part.value) if isinstance(part, ast.Constant) else "x" for part in node.values)
            yield node.lineno, "".join(parts)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in told:
            yield node.lineno, node.value


def test_the_tables_of_a_database_are_known_to_the_store_and_what_applications_hold_alone() -> None:
    others = [module for module in MODULES if not any(module.is_relative_to(keeper) for keeper in KEEPERS)]

    found = [
        f"{module.relative_to(ROOT)}:{line}"
        for module in others
        for line, text in literals(module)
        if NAMES_A_TABLE.search(text)
    ]

    assert len(TABLES) > 20
    assert [] == found


def test_what_a_daemon_lends_is_only_handed_on() -> None:
    """No SQL is run on a connection by whoever asks for it; the views are asked on one that holds no database."""
    packages = ("admin", "catalog", "daemon", "dialog", "forwarding", "net", "observe")
    runs_sql = re.compile(r"\.execute(?:many|script)?\(")

    found = [
        names(module)
        for module in MODULES
        if module.relative_to(ROOT).parts[1] in packages and runs_sql.search(module.read_text(encoding="utf-8"))
    ]

    assert ["broker/observe/query.py"] == found


def test_every_disposition_is_on_its_page() -> None:
    page = (ROOT / "docs" / "dispositions.md").read_text(encoding="utf-8")
    told = {name: int(number or 0) for name, number in re.findall(r"^\| ([a-z ]+) \| (\d*) \|", page, re.MULTILINE)}

    assert {str(disposition): disposition.number for disposition in Disposition} == told


def test_every_drop_has_its_own_number_and_a_word_fit_for_a_label() -> None:
    arrived = {Disposition.FORWARDED, Disposition.DELIVERED}

    assert {0} == {disposition.number for disposition in arrived}
    assert set(Disposition) - arrived == set(NUMBER)
    assert len(NUMBER) == len(set(NUMBER.values()))
    assert [] == [str(one) for one in Disposition if not re.fullmatch(r"[a-z]+( [a-z]+)*", str(one))]


def test_nothing_is_left_for_later() -> None:
    marks = re.compile(r"\b(TODO|FIXME|XXX|HACK)\b")  # house: these words are allowed in this line

    found = [
        f"{module.relative_to(ROOT)}:{number}"
        for module in MODULES
        for number, line in enumerate(module.read_text(encoding="utf-8").splitlines(), 1)
        if marks.search(line)
    ]

    assert [] == found
