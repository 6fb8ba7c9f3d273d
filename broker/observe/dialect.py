"""
How a T-SQL tree is written so that SQLite means the same by it.

sqlglot's own way of writing SQLite serves except where it loses meaning: `+` of texts, lengths, `GETUTCDATE()`, `N''`
and casts. What SQLite does not have is refused. Names are quoted with backticks, always: a name in double quotes that
exists nowhere is a text to SQLite, and a misspelt column would be an answer instead of an error.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

from sqlglot import exp
from sqlglot.dialects.sqlite import SQLite
from sqlglot.generator import Generator
from sqlglot.generators.sqlite import SQLiteGenerator

from broker.observe.function import BUILT_IN, NOW

Write = Callable[[Generator, exp.Expr], str]

_TEXT = "TEXT"
_T = exp.DataType.Type
_TYPES = {
    **dict.fromkeys((_T.CHAR, _T.NCHAR, _T.VARCHAR, _T.NVARCHAR, _T.TEXT, _T.XML), _TEXT),
    **dict.fromkeys((_T.INT, _T.BIGINT, _T.SMALLINT, _T.TINYINT, _T.UTINYINT), "INTEGER"),
    **dict.fromkeys((_T.FLOAT, _T.DOUBLE), "REAL"),
    **dict.fromkeys((_T.DECIMAL, _T.MONEY, _T.SMALLMONEY), "NUMERIC"),
    **dict.fromkeys((_T.BINARY, _T.VARBINARY), "BLOB"),
}
_NOW_NAMES = frozenset({"GETUTCDATE", "SYSUTCDATETIME", "SYSDATETIME", "SYSDATETIMEOFFSET"})
# What a statement may call, as sqlglot reads it. Others are not rendered: for some, sqlglot writes an argument twice,
# which doubles the text with each level of nesting.
_CALLS = frozenset(
    (
        exp.Abs,
        exp.And,
        exp.Avg,
        exp.Case,
        exp.Cast,
        exp.Coalesce,
        exp.Count,
        exp.CurrentTimestamp,
        exp.Date,
        exp.Datetime,
        exp.DenseRank,
        exp.Exists,
        exp.FirstValue,
        exp.GroupConcat,
        exp.If,
        exp.Lag,
        exp.LastValue,
        exp.Lead,
        exp.Length,
        exp.Lower,
        exp.Max,
        exp.Min,
        exp.Ntile,
        exp.Nullif,
        exp.Or,
        exp.PercentRank,
        exp.Rank,
        exp.Replace,
        exp.Round,
        exp.RowNumber,
        exp.Sign,
        exp.StrPosition,
        exp.Substring,
        exp.Sum,
        exp.Time,
        exp.Trim,
        exp.TryCast,
        exp.Upper,
    )
)


def is_known_function(name: str) -> bool:
    """Whether a function that sqlglot has no own word for can be called; what is true is safe to write unquoted."""
    return name.upper() in _NOW_NAMES or name.lower() in BUILT_IN


def is_known_call(call: exp.Func) -> bool:
    """Whether a function can be called."""
    return is_known_function(call.name) if isinstance(call, exp.Anonymous) else type(call) in _CALLS


def is_known_type(kind: exp.DataType) -> bool:
    """Whether a value can be cast to this type."""
    return kind.this in _TYPES


def collation_of(name: str) -> str | None:
    """SQLite's collation for one of the original's: without case, or byte for byte; None for neither."""
    words = set(name.upper().split("_"))
    if words & {"BIN", "BIN2", "CS"}:
        return "BINARY"
    return "NOCASE" if "CI" in words else None


def bare(node: exp.Expr) -> exp.Expr:
    """What the statement said, without the conversion that sqlglot puts around an argument."""
    inner: exp.Expr = node.this if isinstance(node, exp.Cast) and node.to.this is _T.TEXT else node
    return inner


def _call(name: str, *keys: str) -> Write:
    """Writes a node as a call, with what it holds under these keys as arguments."""

    def write(generator: Generator, node: exp.Expr) -> str:
        return generator.func(name, *(bare(node.args[key]) for key in keys))

    return write


def _now(generator: Generator, _node: exp.Expr) -> str:
    return generator.func(NOW)


def _anonymous(generator: Generator, node: exp.Expr) -> str:
    name = node.name.upper()
    return generator.func(NOW if name in _NOW_NAMES else name, *node.expressions)


def _collate(generator: Generator, node: exp.Expr) -> str:
    return f"{generator.sql(node.this)} COLLATE {collation_of(node.expression.name)}"


def _cast(generator: Generator, node: exp.Expr) -> str:
    """A length in the type cuts the text."""
    kind, sql = node.args["to"], generator.sql(node.this)
    sizes = [size.name for size in kind.expressions if size.name.isdigit()]
    target = _TYPES[kind.this]
    cast = f"CAST({sql} AS {target})"
    return f"substr({cast}, 1, {sizes[0]})" if target == _TEXT and sizes else cast


def _national(generator: Generator, node: exp.Expr) -> str:
    return generator.sql(exp.Literal.string(node.name))


class _Generator(SQLiteGenerator):
    TRANSFORMS: ClassVar = {
        **SQLiteGenerator.TRANSFORMS,
        exp.Add: _call("tsql_plus", "this", "expression"),
        exp.Anonymous: _anonymous,
        exp.Cast: _cast,
        exp.Collate: _collate,
        exp.CurrentTimestamp: _now,
        exp.Length: _call("length", "this"),
        exp.National: _national,
    }


class ViewsSQLite(SQLite):
    """SQLite as this package writes it."""

    class Tokenizer(SQLite.Tokenizer):
        """Names are quoted with the first of these."""

        IDENTIFIERS: ClassVar = ["`"]

    Generator = _Generator
