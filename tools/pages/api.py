"""The public Python API as Markdown, from its signatures and docstrings."""

import inspect
import re
from collections.abc import Callable, Iterable, Iterator
from textwrap import dedent
from typing import Any

import broker
import broker.aio
from tools.pages.markers import table

# Headings, each with the names under it.
SECTIONS = {
    "Dialogs": "begin_dialog get_dialog Dialog send move_conversation",
    "Receiving": "receive get_conversation_group Message",
    "Readers": "reader Reader Readers run_readers",
    "Running an instance": "serve",
    "asyncio": "aio.connect aio.Connection aio.begin_dialog aio.get_dialog aio.Dialog aio.send aio.move_conversation"
    " aio.receive aio.get_conversation_group aio.Message",
    "Exceptions": "BrokerError ConversationError StoreUnavailableError StoreBusyError errors.StatementError"
    " errors.SettingsError errors.SettingError errors.ListenFailedError",
}
_INTERNAL = frozenset({"run_steps", "but", "shown"})  # public names of the classes that are not for applications
_PART = re.compile(r"^(Args|Attributes|Returns|Raises):\n", re.MULTILINE)
_NUMBERED = re.compile(r"(?:^|; )(\d{3,5}) ((?:(?!; \d{3,5} ).)*)")
_WIDTH = 100


def names() -> str:
    """Return a heading for each section and name, with its signature and what its docstring says."""
    parts = []
    for title, names in SECTIONS.items():
        parts.append(f"## {title}")
        for name in names.split():
            parts += _entry(f"broker.{name}", _named(name))
    return "\n\n".join(parts)


def _named(name: str) -> Any:
    value: Any = broker
    for word in name.split("."):
        value = getattr(value, word)
    return value


def _entry(name: str, value: Any) -> Iterator[str]:
    yield f"### {name}"
    if not inspect.isclass(value):
        yield from _call(name, value)
        return
    text, parts = _docstring(value)
    if issubclass(value, BaseException):
        yield f"A kind of `{value.__mro__[1].__name__}`."
    yield text
    members = [(word, one) for word, one in _members(value) if word not in _INTERNAL]
    kinds = {word: form for kind in value.__mro__ for word, form in inspect.get_annotations(kind).items()}
    rows = [(word, kinds.get(word, ""), about) for word, about in _entries(parts.get("Attributes", ""))]
    for word, one in members:
        if isinstance(one, property):
            rows.append((word, one.fget.__annotations__["return"], " ".join(_docstring(one)[0].split())))
    yield from _table(("Attribute", "Type", ""), ((f"`{word}`", _type(form), about) for word, form, about in rows))
    for word, one in members:
        if not isinstance(one, property):
            yield f"#### {name.removeprefix('broker.')}.{word}"
            yield from _call(word, one)


def _members(kind: type) -> Iterator[tuple[str, Any]]:
    """The public methods and properties of a class, those of its bases first."""
    found: dict[str, Any] = {}
    for base in reversed(kind.__mro__):
        if base.__module__.startswith("broker."):
            found |= vars(base)
    public = ((name, one) for name, one in found.items() if not name.startswith("_"))
    return ((name, one) for name, one in public if inspect.isfunction(one) or isinstance(one, property))


def _call(name: str, call: Callable[..., Any]) -> Iterator[str]:
    text, parts = _docstring(call)
    yield f"```text\n{_signature(name, call)}\n```"
    yield text
    yield from _table(("Argument", ""), ((f"`{word}`", about) for word, about in _entries(parts.get("Args", ""))))
    if returns := parts.get("Returns"):
        yield f"Returns: {' '.join(returns.split())}"
    yield from _table(("Raises", "When"), _raises(parts.get("Raises", "")))


def _signature(name: str, call: Callable[..., Any]) -> str:
    signature = inspect.signature(call)
    words, is_positional = [], True
    for one in signature.parameters.values():
        if one.name == "self":
            continue
        if one.kind is one.KEYWORD_ONLY and is_positional:
            words.append("*")
            is_positional = False
        default = "" if one.default is one.empty else f" = {one.default!r}".replace("datetime.", "").replace("'", '"')
        stars = "*" * (one.kind is one.VAR_POSITIONAL) or "**" * (one.kind is one.VAR_KEYWORD)
        words.append(f"{stars}{one.name}: {one.annotation}{default}")
        is_positional = is_positional and one.kind is not one.VAR_POSITIONAL
    kind = "async with " if hasattr(call, "__wrapped__") else "await " if inspect.iscoroutinefunction(call) else ""
    answer = str(signature.return_annotation)
    head, tail = f"{kind}{name}(", ")" if answer == "None" or kind == "async with " else f") -> {answer}"
    line = f"{head}{', '.join(words)}{tail}"
    return line if len(line) <= _WIDTH else "\n".join([head, *(f"    {word}," for word in words), tail])


def _docstring(value: object) -> tuple[str, dict[str, str]]:
    """The text of a docstring, and its parts by their titles."""
    text, *parts = _PART.split(inspect.getdoc(value) or "")
    return text.strip(), dict(zip(parts[::2], map(dedent, parts[1::2]), strict=True))


def _entries(part: str) -> Iterator[tuple[str, str]]:
    """Names with their texts: each begins a line, and continues on those that are indented."""
    for entry in re.split(r"\n(?! )", part.strip("\n")) if part.strip() else ():
        name, _, about = " ".join(entry.split()).partition(": ")
        yield name, about


def _raises(part: str) -> Iterator[tuple[str, str]]:
    """A row for each exception, and of one with numbers for each number, which is a link to its page."""
    for name, about in _entries(part):
        for number, text in _NUMBERED.findall(about) or [("", about)]:
            link = f" [{number}](errors/{number}.md)" if number else ""
            yield f"`{name}`{link}", text.rstrip(".")


def _type(form: object) -> str:
    return f"<code>{form}</code>" if form else ""


def _table(columns: tuple[str, ...], rows: Iterable[Iterable[str]]) -> Iterator[str]:
    if lines := list(rows):
        yield table(columns, lines)
