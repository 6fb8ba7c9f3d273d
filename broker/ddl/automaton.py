"""
The automaton that reads statements: LALR(1), its tables made of `grammar.lark` and kept in `parse_table.json`.

`python -m tools.parse_table` makes the tables, with lark, which is asked for nothing while the program runs: to read
the grammar takes longer than most commands run. A test fails when the file is not what the grammar says.

Theory: a stack of states; a token either moves on to a state (shift), or tells that the values of the last symbols are
the parts of a rule (reduce), whose method makes one value of them. Source: Aho, Sethi, Ullman, "Compilers", 4.7.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from operator import itemgetter
from pkgutil import get_data
from typing import Any, NamedTuple

from broker.ddl.token import Token

TABLE = "parse_table.json"
END = "$END"  # the terminal behind the last token

_Make = Callable[[Sequence[Any]], Any]


class UnexpectedTokenError(Exception):
    """A token that cannot stand where it stands. Shape: `accepts` the terminals that could."""

    def __init__(self, token: Token, accepts: frozenset[str]) -> None:
        super().__init__(token, accepts)
        self.token = token
        self.accepts = accepts


class _Rule(NamedTuple):
    """
    What becomes of the parts of a rule.

    Shape: `origin` the symbol it makes, of `size` parts; `make` gets those of `kept`: an index, `(index,)` for a part
    that is a list whose elements are meant, None for an optional part that is missing.
    """

    origin: str
    size: int
    make: _Make
    kept: Sequence[int | list[int] | None]

    def value(self, parts: Sequence[Any]) -> Any:
        """The value of the whole."""
        values: list[Any] = []
        for one in self.kept:
            if isinstance(one, int):
                values.append(parts[one])
            elif one is None:
                values.append(None)
            else:
                values.extend(parts[one[0]])
        return self.make(values)


class Automaton:
    """
    Reads tokens.

    Args:
        methods: Has a method for each rule of the grammar whose name does not begin with an underscore.

    Shape: `words` the text of each keyword and mark by its terminal; `openers` the terminals that open a statement.
    """

    def __init__(self, methods: object) -> None:
        table = json.loads(get_data("broker.ddl", TABLE) or b"")
        self.words: Mapping[str, str] = table["words"]
        self._start: int = table["start"]
        self._final: int = table["final"]
        self._rules = [
            _Rule(origin, size, _make(methods, method, is_single=is_single), kept)
            for origin, size, method, is_single, kept in table["rules"]
        ]
        # What a symbol does in a state: a number of 0 or more is the next state, one below it is ~ the rule.
        self._states: Sequence[Mapping[str, int]] = table["states"]
        self.openers = self._accepted([self._start], self._states[self._start])

    def parse(self, tokens: Iterable[Token]) -> Any:
        """
        The value of a statement.

        Raises:
            UnexpectedTokenError: a token cannot stand where it stands; of the kind `$END` when the end comes too early.
            RefusedError: as the methods.
        """
        states, values, last = [self._start], list[Any](), None
        for token in tokens:
            self._take(states, values, token)
            last = token
        end = last.end if last else 0
        self._take(states, values, Token(END, "", end, end))
        return values[-1]

    def _take(self, states: list[int], values: list[Any], token: Token) -> None:
        """Reduce as long as this token says so, then shift it; the end is never shifted."""
        kind = token.type
        while True:
            row = self._states[states[-1]]
            step = row.get(kind)
            if step is None:
                raise UnexpectedTokenError(token, self._accepted(states, row))
            if step >= 0:
                states.append(step)
                values.append(token)
                return
            rule = self._rules[~step]
            at = len(values) - rule.size
            value = rule.value(values[at:])
            del values[at:], states[at + 1 :]
            states.append(self._states[states[-1]][rule.origin])
            values.append(value)
            if kind == END and states[-1] == self._final:
                return

    def _accepted(self, states: Sequence[int], row: Mapping[str, int]) -> frozenset[str]:
        """The terminals that could stand here."""
        return frozenset(kind for kind in row if kind.isupper() and self._is_accepted(states, kind))

    def _is_accepted(self, states: Sequence[int], kind: str) -> bool:
        """Whether a token of this kind leads on; a reduction that its state allows may still end in a dead end."""
        states = list(states)
        while (step := self._states[states[-1]].get(kind)) is not None:
            if step >= 0:
                return True
            rule = self._rules[~step]
            del states[len(states) - rule.size :]
            states.append(self._states[states[-1]][rule.origin])
            if kind == END and states[-1] == self._final:
                return True
        return False


def _make(methods: object, name: str | None, *, is_single: bool) -> _Make:
    """What makes the value of a rule; where only one part is left of one that is `is_single`, it is that part."""
    method: _Make = list if name is None else getattr(methods, name)
    return itemgetter(0) if is_single else method
