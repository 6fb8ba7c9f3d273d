"""
How a T-SQL tree is written so that SQLite means the same by it.

sqlglot's own way of writing SQLite serves except where it loses meaning: `+` of texts, lengths, instants, casts. Those
become calls of `broker.observe.function`. Names are quoted with backticks, always: a name in double quotes that exists
nowhere is a text to SQLite, and a misspelt column would be an answer instead of an error.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

from sqlglot import exp
from sqlglot.dialects.sqlite import SQLite
from sqlglot.generator import Generator
from sqlglot.generators.sqlite import SQLiteGenerator

from broker.observe.function import BUILT_IN, NOW, UNITS

Write = Callable[[Generator, exp.Expr], str]

_TEXT = "text"
_INSTANT = "instant"
_T = exp.DataType.Type
_TYPES = {
    **dict.fromkeys((_T.CHAR, _T.NCHAR, _T.VARCHAR, _T.NVARCHAR, _T.TEXT, _T.XML), _TEXT),
    **dict.fromkeys((_T.INT, _T.BIGINT, _T.SMALLINT, _T.TINYINT, _T.UTINYINT), "INTEGER"),
    **dict.fromkeys((_T.FLOAT, _T.DOUBLE), "REAL"),
    **dict.fromkeys((_T.DECIMAL, _T.MONEY, _T.SMALLMONEY), "NUMERIC"),
    **dict.fromkeys((_T.BINARY, _T.VARBINARY), "BLOB"),
    **dict.fromkeys((_T.DATETIME, _T.DATETIME2, _T.SMALLDATETIME, _T.TIMESTAMP, _T.TIMESTAMPTZ), _INSTANT),
    _T.DATE: "date",
    _T.UUID: "guid",
    _T.BIT: "bit",
}
_NOW_NAMES = frozenset({"GETUTCDATE", "SYSUTCDATETIME", "SYSDATETIME", "SYSDATETIMEOFFSET"})
_DATA_LENGTH = "DATALENGTH"
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
        exp.Concat,
        exp.Convert,
        exp.Count,
        exp.CurrentTimestamp,
        exp.DateAdd,
        exp.DateDiff,
        exp.Day,
        exp.DenseRank,
        exp.Exists,
        exp.Extract,
        exp.FirstValue,
        exp.GroupConcat,
        exp.If,
        exp.Lag,
        exp.LastValue,
        exp.Lead,
        exp.Left,
        exp.Length,
        exp.Lower,
        exp.Max,
        exp.Min,
        exp.Month,
        exp.Ntile,
        exp.Nullif,
        exp.Or,
        exp.PercentRank,
        exp.Rank,
        exp.Replace,
        exp.Right,
        exp.Round,
        exp.RowNumber,
        exp.Sign,
        exp.StrPosition,
        exp.Substring,
        exp.Sum,
        exp.TimeStrToTime,
        exp.Trim,
        exp.TryCast,
        exp.TsOrDsToDate,
        exp.Upper,
        exp.Year,
    )
)
ISO_STYLES = frozenset({"20", "21", "120", "121", "126"})  # CONVERT's styles that write an instant as the views do


def is_known_function(name: str) -> bool:
    """Whether a function that sqlglot has no own word for can be called; what is true is safe to write unquoted."""
    return name.upper() in _NOW_NAMES or name.upper() == _DATA_LENGTH or name.lower() in BUILT_IN


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


def unit_of(node: exp.Expr) -> str | None:
    """The part of an instant that DATEADD, DATEDIFF or DATEPART names; None when it is none we know."""
    unit = node.this if isinstance(node, exp.Extract) else node.args.get("unit")
    return UNITS.get(unit.name.lower()) if unit is not None else None


def bare(node: exp.Expr) -> exp.Expr:
    """What the statement said, without the conversion that sqlglot puts around an argument."""
    is_wrapped = isinstance(node, exp.TimeStrToTime | exp.TsOrDsToDate) or (
        isinstance(node, exp.Cast) and node.to.this is _T.TEXT
    )
    inner: exp.Expr = node.this if is_wrapped else node
    return inner


def _call(name: str, *keys: str) -> Write:
    """Writes a node as a call, with what it holds under these keys as arguments."""

    def write(generator: Generator, node: exp.Expr) -> str:
        return generator.func(name, *(bare(node.args[key]) for key in keys))

    return write


def _instant_call(name: str, *keys: str) -> Write:
    def write(generator: Generator, node: exp.Expr) -> str:
        unit = unit_of(node)
        assert unit is not None, "checked before anything is written"
        return generator.func(name, exp.Literal.string(unit), *(bare(node.args[key]) for key in keys))

    return write


def _part_call(unit: str) -> Write:
    def write(generator: Generator, node: exp.Expr) -> str:
        return generator.func("tsql_date_part", exp.Literal.string(unit), bare(node.this))

    return write


def _now(generator: Generator, _node: exp.Expr) -> str:
    return generator.func(NOW)


def _anonymous(generator: Generator, node: exp.Expr) -> str:
    name = node.name.upper()
    own = NOW if name in _NOW_NAMES else "tsql_data_length" if name == _DATA_LENGTH else name
    return generator.func(own, *node.expressions)


def _collate(generator: Generator, node: exp.Expr) -> str:
    return f"{generator.sql(node.this)} COLLATE {collation_of(node.expression.name)}"


def _cast(generator: Generator, node: exp.Expr) -> str:
    """CAST and CONVERT; a length in the type cuts the text."""
    is_convert = isinstance(node, exp.Convert)
    kind, value = (node.this, node.expression) if is_convert else (node.args["to"], node.this)
    sql = generator.sql(value)
    target = _TYPES[kind.this]
    if target == _TEXT:
        sizes = [size.name for size in kind.expressions if size.name.isdigit()]
        return f"substr(CAST({sql} AS TEXT), 1, {sizes[0]})" if sizes else f"CAST({sql} AS TEXT)"
    if target == _INSTANT:
        return f"tsql_to_datetime({sql})"
    if target == "date":
        return f"substr(tsql_to_datetime({sql}), 1, 10)"
    if target == "guid":
        return f"(upper(CAST({sql} AS TEXT)) COLLATE NOCASE)"
    if target == "bit":
        return f"(CAST({sql} AS INTEGER) <> 0)"
    return f"CAST({sql} AS {target})"


def _national(generator: Generator, node: exp.Expr) -> str:
    return generator.sql(exp.Literal.string(node.name))


class _Generator(SQLiteGenerator):
    TRANSFORMS: ClassVar = {
        **SQLiteGenerator.TRANSFORMS,
        exp.Add: _call("tsql_plus", "this", "expression"),
        exp.Anonymous: _anonymous,
        exp.Cast: _cast,
        exp.Collate: _collate,
        exp.Concat: lambda self, node: self.func("tsql_concat", *node.expressions),
        exp.Convert: _cast,
        exp.CurrentTimestamp: _now,
        exp.DateAdd: _instant_call("tsql_date_add", "expression", "this"),
        exp.DateDiff: _instant_call("tsql_date_diff", "expression", "this"),
        exp.Day: _part_call("day"),
        exp.Extract: _instant_call("tsql_date_part", "expression"),
        exp.Left: _call("tsql_left", "this", "expression"),
        exp.Length: _call("tsql_length", "this"),
        exp.Month: _part_call("month"),
        exp.National: _national,
        exp.Right: _call("tsql_right", "this", "expression"),
        exp.Year: _part_call("year"),
    }


class ViewsSQLite(SQLite):
    """SQLite as this package writes it."""

    class Tokenizer(SQLite.Tokenizer):
        """Names are quoted with the first of these."""

        IDENTIFIERS: ClassVar = ["`"]

    Generator = _Generator
