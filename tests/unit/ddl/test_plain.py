"""What the short cut reads and what it leaves to the grammar; the property test holds the two together."""

from __future__ import annotations

import pytest

from broker.ddl.plain import PlainPlaces, read_plain
from broker.ddl.statements import CreateRoute
from broker.routing.route import RouteProperties

KEYWORDS = {"ADDRESS", "WITH"}


def read(text: str, at: int = 0) -> CreateRoute | None:
    """The statement alone."""
    found = read_plain(text, at, KEYWORDS)
    if found is None:
        return None
    return CreateRoute(found.name, found.properties)


@pytest.mark.parametrize(
    ("text", "name", "properties"),
    [
        ("CREATE ROUTE r WITH ADDRESS = 'LOCAL';", "r", RouteProperties(address="LOCAL")),
        ("create route [r 1] with address='';", "r 1", RouteProperties(address="")),
        ("-- first\n\r\n CREATE  ROUTE [WITH]\nWITH\tADDRESS = N'x'  ;", "WITH", RouteProperties(address="x")),
        (
            (
                "CREATE ROUTE r WITH SERVICE_NAME = '--', BROKER_INSTANCE = 'b', LIFETIME = -1, ADDRESS = ';', "
                "MIRROR_ADDRESS = '[', WEIGHT = +3;"
            ),
            "r",
            RouteProperties("--", "b", -1, ";", "[", 3),
        ),
    ],
)
def test_plain_form_is_read(text: str, name: str, properties: RouteProperties) -> None:
    assert CreateRoute(name, properties) == read(text)


def test_places_and_end_are_those_of_the_text() -> None:
    text = "x; CREATE ROUTE [r] WITH LIFETIME = 60, ADDRESS = 'LOCAL' ; y"

    found = read_plain(text, 2, KEYWORDS)

    assert found is not None
    places = PlainPlaces(text, found.start)
    assert text[found.start : found.end] == "CREATE ROUTE [r] WITH LIFETIME = 60, ADDRESS = 'LOCAL'"
    assert text[found.following :] == " y"
    expected = {"NAME": "[r]", "LIFETIME": "60", "ADDRESS": "'LOCAL'"}
    parts = {name: text[slice(*place)] for name, place in places.items()}
    assert (expected, 3) == (parts, len(places))
    assert "WEIGHT" not in places


@pytest.mark.parametrize(
    "text",
    [
        "",
        "DROP ROUTE r;",
        "CREATE ROUTE r WITH ADDRESS = 'LOCAL'",
        "CREATE ROUTE r WITH ADDRESS = 'it''s';",
        "CREATE ROUTE [a]]b] WITH ADDRESS = 'LOCAL';",
        "CREATE ROUTE [] WITH ADDRESS = 'LOCAL';",
        "CREATE ROUTE [" + "r" * 129 + "] WITH ADDRESS = 'LOCAL';",
        "CREATE ROUTE " + "r" * 129 + " WITH ADDRESS = 'LOCAL';",
        "CREATE ROUTE address WITH ADDRESS = 'LOCAL';",
        "CREATE ROUTE\nGO\nWITH ADDRESS = 'LOCAL';",
        "CREATE ROUTE r AUTHORIZATION o WITH ADDRESS = 'LOCAL';",
        "CREATE ROUTE r WITH ADDRESS = 'LOCAL', SERVICE_NAME = 's';",
        "CREATE ROUTE r WITH SERVICE_NAME = 's';",
        "CREATE ROUTE r WITH LIFETIME = 6O, ADDRESS = 'LOCAL';",
        "CREATE ROUTE r /* c */ WITH ADDRESS = 'LOCAL';",
        "CREATE ROUTE r WITH L\u0131FETIME = 6, ADDRESS = 'LOCAL';",
        "CREATE ROUTE [\ud800] WITH ADDRESS = 'x';",
    ],
)
def test_anything_else_is_left_to_the_grammar(text: str) -> None:
    assert read(text) is None
