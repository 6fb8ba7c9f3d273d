"""
The operations of the admin API, without HTTP: each takes a request and its caller, and returns an answer or raises.

Everything that blocks (a SELECT, parsing, files) runs in threads: a slow question must hold up neither traffic nor the
resolving of names. Every change goes through `broker.catalog.execute` and is written to the audit first.

The JSON schemas of requests and answers are those of `/v1/openapi.json`. A request with a field that is not written
here is refused, so that a misspelt option is not taken for one that was left out.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Annotated, Any, TypeVar
from uuid import UUID

import msgspec
from msgspec import Meta

from broker.admin.audit import Audit, AuditEntry
from broker.admin.auth import STATEMENT_LEAST, Caller
from broker.advice import render_name
from broker.catalog.catalog import MSDB, ScriptProgress
from broker.catalog.check import check_running
from broker.catalog.diagnostics import Diagnostic
from broker.catalog.execute import execute
from broker.catalog.reload import ReloadAnswer, changed_for_all, grants_in
from broker.catalog.unscripted import lost_imports
from broker.config.admin_access import AdminRole
from broker.config.load import SettingInForce, in_force
from broker.config.reload_diff import Difference
from broker.ddl.parser import read_script
from broker.ddl.statements import Statement
from broker.dialog.endpoint import Endpoint
from broker.errors import BrokerError, DdlSyntaxError, SettingError, StatementError, UnknownNameError
from broker.net.drain import Drain, DrainStage
from broker.observe.database_stats import CensusAnswer, CensusRequest, DatabaseName, census_of, read_quick_stats
from broker.observe.drops import dropped_by_reason
from broker.observe.explain import ExplainAnswer, ExplainRequest, answer, find_contact, running_place
from broker.observe.health import judge
from broker.observe.instance import Running
from broker.observe.plan import PlanAnswer, PlanRequest, plan_script
from broker.observe.query import QueryResult, SystemViews
from broker.observe.snapshot import read_snapshot, replaced_in, store_problem
from broker.observe.status import Status, struct_from
from broker.observe.status_rendering import STATUS, render_status
from broker.observe.views import AUDIT, FORWARDED_MESSAGES, RowSource, find_name, rows_of_running
from broker.observe.why import WhyAnswer, WhyRequest, answer_why, look
from broker.protocol.layout import show_guid
from broker.security.grants import Grants

PAGE_ROWS = 1000  # rows of a view in one answer when the request does not say
PAGE_ROWS_MAX = 10_000  # what one SELECT gives at most
AFTER_MAX = 2**53  # what every JSON reader takes for a whole number
FOLLOW_SECONDS = 10.0  # at most, that an answer about the next change of a drain is waited for
SIGNAL = Caller("signal SIGHUP", "a process of this machine", AdminRole.ADMIN)
# Settings of this name decide which peers and clients are trusted, in any section.
_OF_ADMIN = frozenset({"encryption", "authentication", "certificate", "private_key", "trust", "peers", "role_command"})
# The first word after blanks and comments. Possessive, so that a text of any length takes no memory.
_FIRST_WORD = re.compile(r"(?:\s++|--[^\n]*+|/\*.*?\*/)*+([A-Za-z]*)", re.DOTALL)
_QUESTIONS = frozenset({"SELECT", "WITH"})
_VIEW_NAME = re.compile(r"(?:(?P<database>.+)\.)?(?P<schema>sys)\.(?P<view>\w+)", re.IGNORECASE | re.DOTALL)

_T = TypeVar("_T")


# --- messages ---


class SqlRequest(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """A SELECT over the system views, or a script of statements."""

    statement: Annotated[str, Meta(description="T-SQL.")]
    database: DatabaseName = None


class SqlAnswer(msgspec.Struct, frozen=True):
    """The rows of a SELECT, or the messages of executed statements."""

    columns: Sequence[str] = ()
    rows: Sequence[Sequence[Any]] = ()
    messages: Annotated[
        list[str],
        Meta(
            description="One for each of the first 100 statements, and one that says how many more of which kind; then"
            " a warning for each permission that all peers have lost or have from now on."
        ),
    ] = []
    truncated: Annotated[bool, Meta(description="There are more rows than one answer holds.")] = False


class ViewRequest(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """A page of a view."""

    name: Annotated[str, Meta(description="As in a SELECT: sys.routes, msdb.sys.routes, sys.dm_broker_connections ...")]
    limit: Annotated[int, Meta(ge=1, le=PAGE_ROWS_MAX, description="Rows in the answer.")] = PAGE_ROWS
    after: Annotated[
        int, Meta(ge=0, le=AFTER_MAX, description="`after` of the previous answer; 0 for the first page.")
    ] = 0
    database: DatabaseName = None


class ViewAnswer(msgspec.Struct, frozen=True):
    """Some rows of a view."""

    columns: Sequence[str]
    rows: Sequence[Sequence[Any]]
    after: Annotated[int | None, Meta(description="For the request of the next page; null when this is the last.")]


class Nothing(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """A request without parameters."""


class Finding(msgspec.Struct, frozen=True):
    """One finding about the configuration."""

    key: Annotated[str, Meta(description="The setting; of what the scripts say, the code of the lint.")]
    problem: str
    hint: str
    file: str | None
    line: int | None
    column: int | None


class LeftOut(msgspec.Struct, frozen=True):
    """Findings that are only counted: of one key in one file the first 1000 are listed."""

    key: Annotated[str, Meta(description="The code of the lint.")]
    file: str | None
    count: int


class CheckAnswer(msgspec.Struct, frozen=True):
    """Whether the instance could start again, with warnings about settings that are allowed but inadvisable."""

    ok: bool
    problems: list[Finding]
    warnings: list[Finding]
    left_out: list[LeftOut]


class Problem(msgspec.Struct, frozen=True, omit_defaults=True):
    """RFC 9457. `number` and the fields below it are set for a refused statement, the place only when it is known."""

    type: str
    title: str
    status: int
    detail: Annotated[str, Meta(description="The whole sentence, caret included.")]
    number: Annotated[int | None, Meta(description="The original's message number.")] = None
    problem: Annotated[str | None, Meta(description="The sentence without number and place.")] = None
    line: int | None = None
    column: int | None = None
    caret: Annotated[str | None, Meta(description="The line of the text, and under it a caret at the place.")] = None
    role: Annotated[str | None, Meta(description="The role that it takes, where one was missing.")] = None


class ConfigAnswer(msgspec.Struct, frozen=True):
    """Every key, in the order of the reference; arguments of programs are masked."""

    settings: list[SettingInForce]


class RetryRequest(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """The dialog whose messages are sent again now."""

    id: Annotated[
        UUID | None, Meta(description="A conversation_handle or conversation_id; null: every dialog that waits.")
    ] = None


class RetryAnswer(msgspec.Struct, frozen=True):
    """The effect of a retry."""

    dialogs: Annotated[int, Meta(description="How many dialogs had something to send again.")]


class DrainQuestion(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """How far a drain is."""

    since: Annotated[
        int,
        Meta(ge=-1, le=2**53, description="Wait for more changes than these, for ten seconds at most; -1: answer now."),
    ] = -1


class DrainAnswer(msgspec.Struct, frozen=True):
    """The progress of a drain, and the messages and peers that have not left."""

    stage: Annotated[str, Meta(description="`serving`, `announced`, `leaving`, `left`.")]
    sentence: str
    reason: Annotated[str, Meta(description='Why it drains; "" while it serves.')]
    held: Annotated[int, Meta(description="Messages held for next hops.")]
    unserved: Annotated[int, Meta(description="How many of them no connection takes now.")]
    peers: Annotated[int, Meta(description="Connections whose peers may still send.")]
    by_hop: Annotated[dict[str, int], Meta(description="Messages held, of the twenty next hops with most.")]
    busy: Annotated[list[str], Meta(description="Databases that have frames to store or to acknowledge.")]
    remaining_s: Annotated[float | None, Meta(description="Seconds until the time is up; null while it serves.")]
    clean: Annotated[bool | None, Meta(description="Whether every message has left; null until the drain has ended.")]
    changes: Annotated[int, Meta(description="What `since` takes.")]
    process: Annotated[
        int | None,
        Meta(description="Id of the process that ends after the drain; null where an application embeds the instance."),
    ]


class ReloadRequest(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """Apply the configuration as it is written now."""

    dry_run: Annotated[bool, Meta(description="Try everything, report the changes, and change nothing.")] = False
    prune: Annotated[
        bool, Meta(description="Drop the routes, bindings and permissions that no script of the configuration names.")
    ] = False


# --- operations ---


class Api:
    """
    The operations on one instance. Loop-only.

    Args:
        instance: The instance.
        questions: Threads for what may take long.
        executor: Threads for what never takes long, and must not wait for questions.
        audit: Sees every change.
    """

    def __init__(self, instance: Running, questions: QuestionThreads, executor: Executor, audit: Audit) -> None:
        self._instance = instance
        self._questions = questions
        self._executor = executor
        self._snapshots: dict[str, RowSource] = {**rows_of_running(instance), AUDIT: audit.rows}
        self._audit = audit

    @property
    def _views(self) -> SystemViews:
        """The views of what is here now: databases come and go with their roles."""
        catalog = self._instance.catalog
        paths = {name: database.path for name, database in catalog.databases.items() if database.path is not None}
        return SystemViews(databases=paths, snapshots=self._snapshots, mirrors=tuple(catalog.mirrors))

    async def sql(self, request: SqlRequest, caller: Caller) -> SqlAnswer:
        """
        A SELECT, or a script. Bodies of messages are NULL for all but admins.

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
            is_admin = caller.role is AdminRole.ADMIN
            result = await self._select(request.statement, database, caller, shows_bodies=is_admin)
            return SqlAnswer(result.columns, result.rows, truncated=result.truncated)
        return SqlAnswer(messages=await self._change(request, caller, database))

    async def _change(self, request: SqlRequest, caller: Caller, database: str) -> list[str]:
        """A script, wholly or not at all; what it did, and what was refused, is written down."""
        entry = AuditEntry(self._audit, caller, "POST /v1/sql", database)
        progress = ScriptProgress(size=len(request.statement), seen_by=entry)
        try:
            caller.expect(STATEMENT_LEAST, "a statement that changes something")
            statements = caller.permitted(read_script(request.statement, source=progress.source))
            before = self._grants()
            messages = await execute(self._instance.catalog, statements, database=database, progress=progress)
        except BrokerError as error:
            entry.end_badly(error)
            raise
        return [*messages, *(f"warning: {one}" for one in changed_for_all(before, self._grants()))]

    def _grants(self) -> Mapping[str, Grants]:
        return grants_in(self._instance.settings, self._instance.catalog.databases)

    async def view(self, request: ViewRequest, caller: Caller) -> ViewAnswer:
        """
        One page of a view; bodies of messages are left to `sql`.

        Raises:
            UnknownNameError: no such view, or no such database.
            StoreUnavailableError: a file that cannot be read.
        """
        name = _VIEW_NAME.fullmatch(request.name)
        if name is None:
            raise UnknownNameError(
                208, f"{request.name!r} is not the name of a view: write sys.name or database.sys.name"
            )
        quoted = ".".join(render_name(part) for part in name.groups() if part is not None)
        # One row more than requested shows whether there is a next page.
        page = f"OFFSET {request.after} ROWS FETCH NEXT {request.limit + 1} ROWS ONLY"
        statement = f"SELECT * FROM {quoted} ORDER BY (SELECT NULL) {page}"  # noqa: S608 - a name in brackets, and numbers
        database = self._readable(request.database)
        try:
            result = await self._select(statement, database, caller, shows_bodies=False)
        except UnknownNameError as error:
            # Its place is in a text that the caller did not write.
            raise UnknownNameError(error.number, error.problem) from None
        rows = result.rows[: request.limit]
        has_more = result.truncated or len(result.rows) > request.limit
        return ViewAnswer(result.columns, rows, request.after + len(rows) if has_more else None)

    async def _select(self, statement: str, database: str, caller: Caller, *, shows_bodies: bool) -> QueryResult:
        select = partial(self._views.select, database=database, shows_bodies=shows_bodies, is_wanted=caller.is_there)
        return await self._questions.run(caller, partial(select, statement))

    async def status(self, _: Nothing, caller: Caller) -> Status:
        """The state of the instance, judged; what is in files that cannot be read is null."""
        snapshot = read_snapshot(self._instance, STATUS)
        state_dir = self._instance.settings.instance.state_dir

        def judged() -> Status:
            stats, problems = read_quick_stats(snapshot.paths), self._audit.problems(state_dir)
            status = render_status(snapshot, stats, **problems)
            return msgspec.structs.replace(status, verdict=judge(status))

        return await self._questions.run(caller, judged)

    async def drain(self, _: Nothing, caller: Caller) -> DrainAnswer:
        """
        Begin to drain, as SIGTERM does, unless it has begun.

        Raises:
            AuditUnavailableError: it could not be written down; nothing has begun.
        """
        drain = self._instance.drain
        if not drain.has_begun:
            entry = AuditEntry(self._audit, caller, "POST /v1/drain")
            await asyncio.get_running_loop().run_in_executor(self._executor, entry.seal_done, "instance")
            drain.begin(f"asked for by {caller.who}")
            await asyncio.sleep(0)
        return await _drain_answer(drain)

    async def draining(self, request: DrainQuestion, _: Caller) -> DrainAnswer:
        """Return the messages that have not left yet; with `since`, as soon as they have changed."""
        drain = self._instance.drain
        if request.since >= 0:
            await drain.changed(request.since, FOLLOW_SECONDS)
        return await _drain_answer(drain)

    async def retry(self, request: RetryRequest, caller: Caller) -> RetryAnswer:
        """
        Send what is not acknowledged again now, and dial every next hop that has failed.

        Raises:
            UnknownNameError: no such conversation.
            AuditUnavailableError: it could not be written down; nothing is sent.
        """
        endpoints = dict(self._instance.endpoints)
        chosen: list[tuple[Endpoint, int | None]] = [(endpoint, None) for endpoint in endpoints.values()]
        target = "instance"
        if request.id is not None:
            guid, paths, now = request.id, self._paths(), time.time()
            found = (await self._questions.run(caller, lambda: look(guid, paths, (), now))).found
            chosen = [
                (endpoints[name], side.endpoint_id)
                for name, (_, facts) in found.items()
                for side in facts.sides
                if name in endpoints
            ]
            target = show_guid(guid)
            if not chosen:
                raise UnknownNameError(8426, f"there is no open conversation {target} here")
        entry = AuditEntry(self._audit, caller, "POST /v1/retry")
        await asyncio.get_running_loop().run_in_executor(self._executor, entry.seal_done, target)
        self._instance.peers.dialer.retry_now()
        return RetryAnswer(sum(endpoint.transmitter.retry(endpoint_id) for endpoint, endpoint_id in chosen))

    async def reload(self, request: ReloadRequest, caller: Caller) -> ReloadAnswer:
        """
        Read the configuration again, or only try to.

        Raises:
            ForbiddenError, AuditUnavailableError: nothing has changed.
            ReloadRefusedError, SettingsError, StoreUnavailableError: as `Reloads.reload`; nothing has changed.
        """
        seen = ReloadAudit(self._audit, caller, "POST /v1/reload")
        return await self._instance.reloads.reload(seen, is_dry_run=request.dry_run, is_pruning=request.prune)

    async def config(self, _: Nothing, __: Caller) -> ConfigAnswer:
        """Return every setting in force."""
        return ConfigAnswer(in_force(self._instance.settings))

    async def explain(self, request: ExplainRequest, caller: Caller) -> ExplainAnswer:
        """
        Why a message would go where it goes.

        Raises:
            BadRequestError: parts of the question contradict each other.
            UnknownNameError: no such database, or no such conversation.
        """
        place = running_place(self._instance)
        contact = (
            await self._questions.run(caller, partial(find_contact, place, request)) if request.to is None else None
        )
        return answer(running_place(self._instance), request, contact)

    async def why(self, request: WhyRequest, caller: Caller) -> WhyAnswer:
        """
        Return the facts about a conversation or message; an unknown one is not an error.

        Texts of errors are left out for callers below admin, as bodies are.
        """
        shows_texts = caller.role is AdminRole.ADMIN
        now, paths = time.time(), self._paths()
        mirrors = list(self._instance.catalog.mirrors)
        forwarded = self._snapshots[FORWARDED_MESSAGES.name]
        found = await self._questions.run(caller, lambda: look(request.id, paths, forwarded(), now, mirrors=mirrors))
        dropped = {one.value: frames for one, frames in dropped_by_reason(self._instance).items() if frames}
        place = running_place(self._instance)
        homes, state_dir = self._instance.endpoints, self._instance.settings.instance.state_dir
        snapshot = read_snapshot(self._instance, ["drops"])
        return answer_why(
            place,
            request.id,
            found,
            dropped=dropped,
            is_running=True,
            now=now,
            shows_texts=shows_texts,
            lock_waits={name: wait for name, one in homes.items() if (wait := one.write_waits.present) is not None},
            lost_imports=lost_imports(self._instance.settings, self._instance.catalog),
            store_problems={name: problem for name, one in homes.items() if (problem := store_problem(one))},
            replaced={name: lost for name, one in homes.items() if (lost := replaced_in(one.path, state_dir))},
            drops=[(one, snapshot.loop_time - one.last_at) for one in snapshot.drops if one.last_at is not None],
        )

    async def census(self, request: CensusRequest, caller: Caller) -> CensusAnswer:
        """
        Return the contents of the databases by age.

        Raises:
            UnknownNameError: no such database.
            StoreUnavailableError: a file that cannot be read.
        """
        paths = self._paths()
        if request.database is not None:
            name = self._database(request.database)
            self._refuse_mirror(name)
            if name not in paths:
                raise UnknownNameError(911, f"there is no user database {name!r} here; there are: {', '.join(paths)}")
            paths = {name: paths[name]}
        return await self._questions.run(caller, partial(census_of, paths, time.time()))

    async def plan(self, request: PlanRequest, caller: Caller) -> PlanAnswer:
        """
        Return the effects that a script would have on routes and on conversations under way.

        Raises:
            StatementError: the script would be refused.
            StoreUnavailableError: a file that cannot be read.
        """
        database = self._database(request.database)
        async with self._questions.slot(caller):
            return await plan_script(self._instance, request, database=database, executor=self._questions.executor)

    async def check(self, _: Nothing, caller: Caller) -> CheckAnswer:
        """Scripts, directories and files of the configuration in force; its own ports are taken by itself."""
        report = await self._questions.run(caller, partial(check_running, self._instance.settings))
        warnings = [*_findings(report.warnings), *(_finding(one.lint, one) for one in report.concerns)]
        left_out = [LeftOut(code, file, count) for (code, file), count in report.left_out.items()]
        return CheckAnswer(not report.errors, _findings(report.errors), warnings, left_out)

    def _paths(self) -> dict[str, Path]:
        """The files of the user databases at work, by name."""
        return {name: endpoint.path for name, endpoint in self._instance.endpoints.items()}

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


class QuestionThreads:
    """
    The threads for queries, of which no role can have all. Loop-only.

    A SELECT may take ten seconds, and a caller may ask many at once. Viewers leave a thread to operators and admins,
    and viewers and operators together leave one to admins. Callers that have to wait are served in the order of their
    requests.

    Args:
        executor: Has the threads.
        threads: How many, 1 at least; with fewer than three, roles share what there is.
    """

    def __init__(self, executor: Executor, threads: int) -> None:
        self.executor = executor
        # The narrowest first, so that a viewer who waits holds nothing that an operator could have.
        self._limits = {
            AdminRole.VIEWER: asyncio.Semaphore(max(1, threads - 2)),
            AdminRole.OPERATOR: asyncio.Semaphore(max(1, threads - 1)),
        }

    async def run(self, caller: Caller, work: Callable[[], _T]) -> _T:
        """The result of `work`, done in a thread as soon as the caller may have one."""
        async with self.slot(caller):
            return await asyncio.get_running_loop().run_in_executor(self.executor, work)

    @asynccontextmanager
    async def slot(self, caller: Caller) -> AsyncIterator[None]:
        """Wait until the caller may have a thread, and hold it until the end of the block."""
        async with AsyncExitStack() as stack:
            for highest, limit in self._limits.items():
                if caller.role <= highest:
                    await stack.enter_async_context(limit)
            yield


class ReloadAudit(AuditEntry):
    """Checks the permissions of a reload and records it, as `broker.catalog.reload.ReloadObserver`."""

    def allow(self, changed: Sequence[Difference]) -> None:
        """Check that the caller may change all of this; settings of admin access and of trust take the role admin."""
        keys = [one.key for one in changed if one.path[0] == "admin" or one.path[-1] in _OF_ADMIN]
        if keys:
            self.caller.expect(AdminRole.ADMIN, f"a reload that changes {', '.join(keys)}")

    def permitted(self, statements: Iterable[Statement | DdlSyntaxError]) -> Iterator[Statement | DdlSyntaxError]:
        """The statements of changed scripts, up to the first that the caller may not execute."""
        return self.caller.permitted(statements)

    def seal_reload(self, keys: Sequence[str]) -> None:
        """Record which settings change."""
        self.seal_done(f"configuration: {', '.join(keys)}" if keys else "configuration")


async def _drain_answer(drain: Drain) -> DrainAnswer:
    left = await drain.poll()
    return struct_from(
        DrainAnswer,
        drain,
        left,
        stage=drain.stage.value,
        busy=list(left.busy),
        remaining_s=round(drain.remaining_s, 3) if drain.has_begun else None,
        clean=drain.is_clean if drain.stage is DrainStage.LEFT else None,
    )


def _findings(errors: Iterable[SettingError]) -> list[Finding]:
    return [_finding(error.key, error) for error in errors]


def _finding(key: str, found: SettingError | Diagnostic) -> Finding:
    file, line, column = found.span[:3] if found.span else (None, None, None)
    return Finding(key, found.problem, found.hint, file, line, column)
