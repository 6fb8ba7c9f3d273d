"""What the builder's methods give: a statement without its origin, or what is wrong with a token."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeAlias

from msgspec import Struct, field

from broker.ddl.statements import Statement
from broker.ddl.token import Token

NAME_MAX_CHARACTERS = 128  # sysname of the original

Place: TypeAlias = tuple[int, int]


class RefusedError(Exception):
    """A token that the grammar allows and a rule does not; the parser adds the place."""

    def __init__(self, number: int, problem: str, token: Token) -> None:
        super().__init__(number, problem, token)
        self.number = number
        self.problem = problem
        self.token = token


class Built(Struct, frozen=True):
    """A statement without its origin, and the places of its parts by name."""

    make: Callable[..., Statement]
    places: Mapping[str, Place] = field(default_factory=dict)


def is_text(name: str) -> bool:
    """Whether a name can be stored and sent: JSON can bring half of a pair of surrogates."""
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def checked_name(token: Token, most: int = NAME_MAX_CHARACTERS) -> Token:
    """
    A name of 1 to so many characters.

    Raises:
        RefusedError: 1038 an empty one, 103 a longer one, 102 one that is no text.
    """
    if not token:
        raise RefusedError(1038, "a name must not be empty", token)
    if len(token) > most:
        problem = f"this name has {len(token)} characters; at most {most} are allowed"
        raise RefusedError(103, problem, token)
    if not is_text(token):
        raise RefusedError(102, "this name cannot be written as UTF-8: it has half a character", token)
    return token
