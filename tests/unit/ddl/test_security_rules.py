"""Every form of GRANT, DENY, REVOKE and of remote service bindings, and what a rule refuses."""

from __future__ import annotations

import pytest

from broker.ddl.parser import parse_script
from broker.ddl.render import render_statement
from broker.ddl.statements import (
    AlterRemoteServiceBinding,
    CreateRemoteServiceBinding,
    DenyPermission,
    DropRemoteServiceBinding,
    DropRoute,
    GrantPermission,
    RevokePermission,
    Statement,
)
from broker.errors import DdlSyntaxError
from broker.security.grants import Permission

SEND, CONNECT = Permission.SEND, Permission.CONNECT


@pytest.mark.parametrize(
    ("text", "statement"),
    [
        (
            "GRANT SEND ON SERVICE::[//shop/Orders] TO [CN=orders]",
            GrantPermission(SEND, "//shop/Orders", ("CN=orders",)),
        ),
        ("grant connect on endpoint :: gw to public", GrantPermission(CONNECT, "gw", ("public",))),
        ("GRANT SEND ON SERVICE::s TO a, [b c], public", GrantPermission(SEND, "s", ("a", "b c", "public"))),
        ("DENY SEND ON SERVICE::[*] TO a CASCADE", DenyPermission(SEND, "*", ("a",))),
        ("REVOKE SEND ON SERVICE::s FROM a", RevokePermission(SEND, "s", ("a",))),
        ("REVOKE CONNECT ON ENDPOINT::[*] TO a CASCADE", RevokePermission(CONNECT, "*", ("a",))),
        ("GRANT SEND ON SERVICE::send TO connect", GrantPermission(SEND, "send", ("connect",))),
        (
            f"GRANT SEND ON SERVICE::[{'x' * 512}] TO [CN={'y' * 1021}]",
            GrantPermission(SEND, "x" * 512, ("CN=" + "y" * 1021,)),
        ),
        (
            "CREATE REMOTE SERVICE BINDING b AUTHORIZATION dbo TO SERVICE N'//s' WITH USER = [CN=x], ANONYMOUS = ON",
            CreateRemoteServiceBinding("b", "//s", "CN=x", anonymous=True, owner="dbo"),
        ),
        (
            "CREATE REMOTE SERVICE BINDING remote TO SERVICE '//s' WITH ANONYMOUS=OFF USER=x,",
            CreateRemoteServiceBinding("remote", "//s", "x"),
        ),
        ("ALTER REMOTE SERVICE BINDING b WITH USER = x", AlterRemoteServiceBinding("b", user="x")),
        ("ALTER REMOTE SERVICE BINDING b WITH ANONYMOUS = OFF", AlterRemoteServiceBinding("b", anonymous=False)),
        ("DROP REMOTE SERVICE BINDING b", DropRemoteServiceBinding("b")),
    ],
)
def test_statement_is_read_and_written_and_read_again(text: str, statement: Statement) -> None:
    assert [statement] == parse_script(text)
    assert [statement] == parse_script(render_statement(statement))


def test_statements_need_no_mark_between_them() -> None:
    text = "GRANT SEND ON SERVICE::s TO a DENY SEND ON SERVICE::s TO b REVOKE SEND ON SERVICE::s TO c DROP ROUTE r"

    assert [GrantPermission, DenyPermission, RevokePermission, DropRoute] == [type(one) for one in parse_script(text)]


@pytest.mark.parametrize(
    ("text", "number", "problem", "marked"),
    [
        ("GRANT SEND ON SERVICE::s TO [sha256:1]", 15151, "is no fingerprint", "[sha256:1]"),
        ("GRANT SEND ON SERVICE::s TO a, b, [a]", 102, "the principal 'a' is given twice", "[a]"),
        ("GRANT SEND ON SERVICE::s TO [CN=a], [cn = a]", 102, "is given twice", "[cn = a]"),
        (f"GRANT SEND ON SERVICE::[{'x' * 513}] TO a", 103, "at most 512", f"[{'x' * 513}]"),
        (f"GRANT SEND ON SERVICE::[{'ж' * 257}] TO a", 103, "at most 512 bytes", f"[{'ж' * 257}]"),
        ("GRANT SEND ON SERVICE::[] TO a", 1038, "must not be empty", "[]"),
        (f"GRANT SEND ON SERVICE::s TO [{'x' * 1025}]", 103, "at most 1024", f"[{'x' * 1025}]"),
        ("GRANT SEND ON ENDPOINT::s TO a", 102, "expected SERVICE", "ENDPOINT"),
        ("GRANT CONTROL ON SERVICE::s TO a", 102, "expected CONNECT or SEND", "CONTROL"),
        ("GRANT SEND ON SERVICE::s FROM a", 102, "expected TO", "FROM"),
        ("GRANT SEND ON SERVICE::s TO a WITH GRANT OPTION", 102, "nobody passes them on", "WITH"),
        ("GRANT SEND ON SERVICE::s TO a AS b", 102, "nobody passes them on", "AS"),
        ("CREATE REMOTE SERVICE BINDING b TO SERVICE 's' WITH ANONYMOUS = ON", 102, "needs USER", "b"),
        ("CREATE REMOTE SERVICE BINDING b TO SERVICE '' WITH USER = x", 103, "1 to 512 bytes", "''"),
        ("ALTER REMOTE SERVICE BINDING b WITH USER = x USER = y", 102, "USER is given twice", "USER"),
        ("ALTER REMOTE SERVICE BINDING b WITH USER = [sha256:1]", 15151, "is no fingerprint", "[sha256:1]"),
    ],
)
def test_mistake_has_its_number_and_place(text: str, number: int, problem: str, marked: str) -> None:
    with pytest.raises(DdlSyntaxError) as caught:
        parse_script(text)

    error = caught.value
    assert error.span is not None
    assert (number, marked) == (error.number, text[error.span.column - 1 :][: error.span.length])
    assert problem in error.problem
