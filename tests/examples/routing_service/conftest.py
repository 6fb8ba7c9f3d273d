"""What tests of the handler share: an instance that is asked for its databases and routes, and does what it is told."""

import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from broker.admin.client import AdminClient, ProblemError
from broker.errors import DaemonUnreachableError

INSTANCE = uuid.UUID("5b0f3c1e-5d5e-4f0b-8a55-0e9b0b9c2f11")


class Requesting:
    """
    The admin API of an instance that asks.

    Shape: `scripts` carried out so far, each with its database; `routes` rows of sys.routes; `problem` what it answers
    instead: a status and the members of the problem, or None; `is_up` whether it answers at all.
    """

    def __init__(self) -> None:
        self.scripts: list[tuple[str, str | None]] = []
        self.routes: list[dict[str, Any]] = []
        self.databases = {"shop": INSTANCE, "msdb": uuid.UUID(int=1)}
        self.problem: tuple[int, dict[str, Any]] | None = None
        self.is_up = True
        self.questions = 0

    def sql(self, statement: str, database: str | None = None) -> dict[str, Any]:
        if not self.is_up:
            raise DaemonUnreachableError("admin.sock", "Connection refused")
        if "sys.databases" in statement:
            self.questions += 1
            return {
                "columns": ["name", "service_broker_guid"],
                "rows": [[name, str(instance).upper()] for name, instance in self.databases.items()],
                "messages": [],
            }
        if "sys.routes" in statement:
            rows = [list(route.values()) for route in self.routes if f"'{route['name']}'" in statement]
            return {"columns": ["name", "remote_service_name", "lifetime", "is_expired"], "rows": rows, "messages": []}
        if self.problem is not None:
            raise ProblemError(*self.problem)
        self.scripts.append((statement, database))
        return {"columns": [], "rows": [], "messages": ["done"]}


@pytest.fixture
def requesting() -> Iterator[Requesting]:
    """The one instance behind every admin socket."""
    instance = Requesting()
    with mock.patch.object(AdminClient, "sql", lambda _, *arguments: instance.sql(*arguments)):
        yield instance


@pytest.fixture
def socket() -> Path:
    return Path("admin.sock")
