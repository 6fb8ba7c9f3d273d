"""
What goes in and out of the admin API, as values; their JSON schemas are the ones of `/v1/openapi.json`.

A request with a field that is not written here is refused: a misspelt option must not be an option left out.
"""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec import Meta

from broker.admin.database_name import DatabaseName

PAGE_ROWS = 1000  # rows of a view in one answer when the request does not say
PAGE_ROWS_MAX = 10_000  # what one SELECT gives at most
AFTER_MAX = 2**53  # what every JSON reader takes for a whole number


class SqlRequest(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """A SELECT over the system views, or a script of statements."""

    statement: Annotated[str, Meta(description="T-SQL.")]
    database: DatabaseName = None


class SqlAnswer(msgspec.Struct, frozen=True):
    """Rows of a SELECT, or messages about the statements carried out."""

    columns: list[str] = []
    rows: list[list[Any]] = []
    messages: Annotated[
        list[str],
        Meta(description="One for each of the first 100 statements; then one that says how many more of which kind."),
    ] = []
    truncated: Annotated[bool, Meta(description="There are more rows than one answer holds.")] = False


class ViewRequest(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """A page of a view."""

    name: Annotated[str, Meta(description="As in a SELECT: sys.routes, msdb.sys.routes, sys.dm_broker_connections ...")]
    limit: Annotated[int, Meta(ge=1, le=PAGE_ROWS_MAX, description="Rows in the answer.")] = PAGE_ROWS
    after: Annotated[
        int, Meta(ge=0, le=AFTER_MAX, description="What the answer before this one gave; 0 for the first.")
    ] = 0
    database: DatabaseName = None


class ViewAnswer(msgspec.Struct, frozen=True):
    """Some rows of a view."""

    columns: list[str]
    rows: list[list[Any]]
    after: Annotated[int | None, Meta(description="For the request of the next page; null when this is the last.")]


class Nothing(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """A request without parameters."""


class Finding(msgspec.Struct, frozen=True):
    """One thing about the configuration."""

    key: Annotated[str, Meta(description="The setting; of what the scripts say, the code of the lint.")]
    problem: str
    hint: str
    file: str | None
    line: int | None
    column: int | None


class LeftOut(msgspec.Struct, frozen=True):
    """Findings that are only counted: of one key in one file the first 1000 are told."""

    key: Annotated[str, Meta(description="The code of the lint.")]
    file: str | None
    count: int


class CheckAnswer(msgspec.Struct, frozen=True):
    """Whether the instance could start again, and what is legal but unwise."""

    ok: bool
    problems: list[Finding]
    warnings: list[Finding]
    left_out: list[LeftOut]


class Problem(msgspec.Struct, frozen=True, omit_defaults=True):
    """RFC 9457. What begins with `number` is there when a statement was refused, the place only when it is known."""

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
