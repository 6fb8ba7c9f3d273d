"""
Every number that the code gives to an error, where, and in which sentence: found in the source, without running it.

A number is found where it is the first argument of an error or stands before the sentence of one, in a table too; where
it is given to an argument `number`, `code` or `error`; as the `code` of a class; and in a sentence that begins with
"error N:". What is made only while the program runs, such as the number of an application's own error, is not found.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from broker.observe.views import MessageChannel

BROKER = Path(__file__).parents[1] / "broker"
LEAST, MOST = 100, 99_999  # numbers of messages; what is below is an exit code, a count or an offset
NOTHING: Mapping[str, ast.expr] = {}
_MAKERS = re.compile(
    r"\w*Error|_?error(_at|_in|_about)?|kind|_?mistake|Fault|Refusal|Ending|check_\w+|_check_queue|_each_once"
)
_MAY_TELL = re.compile(
    r"Error\(|error\(|kind\(|Fault\(|Refusal\(|Ending\(|number\b|\"error \d"
)  # others need not be parsed
_APART = ("bench/",)  # it measures; nothing of it is told by an instance
_CONSTANT = re.compile(r"^(?P<name>_?[A-Z][A-Z0-9_]*) = (?P<value>-?\d[\d_]*|\"[^\"\n]*\")(?=\s)", re.MULTILINE)
_FORMATTED = re.compile(r"\{(?P<name>\w+)(?:!r)?\}")
_NAMED = frozenset({"number", "code", "error"})
_TOLD = re.compile(r"error (\d+): ")
# The first that fits the path says where a positive number is told, unless the kind of the error does.
_PLACES: Sequence[tuple[str, MessageChannel]] = (
    ("admin/api.py", MessageChannel.SELECT),
    ("admin/", MessageChannel.APPLICATION),
    ("application/", MessageChannel.APPLICATION),
    ("cli/", MessageChannel.APPLICATION),
    ("observe/", MessageChannel.SELECT),
    ("dialog/", MessageChannel.REQUEST),
    ("conversation/", MessageChannel.APPLICATION),
    ("", MessageChannel.STATEMENT),
)


@dataclass(frozen=True, slots=True, order=True)
class Raised:
    """
    One place in the code that tells a number.

    Shape: `places` of which one or all are meant; `kind` the word before the parenthesis, empty in a table; `sentence`
    with what is filled in between braces, empty where it is made elsewhere; `module` below `broker`.
    """

    number: int
    places: tuple[MessageChannel, ...]
    kind: str
    sentence: str
    module: str


def raised(root: Path = BROKER) -> list[Raised]:
    """All of a tree, by number."""
    texts = {str(path.relative_to(root)): path.read_text(encoding="utf-8") for path in sorted(root.rglob("*.py"))}
    constants = {name: value for text in texts.values() for name, value in _simple_constants(text)}
    found: set[Raised] = set()
    for module, text in texts.items():
        if not module.startswith(_APART) and _MAY_TELL.search(text):
            tree = ast.parse(text)
            found |= set(_Module(module, constants | dict(_constants(tree))).raised(tree))
    return sorted(found)


def _simple_constants(text: str) -> Iterator[tuple[str, ast.expr]]:
    """Whole numbers and texts that a module names in capitals, each in a line; read without parsing it all."""
    for line in _CONSTANT.finditer(text):
        yield line["name"], ast.parse(line["value"], mode="eval").body


def _constants(tree: ast.Module) -> Iterator[tuple[str, ast.expr]]:
    """Numbers and texts that a module names in capitals."""
    for node in tree.body:
        if isinstance(node, ast.Assign):
            for target in node.targets:
                pairs = [(target, node.value)]
                if isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple):
                    pairs = list(zip(target.elts, node.value.elts, strict=True))
                for name, value in pairs:
                    if isinstance(name, ast.Name) and name.id.lstrip("_").isupper():
                        yield name.id, value


class _Module:
    """One module: what its names stand for, and what it tells."""

    def __init__(self, module: str, constants: Mapping[str, ast.expr]) -> None:
        self._module = module
        self._constants = constants
        self._problems: list[tuple[int, str]] = []  # what a function has called `problem` or `text`, by line

    def raised(self, tree: ast.Module) -> Iterator[Raised]:
        """Everything, in the order of the text but for what is repeated."""
        yield from self._of_classes(tree)
        nodes = list(ast.walk(tree))
        self._problems = sorted(self._assigned(nodes))
        parts = {id(part) for node in nodes if isinstance(node, ast.JoinedStr) for part in node.values}
        for node in nodes:
            if isinstance(node, ast.Call):
                yield from self._of_call(node)
            elif isinstance(node, ast.Tuple):
                yield from self._of_table(node)
            elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                yield from self._of_defaults(node)
            elif isinstance(node, ast.Assign) and any(_last_name(target) == "number" for target in node.targets):
                yield from self._told(node.value, "", "")
            elif isinstance(node, ast.Constant | ast.JoinedStr) and id(node) not in parts:
                text = rendered(node, self._constants)
                told = _TOLD.match(text)
                if told:
                    yield Raised(int(told[1]), (MessageChannel.START,), "", text, self._module)

    def _of_classes(self, tree: ast.Module) -> Iterator[Raised]:
        """`code` of a class, with the sentence that its `__str__` makes."""
        for node in tree.body:
            if isinstance(node, ast.ClassDef):
                for part in node.body:
                    if isinstance(part, ast.AnnAssign) and _last_name(part.target) == "code" and part.value is not None:
                        for number in self._numbers(part.value):
                            yield Raised(
                                number,
                                (MessageChannel.CONNECTION,),
                                node.name,
                                sentence_of(node, self._constants),
                                self._module,
                            )

    def _of_call(self, call: ast.Call) -> Iterator[Raised]:
        name = _last_name(call.func)
        if _MAKERS.fullmatch(name):
            kind = next((_last_name(one.value) for one in call.keywords if one.arg == "kind"), name)
            for at, argument in enumerate(call.args):
                sentence = call.args[at + 1] if at + 1 < len(call.args) else None
                yield from self._told(argument, kind, "" if sentence is None else self._sentence(sentence, call))
        for one in call.keywords if name != "note" else ():  # which gives events of the log
            if one.arg in _NAMED:
                yield from self._told(one.value, name, "")

    def _of_table(self, row: ast.Tuple) -> Iterator[Raised]:
        for number, sentence in zip(row.elts, row.elts[1:], strict=False):
            text = self._sentence(sentence, row)
            if " " in text:
                yield from self._told(number, "", text)

    def _of_defaults(self, function: ast.FunctionDef | ast.AsyncFunctionDef) -> Iterator[Raised]:
        names = [one.arg for one in function.args.args][-len(function.args.defaults) :]
        pairs = [*zip(names, function.args.defaults, strict=False)] if function.args.defaults else []
        named = zip(function.args.kwonlyargs, function.args.kw_defaults, strict=True)
        pairs += [(one.arg, value) for one, value in named if value is not None]
        for name, value in pairs:
            if name in _NAMED:
                yield from self._told(value, "", "")

    def _told(self, value: ast.expr, kind: str, sentence: str) -> Iterator[Raised]:
        for number in self._numbers(value):
            yield Raised(abs(number), self._places(number, kind), kind, sentence, self._module)

    def _places(self, number: int, kind: str) -> tuple[MessageChannel, ...]:
        if number < 0:
            return (MessageChannel.DIALOG,)
        if kind == "Refusal" or self._module == "conversation/message_types.py":
            return (
                MessageChannel.APPLICATION,
                MessageChannel.DIALOG,
            )  # told to the sender here, or, negative, to the far side
        return (next(place for start, place in _PLACES if self._module.startswith(start)),)

    def _numbers(self, value: ast.expr) -> list[int]:
        """What may be a number of a message, of a constant, a name of one, or either of two."""
        if isinstance(value, ast.IfExp):
            return [*self._numbers(value.body), *self._numbers(value.orelse)]
        if isinstance(value, ast.Name) and value.id in self._constants:
            return self._numbers(self._constants[value.id])
        if isinstance(value, ast.UnaryOp) and isinstance(value.op, ast.USub):
            return [-number for number in self._numbers(value.operand)]
        is_number = isinstance(value, ast.Constant) and type(value.value) is int and LEAST <= value.value <= MOST
        return [value.value] if is_number else []  # type: ignore[attr-defined]

    # --- sentences ---

    def _assigned(self, nodes: Iterable[ast.AST]) -> Iterator[tuple[int, str]]:
        for node in nodes:
            if isinstance(node, ast.Assign) and any(_last_name(one) in {"problem", "text"} for one in node.targets):
                yield node.lineno, rendered(node.value, self._constants)

    def _sentence(self, value: ast.expr, where: ast.expr) -> str:
        """The text of an argument; of a name, what was last called so above."""
        if isinstance(value, ast.Name) and value.id in self._constants:
            value = self._constants[value.id]
        if isinstance(value, ast.Name) and value.id in {"problem", "text"}:
            above = [text for line, text in self._problems if line < where.lineno and text]
            return above[-1] if above else ""
        return rendered(value, self._constants)


def rendered(value: ast.expr, constants: Mapping[str, ast.expr] = NOTHING) -> str:
    """A text with the names of what is filled in between braces; empty when it is none, or nothing but filled in."""
    if isinstance(value, ast.Constant):
        return _FORMATTED.sub(_slot, value.value) if isinstance(value.value, str) else ""
    if isinstance(value, ast.JoinedStr):
        parts = [part.value if isinstance(part, ast.Constant) else _filled(part, constants) for part in value.values]
        return "".join(map(str, parts)) if any(isinstance(part, ast.Constant) for part in value.values) else ""
    return ""


def sentence_of(error: ast.ClassDef, constants: Mapping[str, ast.expr] = NOTHING) -> str:
    """What `__str__` of a class makes, where it is one text."""
    for part in error.body:
        if isinstance(part, ast.FunctionDef) and part.name == "__str__" and isinstance(part.body[-1], ast.Return):
            value = part.body[-1].value
            return "" if value is None else rendered(value, constants)
    return ""


def _slot(found: re.Match[str]) -> str:
    """What `str.format` fills in, by its name."""
    return "{...}" if found["name"].isdigit() else f"{{{found['name']}}}"


def _filled(part: ast.expr, constants: Mapping[str, ast.expr]) -> str:
    """The value of a constant, of anything else its name."""
    value = part.value if isinstance(part, ast.FormattedValue) else part
    constant = constants.get(value.id) if isinstance(value, ast.Name) else None
    return str(constant.value) if isinstance(constant, ast.Constant) else f"{{{_last_name(value) or '...'}}}"


def _last_name(node: ast.expr) -> str:
    """The last word of a dotted name; empty for anything else."""
    return node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""
