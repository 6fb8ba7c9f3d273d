"""Who asks something of the admin API, from where, and what for: a value that every change is judged by."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from broker.admin.permission import role_for
from broker.admin.problem import ForbiddenError
from broker.control.admin_role import AdminRole
from broker.ddl.statements import Statement, words_of
from broker.errors import DdlSyntaxError

_ROLE = "{role}"


@dataclass(frozen=True, slots=True)
class Caller:
    """
    Somebody who asks.

    Shape: `who` as a key of `[admin.roles]`, or "anonymous"; `origin` the process or the address; `way_to_role` says
    what to do to get the role that stands where it has `{role}`.
    """

    who: str
    origin: str
    role: AdminRole
    way_to_role: str = ""

    def expect(self, role: AdminRole, what: str) -> None:
        """
        Refuse what takes more than this caller has.

        Raises:
            ForbiddenError: it names the role that is needed, and how to get it.
        """
        if self.role < role:
            has = "no role" if self.role is AdminRole.NONE else f"the role {self.role.word}"
            way = self.way_to_role.replace(_ROLE, role.word)
            way = f"; {way}" if way else ""
            raise ForbiddenError(f"{what} takes the role {role.word}, and {self.who} has {has} here{way}", role.word)

    def permitted(self, statements: Iterable[Statement | DdlSyntaxError]) -> Iterator[Statement | DdlSyntaxError]:
        """
        The same statements, as far as this caller may have them carried out.

        Raises:
            ForbiddenError: in the place of the first that takes more.
        """
        for statement in statements:
            if isinstance(statement, Statement):
                self.expect(role_for(statement), words_of(statement))
            yield statement
