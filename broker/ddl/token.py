"""A word, mark or value of a statement, and where it stands."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing import Self


class Token(str):
    """
    The decoded text of a token, which is a text itself.

    Shape: `type` the terminal of the grammar; `start`, `end` offsets into the script.
    """

    __slots__ = ("end", "start", "type")

    type: str
    start: int
    end: int

    def __new__(cls, kind: str, value: str, start: int = 0, end: int = 0) -> Self:
        """A token of this kind."""
        token = str.__new__(cls, value)
        token.type, token.start, token.end = kind, start, end
        return token

    def __repr__(self) -> str:
        return f"Token({self.type!r}, {str(self)!r})"


def place_of(token: Token) -> tuple[int, int]:
    """Where a token begins and ends, as offsets into the script."""
    return token.start, token.end
