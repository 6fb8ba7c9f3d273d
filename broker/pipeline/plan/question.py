"""
What is asked of a history: which routes held, and which would hold. Read from scripts.

Scripts say how things were, and either how they would be (`after`) or what would be carried out (`change`). Each is one
file, of one instance, or a directory with one `<instance>.sql` for each.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from uuid import UUID

from broker.ddl.text import decode_script
from broker.errors import RequestError
from broker.pipeline.plan.script import MSDB, Scripted, play_script
from broker.routing.address import NetworkAddress, parse_address

SUFFIX = ".sql"


@dataclass
class PlanQuestionError(RequestError):
    """What is asked makes no sense. Shape: `problem` a sentence that says where, `hint` what to do."""

    problem: str
    hint: str

    def __str__(self) -> str:
        return f"{self.problem}; {self.hint}"


@dataclass(frozen=True, slots=True)
class Question:
    """
    What is asked.

    Shape: by instance; `addresses` lead to instances, none when the history shall show them; `databases` their broker
    instances, by name, of those that the history does not show; `now` UTC instant at which routes live or have expired.
    """

    before: Mapping[str, Scripted]
    after: Mapping[str, Scripted]
    now: datetime
    addresses: Mapping[NetworkAddress, str] = field(default_factory=dict)
    databases: Mapping[str, UUID] = field(default_factory=dict)


def read_question(
    *,
    before: Path,
    after: Path | None = None,
    change: Path | None = None,
    instance: str | None = None,
    database: str = MSDB,
    addresses: Iterable[str] = (),
    databases: Iterable[str] = (),
    now: datetime,
) -> Question:
    """
    A question from files.

    Args:
        before: The scripts that hold.
        after: Those that would hold; or else
        change: those that would be carried out. One of the two.
        instance: Whose script one is that is a file.
        database: Where scripts begin.
        addresses: `tcp://host:port=instance`.
        databases: `name=GUID`.
        now: UTC.

    Raises:
        PlanQuestionError: one of these is wrong.
        OSError: a file cannot be read.
        StatementError: a script has a mistake, told with its place.
    """
    if (after is None) == (change is None):
        raise PlanQuestionError("there are two ways to say what would hold", "give one of --after and --change")
    other = after or change
    if instance is not None and before.is_dir() and other is not None and other.is_dir():
        problem = f"{before} and {other} hold scripts of several instances"
        raise PlanQuestionError(problem, "leave out --instance, or name one file")
    was = {
        name: play_script(Scripted(), text, source=source, now=now, database=database)
        for name, (source, text) in _scripts(before, instance).items()
    }
    will = dict(was)
    for name, (source, text) in _scripts(other, instance).items():
        if name not in was:
            near = difflib.get_close_matches(name, was, 1)
            hint = f"add {name}{SUFFIX} there; it may be empty" + (f"; or is it {near[0]!r}?" if near else "")
            raise PlanQuestionError(f"{before} does not tell what holds for the instance {name!r}", hint)
        begin = Scripted() if change is None else was[name]
        will[name] = play_script(
            begin, text, source=source, now=now, database=database, is_declared=change is None
        )  # fmt: skip
    return Question(was, will, now, _addresses(addresses), _databases(databases))


def _scripts(path: Path | None, instance: str | None) -> dict[str, tuple[str, str]]:
    """Name of the file and text, by instance."""
    assert path is not None
    if not path.exists():
        raise PlanQuestionError(f"there is no {path}", f"name a script, or a directory of <instance>{SUFFIX}")
    if not path.is_dir():
        if instance is None:
            raise PlanQuestionError(f"{path} is a script of one instance", "say of which one with --instance")
        return {instance: _read(path)}
    found = {file.name.removesuffix(SUFFIX): _read(file) for file in sorted(path.glob(f"*{SUFFIX}"))}
    if not found:
        raise PlanQuestionError(f"{path} holds no script", f"name them <instance>{SUFFIX}")
    return found


def _read(path: Path) -> tuple[str, str]:
    return str(path), decode_script(path.read_bytes(), source=str(path))


def _addresses(pairs: Iterable[str]) -> dict[NetworkAddress, str]:
    found: dict[NetworkAddress, str] = {}
    for pair in pairs:
        text, _, name = pair.partition("=")
        try:
            address = parse_address(text)
        except ValueError as error:
            raise PlanQuestionError(f"--address {pair}: {error}", "write tcp://host:port=instance") from None
        if not isinstance(address, NetworkAddress) or not name:
            raise PlanQuestionError(f"--address {pair} names no address and instance", "write tcp://host:port=instance")
        found[address] = name
    return found


def _databases(pairs: Iterable[str]) -> dict[str, UUID]:
    found: dict[str, UUID] = {}
    for pair in pairs:
        name, _, guid = pair.partition("=")
        try:
            found[name] = UUID(guid)
        except ValueError:
            hint = "write NAME=GUID; the GUID is in its sys.databases"
            raise PlanQuestionError(f"--database-guid {pair} has no GUID", hint) from None
    return found
