"""
What each operation of the admin API does, without HTTP: a value in, a value out, errors of the package.

Everything that blocks (a SELECT, parsing, files) runs in threads of its own: a slow question must hold up neither
traffic nor the resolving of names. Every change goes through `broker.control.execute`, the one door.
"""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Callable, Iterable
from concurrent.futures import Executor
from datetime import UTC, datetime
from functools import partial
from typing import Any, TypeVar

from broker.admin.audit import Audit
from broker.admin.caller import Caller
from broker.admin.census import CensusAnswer, CensusRequest, census_of
from broker.admin.configuration import ConfigAnswer, config_answer
from broker.admin.draining import DrainAnswer, DrainQuestion, drain_now, drain_state
from broker.admin.dropped import drops_of, read_dropped
from broker.admin.explain_message import ExplainAnswer, ExplainRequest
from broker.admin.explaining import answer, find_contact, running_place
from broker.admin.message import CheckAnswer, Finding, LeftOut, Nothing, SqlAnswer, SqlRequest, ViewAnswer, ViewRequest
from broker.admin.permission import STATEMENT_LEAST
from broker.admin.plan_message import PlanAnswer, PlanRequest
from broker.admin.planning import plan_script
from broker.admin.reloading import ReloadAnswer, ReloadRequest, reload_now
from broker.admin.turn import Turns
from broker.admin.wanted import asker, role_of_caller
from broker.admin.why import WhyAnswer, WhyRequest
from broker.admin.why_here import FORWARDED, answer_why, look
from broker.control.admin_role import AdminRole
from broker.control.catalog import MSDB
from broker.control.check import check_running
from broker.control.concern import Diagnostic
from broker.control.execute import execute
from broker.control.progress import ScriptProgress
from broker.control.writable import room_problem
from broker.ddl.parser import read_script
from broker.errors import BrokerError, SettingError, StatementError, StoreUnavailableError, UnknownNameError
from broker.observe.audit import AUDIT
from broker.observe.backlog import read_backlog
from broker.observe.instance import Running
from broker.observe.ledger import add_ledgers, read_ledger
from broker.observe.query import SystemViews, find_name
from broker.observe.row_readers import Snapshots
from broker.observe.standstill import add_standstills, read_standstill
from broker.observe.status import add_backlog, backlog_paths, read_status
from broker.observe.view import DISPOSITIONS, RowSource

# The first word behind blanks and comments. Possessive, so that a text of any length takes no memory.
_FIRST_WORD = re.compile(r"(?:\s++|--[^\n]*+|/\*.*?\*/)*+([A-Za-z]*)", re.DOTALL)
_QUESTIONS = frozenset({"SELECT", "WITH"})
_VIEW_NAME = re.compile(r"(?:(?P<database>.+)\.)?(?P<schema>sys)\.(?P<view>\w+)", re.IGNORECASE | re.DOTALL)

_T = TypeVar("_T")


class Api:
    """
    The operations on one instance. Loop-only.

    Args:
        instance: The instance.
        turns: Threads for questions.
        executor: Threads for what never takes long, and must not wait for questions.
        audit: Sees every change.
    """

    def __init__(self, instance: Running, turns: Turns, executor: Executor, audit: Audit) -> None:
        snapshots = Snapshots(instance)
        self._instance = instance
        self._turns = turns
        self._executor = executor
        self._snapshots: dict[str, RowSource] = {**snapshots.by_view(), AUDIT: audit.rows}
        self._audit = audit
        self._statuses = snapshots.transmission_statuses

    @property
    def _views(self) -> SystemViews:
        """The views of what is here now: databases come and go with their roles."""
        catalog = self._instance.catalog
        paths = {name: database.path for name, database in catalog.databases.items() if database.path is not None}
        return SystemViews(
            databases=paths,
            snapshots=self._snapshots,
            transmission_statuses=self._statuses,
            mirrors=tuple(catalog.mirrors),
        )

    async def sql(self, request: SqlRequest, caller: Caller) -> SqlAnswer:
        """
        A SELECT, or a script. Bodies of messages are NULL for whoever is no admin.

        Raises:
            ForbiddenError: the caller's role is not enough; nothing has changed.
            StatementError: it was refused; a script has changed nothing.
            StoreUnavailableError: a file that cannot be read or written.
            AuditUnavailableError: the change could not be written down; nothing has changed.
        """
        database = self._database(request.database)
        first = _FIRST_WORD.match(request.statement)
        assert first is not None, "the pattern fits the empty text"
        if first[1].upper() in _QUESTIONS:
            database = self._readable(request.database)
            may_read = caller.role is AdminRole.ADMIN
            select = partial(
                self._views.select, request.statement, database=database, shows_bodies=may_read, is_wanted=asker()
            )
            result = await self._run(select)
            return SqlAnswer(list(result.columns), [list(row) for row in result.rows], truncated=result.truncated)
        return SqlAnswer(messages=await self._change(request, caller, database))

    async def _change(self, request: SqlRequest, caller: Caller, database: str) -> list[str]:
        """A script, wholly or not at all; what it did, and what was refused, is written down."""
        entry = self._audit.begin(caller, "POST /v1/sql", database)
        progress = ScriptProgress(size=len(request.statement), seen_by=entry)
        try:
            caller.expect(STATEMENT_LEAST, "a statement that changes something")
            statements = caller.permitted(read_script(request.statement, source=progress.source))
            messages = await execute(self._instance.catalog, statements, database=database, progress=progress)
        except BrokerError as error:
            entry.end_badly(error)
            raise
        return messages

    async def view(self, request: ViewRequest) -> ViewAnswer:
        """
        One page of a view; bodies of messages are left to `sql`.

        Raises:
            UnknownNameError: no such view, or no such database.
            StoreUnavailableError: a file that cannot be read.
        """
        name = _VIEW_NAME.fullmatch(request.name)
        if name is None:
            raise UnknownNameError(208, f"{request.name!r} is no view; a view is sys.name or database.sys.name")
        quoted = ".".join(f"[{part.replace(']', ']]')}]" for part in name.groups() if part is not None)
        # One row more than asked for tells whether there is a next page.
        page = f"OFFSET {request.after} ROWS FETCH NEXT {request.limit + 1} ROWS ONLY"
        statement = f"SELECT * FROM {quoted} ORDER BY (SELECT NULL) {page}"  # noqa: S608 - a name in brackets, and numbers
        database = self._readable(request.database)
        try:
            select = partial(self._views.select, statement, database=database, shows_bodies=False, is_wanted=asker())
            result = await self._run(select)
        except UnknownNameError as error:
            raise UnknownNameError(error.number, error.problem) from None  # its place is in a text that nobody wrote
        rows = [list(row) for row in result.rows[: request.limit]]
        has_more = result.truncated or len(result.rows) > request.limit
        return ViewAnswer(list(result.columns), rows, request.after + len(rows) if has_more else None)

    async def status(self, _: Nothing) -> dict[str, Any]:
        """The state of the instance; what is in files that cannot be read is null."""
        drops = await self._drops()
        status = read_status(self._instance)
        paths = backlog_paths(self._instance)  # in the same turn: a mirrored database may come or go in the next
        backlogs = await self._run(lambda: {name: read_backlog(path) for name, path in paths.items()})
        ledgers = await self._run(lambda: {name: read_ledger(path) for name, path in paths.items()})
        still = await self._run(lambda: {name: read_standstill(path) for name, path in paths.items()})
        status["drops"] = drops
        status["room_problem"] = await self._run(lambda: room_problem(self._instance.settings.instance.state_dir)) or ""
        status["audit_problem"] = await self._run(self._audit.problem)
        return add_standstills(add_ledgers(add_backlog(status, backlogs), ledgers), still)

    async def _drops(self) -> list[dict[str, Any]] | None:
        """What was dropped, by reason; None when the loop is too busy to answer."""
        name = self._instance.settings.instance.name
        try:
            rows = await self._run(lambda: read_dropped(self._snapshots[DISPOSITIONS], name))
        except StoreUnavailableError:
            return None
        return drops_of(rows, datetime.now(UTC))

    async def drain(self, _: Nothing, caller: Caller) -> DrainAnswer:
        """
        Begin to drain, as SIGTERM does.

        Raises:
            AuditUnavailableError: it could not be written down; nothing has begun.
        """
        return await drain_now(self._instance.drain, self._audit, self._executor, caller)

    async def draining(self, question: DrainQuestion) -> DrainAnswer:
        """What would have to leave, or has yet to."""
        return await drain_state(self._instance.drain, question)

    async def reload(self, request: ReloadRequest, caller: Caller) -> ReloadAnswer:
        """
        Read the configuration again.

        Raises:
            ForbiddenError, ReloadRefusedError, SettingsError, StoreUnavailableError: as `reload_now`.
            AuditUnavailableError: it could not be written down; nothing has changed.
        """
        return await reload_now(self._instance.reloads, self._audit, request, caller)

    async def config(self, _: Nothing) -> ConfigAnswer:
        """What the instance runs by."""
        return config_answer(self._instance.settings)

    async def explain(self, request: ExplainRequest) -> ExplainAnswer:
        """
        Why a message would go where it goes.

        Raises:
            BadRequestError: parts of the question contradict each other.
            UnknownNameError: no such database, or no such conversation.
        """
        place = running_place(self._instance)
        contact = await self._run(partial(find_contact, place, request)) if request.to is None else None
        return answer(running_place(self._instance), request, contact)

    async def why(self, request: WhyRequest) -> WhyAnswer:
        """
        What this instance knows of a conversation or message; one that it does not know is no error.

        Texts of errors are left out for callers below admin, as bodies are.
        """
        shows_texts = role_of_caller() is AdminRole.ADMIN
        now, paths = time.time(), backlog_paths(self._instance)
        mirrors = list(self._instance.catalog.mirrors)
        told = await self._run(lambda: look(request.id, paths, self._snapshots[FORWARDED](), now, mirrors=mirrors))
        status = read_status(self._instance)
        dropped = Counter(status["forwarding"]["dropped"])
        for database in status["databases"].values():
            dropped.update(database["dropped"])
        place = running_place(self._instance)
        return answer_why(place, request.id, told, dropped=dropped, is_running=True, now=now, shows_texts=shows_texts)

    async def census(self, request: CensusRequest) -> CensusAnswer:
        """
        What lives in the databases.

        Raises:
            UnknownNameError: no such database.
            StoreUnavailableError: a file that cannot be read.
        """
        paths = backlog_paths(self._instance)
        if request.database is not None:
            name = self._database(request.database)
            self._refuse_mirror(name)
            if name not in paths:
                raise UnknownNameError(911, f"there is no user database {name!r} here; there are: {', '.join(paths)}")
            paths = {name: paths[name]}
        return await self._run(partial(census_of, paths, time.time()))

    async def plan(self, request: PlanRequest) -> PlanAnswer:
        """
        What a script would do to routes and to conversations under way.

        Raises:
            StatementError: the script would be refused.
            StoreUnavailableError: a file that cannot be read.
        """
        database = self._database(request.database)
        async with self._turns.turn():
            return await plan_script(self._instance, request, database=database, executor=self._turns.executor)

    async def check(self, _: Nothing) -> CheckAnswer:
        """Scripts, directories and files of the configuration in force; its own ports are taken by itself."""
        report = await self._run(partial(check_running, self._instance.settings))
        warnings = [*_findings(report.warnings), *(_finding(one.lint, one) for one in report.concerns)]
        left_out = [LeftOut(code, file, count) for (code, file), count in report.left_out.items()]
        return CheckAnswer(not report.errors, _findings(report.errors), warnings, left_out)

    def _database(self, name: str | None) -> str:
        """The database that is meant, in the spelling of the configuration where one fits."""
        if name is not None:
            return self._views.find_database(name) or find_name(name, self._instance.catalog.mirrors) or name
        catalog = self._instance.catalog
        users = [*(user.name for user in catalog.users), *catalog.mirrors]
        return users[0] if len(users) == 1 else MSDB

    def _readable(self, name: str | None) -> str:
        """The database that a question is about; where none is named and the only one is a mirror, it is msdb."""
        database = self._database(name)
        if name is None and database in self._instance.catalog.mirrors:
            return MSDB
        self._refuse_mirror(database)
        return database

    def _refuse_mirror(self, name: str) -> None:
        """A mirror's file is not to be opened here."""
        if name in self._instance.catalog.mirrors:
            raise StatementError(954, f"the database {name!r} is a mirror here: ask its principal")

    async def _run(self, work: Callable[[], _T]) -> _T:
        return await self._turns.run(work)


def _findings(errors: Iterable[SettingError]) -> list[Finding]:
    return [_finding(error.key, error) for error in errors]


def _finding(key: str, found: SettingError | Diagnostic) -> Finding:
    span = found.span
    return Finding(
        key,
        found.problem,
        found.hint,
        span.source if span else None,
        span.line if span else None,
        span.column if span else None,
    )
