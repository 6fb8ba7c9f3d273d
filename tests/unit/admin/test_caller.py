from __future__ import annotations

import pytest

from broker.admin.auth import Caller
from broker.admin.problems import ForbiddenError
from broker.config.values import AdminRole
from broker.ddl.parser import parse_script, read_script
from broker.errors import DdlSyntaxError

WAY = '[admin.roles] "user:{x}" = "{role}" gives it'


def test_who_has_the_role_or_a_higher_one_may() -> None:
    for role in (AdminRole.OPERATOR, AdminRole.ADMIN):
        Caller("user:alice", "socket", role).expect(AdminRole.OPERATOR, "DROP ROUTE")


def test_a_refusal_names_the_role_that_it_takes_and_how_to_get_it() -> None:
    alice = Caller("user:alice", "socket", AdminRole.VIEWER, WAY)

    with pytest.raises(ForbiddenError) as caught:
        alice.expect(AdminRole.ADMIN, "DROP QUEUE")

    assert "admin" == caught.value.role
    assert (
        "DROP QUEUE takes the role admin, and user:alice has the role viewer here; "
        '[admin.roles] "user:{x}" = "admin" gives it'
    ) == str(caught.value)


def test_who_has_no_role_is_told_so() -> None:
    with pytest.raises(ForbiddenError, match=r"GET /v1/status takes the role viewer, and user:bob has no role here$"):
        Caller("user:bob", "socket", AdminRole.NONE).expect(AdminRole.VIEWER, "GET /v1/status")


def test_statements_come_through_up_to_the_first_that_takes_more() -> None:
    script = parse_script("DROP ROUTE r; DROP QUEUE q; DROP ROUTE s")
    permitted = Caller("token:ci", "there", AdminRole.OPERATOR).permitted(script)

    first = next(permitted)

    assert script[0] == first
    with pytest.raises(ForbiddenError, match=r"^DROP QUEUE takes the role admin"):
        next(permitted)


def test_a_mistake_is_for_whoever_carries_the_script_out() -> None:
    told = list(Caller("token:ci", "there", AdminRole.OPERATOR).permitted(read_script("CREATE QEUE q")))

    assert [DdlSyntaxError] == [type(one) for one in told]
