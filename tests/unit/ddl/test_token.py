"""A token is the text it stands for, and knows where it stood."""

from __future__ import annotations

from broker.ddl.lexer import Token, place_of


def test_a_token_is_its_text() -> None:
    token = Token("NAME", "orders", 3, 11)

    assert ("orders", "NAME", (3, 11)) == (token, token.type, place_of(token))
    assert {"orders": 1}[token] == 1


def test_a_token_that_was_made_stands_nowhere() -> None:
    assert (0, 0) == place_of(Token("NAME", "orders"))


def test_a_token_shows_its_kind() -> None:
    assert "Token('STRING', 'it')" == repr(Token("STRING", "it"))
