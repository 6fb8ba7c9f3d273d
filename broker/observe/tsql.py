"""
One SELECT in T-SQL: read, checked, its tables named, and written again for SQLite.

The text becomes a tree and only the tree is written out, with every name quoted as a name; so nothing of the text
reaches SQLite that was not understood here. Syntax of T-SQL that is not supported is refused by name, never left out
silently. Tables are only named here; the caller of `render` says what replaces each.

sqlglot's own way of writing SQLite serves except where it loses meaning: `+` of texts, lengths, `GETUTCDATE()`, `N''`
and casts. Syntax that SQLite does not have is refused. Names are quoted with backticks, always: a name in double quotes
that exists nowhere is a text to SQLite, and a misspelt column would be an answer instead of an error.

sqlglot takes 9 MB and a tenth of a second to import, so this module is imported with the first SELECT.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import ClassVar, TypeVar, cast

from sqlglot import exp
from sqlglot.dialects.dialect import DialectType
from sqlglot.dialects.sqlite import SQLite
from sqlglot.dialects.tsql import TSQL
from sqlglot.errors import ErrorLevel, ParseError, TokenError, UnsupportedError
from sqlglot.generator import Generator
from sqlglot.generators.sqlite import SQLiteGenerator
from sqlglot.parsers.tsql import TSQLParser
from sqlglot.tokenizer_core import Token, TokenType

from broker.errors import DdlSyntaxError, Span, StatementError, UnknownNameError
from broker.observe.sql_functions import BUILT_IN, NOW
from broker.observe.views import INSTANT_COLUMNS

# --- writing a T-SQL tree so that SQLite means the same by it ---

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
# Functions that a statement may call, as sqlglot reads them. Others are not rendered: for some, sqlglot writes an
# argument twice, which doubles the text with each level of nesting.
_CALLS: frozenset[type[exp.Expr]] = frozenset(
    {exp.Abs, exp.And, exp.Avg, exp.Case, exp.Cast, exp.Coalesce, exp.Count, exp.CurrentTimestamp, exp.Date}
    | {exp.Datetime, exp.DenseRank, exp.Exists, exp.FirstValue, exp.GroupConcat, exp.If, exp.Lag, exp.LastValue}
    | {exp.Lead, exp.Length, exp.Lower, exp.Max, exp.Min, exp.Ntile, exp.Nullif, exp.Or, exp.PercentRank}
    | {exp.Rank, exp.Replace, exp.Round, exp.RowNumber, exp.Sign, exp.StrPosition, exp.Substring, exp.Sum}
    | {exp.Collate, exp.Time, exp.Trim, exp.TryCast, exp.Upper}
)


def is_known_call(call: exp.Func) -> bool:
    """Whether a function can be called; one that sqlglot has no own word for is then safe to write unquoted."""
    if isinstance(call, exp.Anonymous):
        return call.name.upper() in _NOW_NAMES or call.name.lower() in BUILT_IN
    return type(call) in _CALLS


def collation_of(name: str) -> str | None:
    """SQLite's collation for one of the original's: without case, or byte for byte; None for neither."""
    words = set(name.upper().split("_"))
    if words & {"BIN", "BIN2", "CS"}:
        return "BINARY"
    return "NOCASE" if "CI" in words else None


def bare(node: exp.Expr) -> exp.Expr:
    """Return the argument as the statement has it, without the conversion that sqlglot puts around it."""
    inner: exp.Expr = node.this if isinstance(node, exp.Cast) and node.to.this is _T.TEXT else node
    return inner


def _call(name: str, *keys: str) -> Write:
    """Writes a node as a call, with what it holds under these keys as arguments."""

    def write(generator: Generator, node: exp.Expr) -> str:
        return generator.func(name, *(bare(node.args[key]) for key in keys))

    return write


def _anonymous(generator: Generator, node: exp.Expr) -> str:
    name = node.name.upper()
    return generator.func(NOW if name in _NOW_NAMES else name, *node.expressions)


def _cast(generator: Generator, node: exp.Expr) -> str:
    """A length in the type cuts the text."""
    kind, sql = node.args["to"], generator.sql(node.this)
    sizes = [size.name for size in kind.expressions if size.name.isdigit()]
    target = _TYPES[kind.this]
    cast = f"CAST({sql} AS {target})"
    return f"substr({cast}, 1, {sizes[0]})" if target == _TEXT and sizes else cast


class _Generator(SQLiteGenerator):
    TRANSFORMS: ClassVar = {
        **SQLiteGenerator.TRANSFORMS,
        exp.Add: _call("tsql_plus", "this", "expression"),
        exp.Anonymous: _anonymous,
        exp.Cast: _cast,
        exp.Collate: lambda self, node: f"{self.sql(node.this)} COLLATE {collation_of(node.expression.name)}",
        exp.CurrentTimestamp: lambda self, _: self.func(NOW),
        exp.Length: _call("length", "this"),
        exp.National: lambda self, node: self.sql(exp.Literal.string(node.name)),
    }


class ViewsSQLite(SQLite):
    """SQLite as this package writes it."""

    class Tokenizer(SQLite.Tokenizer):
        """Names are quoted with the first of these."""

        IDENTIFIERS: ClassVar = ["`"]

    Generator = _Generator


TEXT_MAX = 64 * 1024  # characters; longer than any question a person asks
WORDS_MAX = 8192  # names, values and signs, such as a list of 4000 values
CALLS_MAX = 100
LEVELS_MAX = 8  # of nested parentheses: subqueries, conditions, calls and types together
STEPS_MAX = 2 * WORDS_MAX  # of the parser; a statement without tricks takes one or two for each word
GROWN_MAX = 200_000  # names and values once SQLite has put inner queries into outer ones; half a second, 100 MB
_STEP_CHARACTERS = 10  # that are split into words in the time of a step
_INSTEAD = {  # of a call
    "DB_ID": ": compare the name instead, as in WHERE name = 'work'",
    "NEXT VALUE FOR": ": there are no sequences",
}
_NAME_PARTS = 4  # server, database, schema, object

_GO = re.compile(r"[ \t]*GO[ \t]*;?", re.IGNORECASE)  # a whole line
STATUS_FUNCTION = "GET_TRANSMISSION_STATUS"  # the handle that is asked about takes the place of NULL
# Names that no column of a statement has.
_STATUS_SQL = (
    "ISNULL((SELECT MAX([status of it]) FROM (SELECT conversation_handle AS [handle of it], transmission_status AS"
    " [status of it] FROM sys.transmission_queue) AS [what waits] WHERE [handle of it] = NULL), '')"
)
GUID = re.compile(r"\{?[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}\}?", re.ASCII | re.IGNORECASE)
_WRITES = frozenset(
    ("ALTER", "CREATE", "DELETE", "DENY", "DROP", "GRANT", "INSERT", "MERGE", "REVOKE", "TRUNCATE", "UPDATE")
)
_READ_ONLY = "the system views are read only"
_TOO_DEEP = "the statement is nested too deeply"
# Syntax that sqlglot parses and SQLite does not support: the tree's part, the word it begins with, number, sentence.
_REFUSED: tuple[tuple[type[exp.Expr], str, int, str], ...] = (
    (exp.DML, "", 259, _READ_ONLY),
    (exp.Into, "INTO", 259, "SELECT INTO would write; only reading is allowed here"),
    (exp.ForClause, "FOR", 102, "FOR XML and FOR JSON are not supported"),
    (exp.QueryOption, "OPTION", 102, "OPTION is not supported"),
    (exp.Parameter, "@", 137, "variables are not supported: write the value itself"),
    (exp.Placeholder, "?", 137, "parameters are not supported: write the value itself"),
    (exp.Lateral, "APPLY", 102, "APPLY is not supported: write a JOIN or a subquery"),
    (exp.Pivot, "PIVOT", 102, "PIVOT and UNPIVOT are not supported: write CASE and GROUP BY"),
    (exp.TableSample, "TABLESAMPLE", 102, "TABLESAMPLE is not supported: write TOP"),
    (exp.Version, "FOR", 102, "FOR SYSTEM_TIME is not supported: the views show this moment only"),
    (exp.Rollup, "ROLLUP", 102, "ROLLUP is not supported"),
    (exp.Cube, "CUBE", 102, "CUBE is not supported"),
    (exp.GroupingSets, "GROUPING", 102, "GROUPING SETS is not supported"),
)
_Part = TypeVar("_Part", bound=exp.Expr)
_LEAVES = (exp.Anonymous, exp.Boolean, exp.Column, exp.CurrentTimestamp, exp.Literal, exp.National, exp.Null)
_COMPARISONS = (exp.EQ, exp.NEQ, exp.GT, exp.GTE, exp.LT, exp.LTE, exp.Between)


class _BoundedParser(TSQLParser):
    """
    sqlglot's parser with a bound on its work.

    It backtracks, and some texts double its work with each word: `date(date(...`, `a JOIN b JOIN c ...` without ON.
    """

    dialect: _Dialect

    def _advance(self, times: int = 1) -> None:
        self.dialect.steps += 1
        if self.dialect.steps > STEPS_MAX:  # a ParseError would be taken for one attempt of many that failed
            problem = f"{_TOO_DEEP}: it was not understood in {STEPS_MAX} steps; write it in simpler parts"
            raise DdlSyntaxError(191, problem)
        super()._advance(times)


class _Dialect(TSQL):
    """T-SQL for one statement. sqlglot parses the names of types again with a parser of the same dialect."""

    Parser = _BoundedParser
    steps = 0

    def tokenize(self, sql: str, dialect: DialectType = None) -> list[Token]:
        """The words of a name that may be a type."""
        self.steps += len(sql) // _STEP_CHARACTERS
        return super().tokenize(sql, dialect)


@dataclass(frozen=True, slots=True)
class TableName:
    """A table as the statement names it; `database` and `schema` are None when not written."""

    database: str | None
    schema: str | None
    name: str

    def __str__(self) -> str:
        return ".".join(part for part in (self.database, self.schema, self.name) if part is not None)


class SelectQuery:
    """
    A SELECT that was understood.

    Attributes:
        text: As given, with line feeds.
        tables: The tables that it reads.
        own: The names that it defines itself (WITH), case-folded.

    Raises:
        DdlSyntaxError: 102, 105, 191: not T-SQL, more than one statement, too long, nested too deeply.
        StatementError: 259 it would write; another number for what is not supported.
    """

    def __init__(self, text: str) -> None:
        if len(text) > TEXT_MAX:  # before anything looks at it
            raise DdlSyntaxError(102, f"a SELECT may have {TEXT_MAX} characters; this has {len(text)}")
        self.text = _without_go(text.replace("\r\n", "\n"))
        self._tokens: list[Token] = []
        try:
            self._tokens = self._tokenize()
            if len(self._tokens) > WORDS_MAX:
                problem = f"a SELECT may have {WORDS_MAX} words and signs; this has {len(self._tokens)}"
                raise DdlSyntaxError(102, problem)
            self._check_beginning()
            self._check_nesting()
            self._tree = self._parse()
            self._parts: defaultdict[type[exp.Expr], list[exp.Expr]] = defaultdict(list)
            for part in self._tree.walk():  # once: a long statement has many parts
                self._parts[type(part)].append(part)
            self._check_parts()
            self.own = frozenset(cte.alias.casefold() for cte in self._of(exp.CTE))
            self._nodes = list(self._name_tables())
            self._check_calls()
            self._check_growth()
            self._prepare()
        except RecursionError:
            raise DdlSyntaxError(191, _TOO_DEEP) from None
        self.tables = frozenset(name for name, _ in self._nodes)

    def render(self, names: Mapping[TableName, str]) -> str:
        """
        The statement for SQLite, with a table or view of the schema `temp` in place of each table.

        Raises:
            DdlSyntaxError: SQLite has nothing that means the same.
        """
        for name, node in self._nodes:
            node.set("this", exp.to_identifier(names[name]))
            node.set("db", exp.to_identifier("temp"))
            node.set("catalog", None)
        try:
            return self._tree.sql(ViewsSQLite, identify=True, comments=False, unsupported_level=ErrorLevel.RAISE)
        except UnsupportedError as error:
            raise self.error(102, f"not supported: {error}", kind=DdlSyntaxError) from None
        except RecursionError:
            raise DdlSyntaxError(191, _TOO_DEEP) from None

    def error(
        self, number: int, problem: str, word: str = "", *, kind: type[StatementError] = StatementError
    ) -> StatementError:
        """An error that shows the place of a word, or of a name of several parts, where the statement has it."""
        place = self._find(word) if word else None
        return kind(number, problem) if place is None else self._error_at(number, problem, place, kind)

    def error_about(
        self, table: TableName, number: int, problem: str, *, kind: type[StatementError] = StatementError
    ) -> StatementError:
        """An error about one of `tables`, before `render`; it shows the place of the whole name."""
        return self._error_in(next(node for name, node in self._nodes if name == table), number, problem, kind=kind)

    # --- places ---------------------------------------------------------------------------------------------

    def _error_at(
        self, number: int, problem: str, place: tuple[int, int], kind: type[StatementError]
    ) -> StatementError:
        start, stop = place
        line_start = self.text.rfind("\n", 0, start) + 1
        line_end = self.text.find("\n", start)
        line = self.text[line_start : len(self.text) if line_end < 0 else line_end]
        span = Span("-", self.text.count("\n", 0, start) + 1, start - line_start + 1, max(1, stop - start))
        return kind(number, problem, span, line)

    def _error_in(self, node: exp.Table, number: int, problem: str, *, kind: type[StatementError]) -> StatementError:
        """An error about a table, at its name with all that is written before it."""
        places = [part.meta for part in node.parts if "start" in part.meta]
        if not places:
            return kind(number, problem)
        place = min(at["start"] for at in places), max(at["end"] for at in places) + 1
        return self._error_at(number, problem, place, kind)

    def _name_of(self, call: exp.Func) -> str:
        """Return the name of a call as the text has it; the parser's where it has no call syntax: NEXT VALUE FOR."""
        if isinstance(call, exp.Anonymous):
            return call.name
        return (
            self.text[call.meta["start"] : call.meta["end"] + 1]
            if "start" in call.meta
            else call.sql_name().replace("_", " ")
        )

    def _find(self, word: str) -> tuple[int, int] | None:
        """Find the position of a name, its qualifiers included when they are written there too."""
        words = [token.text.casefold() if token.token_type is not TokenType.STRING else "" for token in self._tokens]
        parts = [part.casefold() for part in word.split(".")[-_NAME_PARTS:]]
        for wanted in (parts[count:] for count in range(len(parts))):
            length = 2 * len(wanted) - 1
            for at in range(len(words) - length + 1):
                if words[at : at + length : 2] == wanted and set(words[at + 1 : at + length : 2]) <= {"."}:
                    return self._tokens[at].start, self._tokens[at + length - 1].end + 1
        return None

    # --- reading --------------------------------------------------------------------------------------------

    def _tokenize(self) -> list[Token]:
        try:
            return TSQL().tokenize(self.text)  # its length is bounded already
        except TokenError:
            raise DdlSyntaxError(105, "a text, a name in brackets or a comment is not closed") from None

    def _check_beginning(self) -> None:
        """Check that it is one statement, and one that reads."""
        tokens = self._tokens
        if not tokens or tokens[0].token_type is TokenType.SEMICOLON:
            raise DdlSyntaxError(102, "there is no statement; expected SELECT or WITH")
        first = tokens[0]
        if first.token_type not in (TokenType.SELECT, TokenType.WITH):
            place = first.start, first.end + 1
            if first.text.upper() in _WRITES:
                raise self._error_at(259, f"{_READ_ONLY}: {first.text} is refused", place, StatementError)
            problem = f"incorrect syntax near '{first.text}'; expected SELECT or WITH"
            raise self._error_at(102, problem, place, DdlSyntaxError)
        is_over = False
        for token in tokens:
            if token.token_type is TokenType.SEMICOLON:
                is_over = True
            elif is_over:
                place = token.start, token.end + 1
                raise self._error_at(102, "only one statement is allowed here", place, DdlSyntaxError)

    def _check_nesting(self) -> None:
        """Check the depth before the parser runs: nested parts cost more with each level."""
        level = calls = 0
        for before, token in pairwise(self._tokens):
            if token.token_type is TokenType.R_PAREN:
                level -= 1
            elif token.token_type is TokenType.L_PAREN:
                level += 1
                calls += before.token_type in TSQLParser.FUNC_TOKENS
                place = before.start, token.end + 1
                if level > LEVELS_MAX:
                    problem = f"{_TOO_DEEP}: a SELECT may have {LEVELS_MAX} levels of parentheses"
                    raise self._error_at(191, problem, place, DdlSyntaxError)
                if calls > CALLS_MAX:
                    problem = f"a SELECT may have {CALLS_MAX} calls; ask for less at once"
                    raise self._error_at(102, problem, place, DdlSyntaxError)

    def _parse(self) -> exp.Expr:
        try:
            trees = _Dialect().parser(error_level=ErrorLevel.IMMEDIATE).parse(self._tokens, self.text)
        except ParseError as error:
            raise self._syntax_error(error) from None
        except (AttributeError, LookupError, TokenError, TypeError, ValueError):
            # sqlglot raises these on some texts that are not T-SQL, such as an empty name for the part of a date.
            problem = "incorrect syntax: a part of the statement is empty, or is not what it has to be there"
            raise DdlSyntaxError(102, problem) from None
        tree = trees[0]
        for call in list(tree.find_all(exp.Anonymous)) if tree is not None else ():
            if call.name.upper() == STATUS_FUNCTION:
                call.replace(self._status_of(call))
        if not isinstance(tree, exp.Select | exp.SetOperation):
            raise StatementError(259, f"{_READ_ONLY}: only SELECT can follow WITH")
        return tree

    def _status_of(self, call: exp.Anonymous) -> exp.Expr:
        """GET_TRANSMISSION_STATUS(handle): that of the messages of the conversation that wait, or an empty text."""
        if len(call.expressions) != 1:
            raise self.error(174, f"{STATUS_FUNCTION} takes one conversation handle", call.name)
        handle = call.expressions[0]
        if isinstance(handle, exp.Literal | exp.National) and GUID.fullmatch(handle.name) is None:
            raise self.error(8169, f"{handle.name!r} is not a conversation handle: write a GUID", handle.name)
        status: exp.Expr = exp.maybe_parse(_STATUS_SQL, dialect="tsql").copy()
        for place in list(status.find_all(exp.Null)):
            place.replace(handle)
        return exp.alias_(status, STATUS_FUNCTION) if isinstance(call.parent, exp.Select) else status

    def _syntax_error(self, error: ParseError) -> StatementError:
        """
        Make the error for a text that does not parse.

        The parser reports line and last column of the token at which it stopped, but not in a name that is a type.
        """
        if not error.errors:
            return DdlSyntaxError(102, f"incorrect syntax: {error}")
        found = error.errors[0]
        near = found["highlight"] or ""
        lines = self.text.split("\n")[: found["line"] - 1]
        stop = sum(len(line) + 1 for line in lines) + found["col"]
        problem = f"incorrect syntax near '{near}'"
        return self._error_at(102, problem, (max(0, stop - len(near)), stop), DdlSyntaxError)

    # --- checking -------------------------------------------------------------------------------------------

    def _of(self, *kinds: type[_Part]) -> Iterator[_Part]:
        """The parts of the statement of these kinds, as it was read."""
        for kind, parts in self._parts.items():
            if issubclass(kind, kinds):
                yield from cast("list[_Part]", parts)

    def _check_parts(self) -> None:
        for kind, word, number, problem in _REFUSED:
            if any(self._of(kind)):
                raise self.error(number, problem, word)
        for clause in self._of(exp.With):
            if clause.parent is not self._tree:  # so that a name of `own` means the same everywhere
                raise self.error(156, "WITH can stand only at the beginning of the statement")
        for options in self._of(exp.LimitOptions):
            if options.args.get("percent") or options.args.get("with_ties"):
                raise self.error(102, "TOP takes a number of rows: PERCENT and WITH TIES are not supported", "TOP")
        for like in self._of(exp.Like):
            if "[" in like.expression.name and isinstance(like.expression, exp.Literal | exp.National):
                raise self.error(102, "LIKE knows % and _, not a set of characters in brackets", "LIKE")
        for collate in self._of(exp.Collate):
            name = collate.expression.name
            if collation_of(name) is None:
                raise self.error(448, f"invalid collation '{name}'", name)

    def _check_calls(self) -> None:
        for dot in self._of(exp.Dot):
            problem = f"{dot.sql('tsql')} is neither a column nor a function here"
            raise self.error(4121, problem, dot.expression.name)
        for call in self._of(exp.Func):
            if not is_known_call(call):
                name = self._name_of(call)
                hint = _INSTEAD.get(name.upper(), "")
                raise self.error(195, f"'{name}' is not a recognized function name{hint}", name.partition(" ")[0])
        for node in self._of(exp.Cast):
            if node.args.get("safe"):
                raise self.error(102, "TRY_CAST is not supported: write CAST")
            kind = node.args["to"]
            if kind.this not in _TYPES:
                name = kind.sql("tsql")
                raise self.error(243, f"type {name} is not supported", name)

    def _check_growth(self) -> None:
        """
        Refuse what SQLite would make too large before it asks for the time.

        It copies a query of WITH to each place that reads it, and the expression of an inner query's column to each
        place that names the column. The estimate is that of the worst order: each inner query reads all others.
        """
        derived = [part for part in self._of(exp.Subquery) if isinstance(part.parent, exp.From | exp.Join)]
        inner = [*self._of(exp.CTE), *derived]
        columns = [column for part in inner for select in part.find_all(exp.Select) for column in select.expressions]
        widest = max((sum(isinstance(part, _LEAVES) for part in column.walk()) for column in columns), default=1)
        reads = Counter(table.name.casefold() for table in self._of(exp.Table) if not table.db)
        grown = sum(1 for _ in self._of(*_LEAVES)) * max(1, widest) ** len(inner)
        for name in self.own:
            grown *= max(1, reads[name])
        if grown > GROWN_MAX:
            raise DdlSyntaxError(
                191, f"{_TOO_DEEP}: inner queries are read too often; write fewer of them, or less in each"
            )

    def _name_tables(self) -> Iterator[tuple[TableName, exp.Table]]:
        for node in self._of(exp.Table):
            table, schema, database = node.this, node.args.get("db"), node.args.get("catalog")
            if isinstance(table, exp.Dot):
                problem = f"{node.sql('tsql')} has four parts: there is no other server to read"
                raise self._error_in(node, 7202, problem, kind=StatementError)
            if not isinstance(table, exp.Identifier):
                problem = f"invalid object name '{table.name}': a function is not a view"
                raise self.error(208, problem, table.name, kind=UnknownNameError)
            if database is not None and not schema:
                name = f"{database.name}..{table.name}"
                problem = f"'{name}' leaves the schema out; write {name.replace('..', '.sys.')}"
                raise self._error_in(node, 208, problem, kind=UnknownNameError)
            if schema is None and table.name.casefold() in self.own:
                continue
            yield TableName(database and database.name, schema and schema.name, table.name), node

    # --- preparing ------------------------------------------------------------------------------------------

    def _prepare(self) -> None:
        """Make explicit what T-SQL implies and SQLite would take otherwise."""
        for name, node in self._nodes:
            node.set("hints", None)  # NOLOCK and the like: reading never locks here
            if not node.alias:
                node.set("alias", exp.TableAlias(this=exp.to_identifier(name.name)))
        for column in self._of(exp.Column):
            column.set("db", None)
            column.set("catalog", None)
        for comparison in list(self._of(*_COMPARISONS)):
            _read_instants(comparison)
        _name_columns(self._tree)


def _without_go(text: str) -> str:
    """Return the text without a last line GO; in one pass, whatever blanks that line has."""
    head, line_feed, last = text.rstrip().rpartition("\n")
    return head + line_feed if line_feed and _GO.fullmatch(last) else text


def _read_instants(comparison: exp.Expr) -> None:
    """A text compared with an instant is an instant, however it is written."""
    keys = [key for key in ("this", "expression", "low", "high") if comparison.args.get(key) is not None]
    operands = [comparison.args[key] for key in keys]
    if any(isinstance(operand, exp.Column) and operand.name.lower() in INSTANT_COLUMNS for operand in operands):
        for key, operand in zip(keys, operands, strict=True):
            if operand.is_string or isinstance(operand, exp.National):
                comparison.set(key, exp.func("tsql_to_datetime", operand))


def _name_columns(tree: exp.Expr) -> None:
    """Name every column of the result as it is written, so that what it became is not seen."""
    while not isinstance(tree, exp.Select):
        tree = tree.this
    named = []
    for column in tree.expressions:
        if isinstance(column, exp.Alias) or column.is_star:
            named.append(column)
        else:
            is_plain = isinstance(column, exp.Column)
            name = column.name if is_plain else column.copy().transform(bare).sql("tsql", comments=False)
            named.append(exp.alias_(column, name, quoted=True, copy=False))
    tree.set("expressions", named)
