from __future__ import annotations

import inspect

import pytest

from broker.admin.auth import STATEMENT_LEAST, role_for
from broker.config.values import AdminRole
from broker.ddl import statements
from broker.ddl.parser import parse_script
from broker.ddl.statements import AlterDatabase, DatabaseOption, EndConversation, Statement

_ADMIN = {
    "ChangePermission",
    "GrantPermission",
    "DenyPermission",
    "RevokePermission",
    "CreateRemoteServiceBinding",
    "AlterRemoteServiceBinding",
    "DropRemoteServiceBinding",
    "DropQueue",
    "DropService",
    "DropContract",
}

HANDLE = "5b0f3c1e-5d5e-4f0b-8a55-0e9b0b9c2f11"


@pytest.mark.parametrize(
    ("text", "role"),
    [
        ("CREATE ROUTE r WITH ADDRESS = 'LOCAL'", AdminRole.OPERATOR),
        ("ALTER ROUTE r WITH ADDRESS = 'LOCAL'", AdminRole.OPERATOR),
        ("DROP ROUTE r", AdminRole.OPERATOR),
        ("ALTER QUEUE q WITH STATUS = OFF", AdminRole.OPERATOR),
        ("DROP QUEUE q", AdminRole.ADMIN),
        ("DROP SERVICE s", AdminRole.ADMIN),
        ("GRANT SEND ON SERVICE::s TO [CN=orders]", AdminRole.ADMIN),
        ("REVOKE SEND ON SERVICE::s FROM [CN=orders]", AdminRole.ADMIN),
        ("CREATE REMOTE SERVICE BINDING b TO SERVICE 's' WITH USER = [CN=x]", AdminRole.ADMIN),
        ("ALTER DATABASE d SET PARTNER FAILOVER", AdminRole.OPERATOR),
        ("ALTER DATABASE d SET ERROR_BROKER_CONVERSATIONS", AdminRole.ADMIN),
        ("ALTER DATABASE d SET NEW_BROKER", AdminRole.ADMIN),
        (f"END CONVERSATION '{HANDLE}'", AdminRole.OPERATOR),
        (f"END CONVERSATION '{HANDLE}' WITH CLEANUP", AdminRole.ADMIN),
    ],
)
def test_what_can_be_changed_back_takes_operator_and_what_destroys_takes_admin(text: str, role: AdminRole) -> None:
    [statement] = parse_script(text)

    assert role is role_for(statement)


def test_whatever_is_not_named_takes_admin() -> None:
    class Unheard(Statement, frozen=True):
        pass

    assert AdminRole.ADMIN is role_for(Unheard())


def test_every_kind_of_statement_has_been_thought_of() -> None:
    """A new statement takes admin until somebody says otherwise, here as well."""
    kinds = {
        name: kind
        for name, kind in inspect.getmembers(statements, inspect.isclass)
        if issubclass(kind, Statement) and kind not in {Statement, EndConversation, AlterDatabase}
    }
    blank = {name: kind(**dict.fromkeys(kind.__struct_fields__)) for name, kind in kinds.items()}

    assert _ADMIN == {name for name, statement in blank.items() if role_for(statement) is AdminRole.ADMIN}


@pytest.mark.parametrize("option", DatabaseOption)
def test_no_statement_takes_less_than_the_least(option: DatabaseOption) -> None:
    assert role_for(AlterDatabase(None, option)) >= STATEMENT_LEAST
