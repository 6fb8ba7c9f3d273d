"""
The tables of the statements' grammar: `broker/ddl/parse_table.json`, made of `broker/ddl/grammar.lark`.

    python -m tools.parse_table broker/ddl/parse_table.json

lark reads the grammar and works out the states; what is written has no name of lark's in it, and is the same each
time: states are numbered in the order in which they are reached, by the names of the symbols. `broker.ddl.parser`
reads it.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from lark import Lark
from lark.grammar import Rule, Terminal
from lark.lexer import Lexer, PatternStr
from lark.parsers.lalr_analysis import Shift

from broker.ddl.parser import TABLE

DDL = Path(__file__).parents[1] / "broker" / "ddl"
GRAMMAR = DDL / "grammar.lark"

_Row = Mapping[str, int]


class _NoLexer(Lexer):
    """The tokens come from `broker.ddl.lexer`."""

    def __init__(self, lexer_conf: Any) -> None:
        del lexer_conf

    def lex(self, lexer_state: Any, parser_state: Any) -> Iterator[Any]:
        """Nothing is parsed here."""
        raise NotImplementedError


def parse_table(grammar: str) -> dict[str, Any]:
    """
    The tables of a grammar, as plain values.

    Shape: `words` by terminal; `rules` each `[symbol, size, method or None, is_single, kept]` as `automaton._Rule` has
    them; `states` each what the symbols do in it; `start` and `final` of them.
    """
    lark = Lark(grammar, parser="lalr", lexer=_NoLexer)
    table = lark.parser.parser._parse_table  # noqa: SLF001 - lark hands out its tables in no other way
    [start], [final] = table.start_states.values(), table.end_states.values()
    rules = sorted(lark.rules, key=_key)
    number_of = {rule: number for number, rule in enumerate(rules)}
    order = _reached(table.states, start)
    return {
        "words": {one.name: one.pattern.value for one in lark.terminals if isinstance(one.pattern, PatternStr)},
        "rules": [_rule(rule) for rule in rules],
        "states": [_row(table.states[state], order, number_of) for state in order],
        "start": order[start],
        "final": order[final],
    }


def render_table(grammar: str) -> str:
    """The text of the file: a line for each rule and state."""
    parts = []
    for name, value in parse_table(grammar).items():
        if name in {"rules", "states"}:
            lines = ",\n".join(json.dumps(one) for one in value)
            parts.append(f'"{name}": [\n{lines}\n]')
        else:
            parts.append(f'"{name}": {json.dumps(value)}')
    return "{" + ",\n".join(parts) + "}\n"


def _key(rule: Rule) -> tuple[str, list[str]]:
    return rule.origin.name, [symbol.name for symbol in rule.expansion]


def _reached(states: Mapping[int, Mapping[str, Any]], start: int) -> dict[int, int]:
    """The new number of each state, in the order in which they are reached."""
    order = {start: 0}
    waiting = [start]
    for state in waiting:
        for _, (action, to) in sorted(states[state].items(), key=lambda item: item[0]):
            if action is Shift and to not in order:
                order[to] = len(order)
                waiting.append(to)
    return order


def _row(row: Mapping[str, Any], order: Mapping[int, int], number_of: Mapping[Rule, int]) -> _Row:
    """What symbols do in a state."""
    return {
        symbol: order[to] if action is Shift else ~number_of[to]
        for symbol, (action, to) in sorted(row.items(), key=lambda item: item[0])
    }


def _rule(rule: Rule) -> list[Any]:
    """A rule; which of its parts count follows lark's ParseTreeBuilder."""
    name = rule.alias or rule.origin.name
    is_single = bool(rule.options.expand1) and not rule.alias
    kept = list(_kept(rule))
    assert not is_single or (len(kept) == 1 and isinstance(kept[0], int)), f"{rule} has not one part"
    method = None if is_single or name.startswith("_") else name
    return [rule.origin.name, len(rule.expansion), method, is_single, kept]


def _kept(rule: Rule) -> Iterator[int | Sequence[int] | None]:
    """An index, `[index]` for a part whose elements are meant, None for each optional part that is missing."""
    missing = rule.options.empty_indices or [False] * len(rule.expansion)
    symbols = enumerate(rule.expansion)
    for is_missing in missing:
        if is_missing:
            yield None
            continue
        index, symbol = next(symbols)
        if isinstance(symbol, Terminal) and symbol.filter_out and not rule.options.keep_all_tokens:
            continue
        yield [index] if not symbol.is_term and symbol.name.startswith("_") else index


def main(arguments: Sequence[str]) -> None:
    """Write the file."""
    [path] = arguments or [str(DDL / TABLE)]
    Path(path).write_text(render_table(GRAMMAR.read_text("utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
