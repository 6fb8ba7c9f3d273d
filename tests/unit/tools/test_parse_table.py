"""The committed tables are those of the grammar, and lark itself, walking beside the automaton, sees the same."""

from __future__ import annotations

import random
from typing import Any

import pytest
from lark import Lark
from lark import Token as LarkToken
from lark.exceptions import UnexpectedToken

from broker.ddl.lexer import Token
from broker.ddl.parser import END, TABLE, Automaton, UnexpectedTokenError
from tools.parse_table import DDL, GRAMMAR, _NoLexer, main, render_table

WALKS = 300


class _Trees:
    def __getattr__(self, name: str) -> Any:
        return lambda parts: (name, *parts)


class _Replay(_NoLexer):
    def lex(self, lexer_state: Any, parser_state: Any = None) -> Any:
        return iter(lexer_state)


@pytest.fixture(scope="module")
def lark() -> Lark:
    return Lark(GRAMMAR.read_text("utf-8"), parser="lalr", lexer=_Replay)


def test_the_committed_tables_are_those_of_the_grammar() -> None:
    assert render_table(GRAMMAR.read_text("utf-8")) == (DDL / TABLE).read_text("utf-8"), (
        "run python -m tools.parse_table"
    )


def test_the_file_is_written_where_it_is_wanted(tmp_path: Any) -> None:
    main([str(tmp_path / "table.json")])

    assert (DDL / TABLE).read_bytes() == (tmp_path / "table.json").read_bytes()


def tree_of(node: Any) -> Any:
    return (str(node.data), *map(tree_of, node.children)) if hasattr(node, "children") else node


def test_lark_and_the_automaton_take_the_same_walks(lark: Lark) -> None:
    """Each step at random among what may follow; behind some steps, one that may not."""
    dice, automaton = random.Random(8), Automaton(_Trees())
    kinds = [one.name for one in lark.terminals]
    finished = 0

    for _ in range(WALKS):
        walk: list[str] = []
        oracle: Any = lark.parse_interactive([])  # it is handed to the lexer as it is
        while True:
            accepts = frozenset(oracle.accepts())
            wrong = dice.choice([kind for kind in kinds if kind not in accepts])
            with pytest.raises(UnexpectedTokenError) as caught:
                automaton.parse([Token(kind, kind) for kind in [*walk, wrong]])
            assert (wrong, accepts) == (caught.value.token.type, caught.value.accepts), walk
            likely = sorted(accepts - {END}) if len(walk) < 12 or END not in accepts else []
            if not likely or (END in accepts and dice.random() < 0.3):
                finished += END in accepts
                break
            walk.append(dice.choice(likely))
            oracle.feed_token(LarkToken(walk[-1], walk[-1]))
        if END in accepts:
            tree: Any = lark.parse([LarkToken(kind, kind) for kind in walk])
            assert tree_of(tree) == automaton.parse([Token(kind, kind) for kind in walk]), walk

    assert finished == WALKS


def test_lark_refuses_what_the_automaton_refuses(lark: Lark) -> None:
    with pytest.raises(UnexpectedToken):
        lark.parse([LarkToken("CREATE", "CREATE")])
