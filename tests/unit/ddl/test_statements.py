"""Where a statement stands, and how an error gets its place from it."""

from __future__ import annotations

import pytest

from broker.ddl.parser import parse_script
from broker.ddl.statements import DropRoute, StatementOrigin, blaming, words_of
from broker.errors import DuplicateNameError, Span, StatementError
from broker.routing.route import PropertyError

SCRIPT = """\
-- the routes
CREATE ROUTE [Orders]
    WITH SERVICE_NAME = '//shop/Orders',\r
\tADDRESS = 'TRANSPORT'; DROP ROUTE Old
"""


def test_span_runs_to_the_end_of_the_first_line() -> None:
    create, drop = parse_script(SCRIPT, source="routes.sql")

    assert create.span == Span("routes.sql", 2, 1, len("CREATE ROUTE [Orders]"))
    assert drop.span == Span("routes.sql", 4, 25, len("DROP ROUTE Old"))


def test_statement_that_was_made_has_no_span_and_equals_one_that_was_read() -> None:
    made = DropRoute("Old")

    assert made.span is None
    assert [made] == parse_script("  drop route Old")


@pytest.mark.parametrize(
    ("error", "span", "line"),
    [
        (
            PropertyError(9745, "p", properties=("ADDRESS", "SERVICE_NAME")),
            Span("r.sql", 4, 12, 11),
            "\tADDRESS = 'TRANSPORT'; DROP ROUTE Old",
        ),
        (
            PropertyError(9660, "p", properties=("SERVICE_NAME",)),
            Span("r.sql", 3, 25, 15),
            "    WITH SERVICE_NAME = '//shop/Orders',",
        ),
        (
            PropertyError(9661, "p", properties=("MIRROR_ADDRESS", "ADDRESS")),
            Span("r.sql", 4, 12, 11),
            "\tADDRESS = 'TRANSPORT'; DROP ROUTE Old",
        ),
        (PropertyError(9746, "p", properties=("LIFETIME",)), Span("r.sql", 2, 14, 8), "CREATE ROUTE [Orders]"),
        (DuplicateNameError(2714, "p"), Span("r.sql", 2, 14, 8), "CREATE ROUTE [Orders]"),
    ],
)
def test_error_is_placed_at_the_first_property_that_was_written_else_at_the_name(
    error: StatementError, span: Span, line: str
) -> None:
    statement = parse_script(SCRIPT, source="r.sql")[0]

    with pytest.raises(StatementError) as caught, blaming(statement):
        raise error

    assert (span, line) == (caught.value.span, caught.value.text_line)


def test_error_of_a_statement_without_known_parts_is_placed_at_the_whole() -> None:
    statement = DropRoute("x", origin=StatementOrigin("-", "DROP ROUTE x", 1, 0, 12))

    with pytest.raises(StatementError) as caught, blaming(statement):
        raise StatementError(1, "p")

    assert Span("-", 1, 1, 12) == caught.value.span


def test_error_with_a_place_keeps_it() -> None:
    span = Span("elsewhere", 7, 7)

    with pytest.raises(StatementError) as caught, blaming(parse_script("DROP ROUTE x")[0]):
        raise StatementError(1, "p", span, "text")

    assert (span, "text") == (caught.value.span, caught.value.text_line)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("CREATE ROUTE r WITH ADDRESS = 'LOCAL'", "CREATE ROUTE"),
        ("ALTER QUEUE dbo.q WITH STATUS = OFF", "ALTER QUEUE"),
        ("DROP MESSAGE TYPE m", "DROP MESSAGE TYPE"),
        ("END CONVERSATION '5b0f3c1e-5d5e-4f0b-8a55-0e9b0b9c2f11'", "END CONVERSATION"),
        ("END CONVERSATION '5b0f3c1e-5d5e-4f0b-8a55-0e9b0b9c2f11' WITH CLEANUP", "END CONVERSATION WITH CLEANUP"),
        ("ALTER DATABASE d SET PARTNER FAILOVER", "ALTER DATABASE SET PARTNER FAILOVER"),
        ("GRANT SEND ON SERVICE::s TO public", "GRANT SEND"),
        ("DENY CONNECT ON ENDPOINT::e TO public", "DENY CONNECT"),
    ],
)
def test_a_statement_is_called_by_its_first_words(text: str, words: str) -> None:
    [statement] = parse_script(text)

    assert words == words_of(statement)
