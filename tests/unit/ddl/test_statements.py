"""Where a statement stands, and how an error gets its place from it."""

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

    for one, span in ((create, Span("routes.sql", 2, 1, 21)), (drop, Span("routes.sql", 4, 25, 14))):
        assert one.origin is not None
        assert span == one.origin.span(one.origin.start, one.origin.end)


@pytest.mark.parametrize(
    ("error", "span"),
    [
        (PropertyError(9745, "p", properties=("ADDRESS", "SERVICE_NAME")), Span("r.sql", 4, 12, 11)),
        (PropertyError(9660, "p", properties=("SERVICE_NAME",)), Span("r.sql", 3, 25, 15)),
        (PropertyError(9661, "p", properties=("MIRROR_ADDRESS", "ADDRESS")), Span("r.sql", 4, 12, 11)),
        (PropertyError(9746, "p", properties=("LIFETIME",)), Span("r.sql", 2, 14, 8)),
        (DuplicateNameError(2714, "p"), Span("r.sql", 2, 14, 8)),
    ],
)
def test_error_is_placed_at_the_first_property_that_was_written_else_at_the_name(
    error: StatementError, span: Span
) -> None:
    statement = parse_script(SCRIPT, source="r.sql")[0]

    with pytest.raises(StatementError) as caught, blaming(statement):
        raise error

    assert (span, SCRIPT.split("\n")[span.line - 1].rstrip("\r")) == (caught.value.span, caught.value.text_line)


def test_error_of_a_statement_without_known_parts_is_placed_at_the_whole_unless_it_has_a_place() -> None:
    statement = DropRoute("x", origin=StatementOrigin("-", "DROP ROUTE x", 1, 0, 12))
    elsewhere = Span("elsewhere", 7, 7)

    for span, expected in ((None, Span("-", 1, 1, 12)), (elsewhere, elsewhere)):
        with pytest.raises(StatementError) as caught, blaming(statement):
            raise StatementError(1, "p", span)
        assert expected == caught.value.span


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
