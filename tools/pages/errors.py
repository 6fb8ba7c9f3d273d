"""
A page for every number and every reason, made of the code and of its catalogue of numbers.

The texts are those of `broker/observe/messages`, and the answers to the examples are those that an
instance gives.
"""

from __future__ import annotations

import html
import re
from collections.abc import Iterator, Mapping
from inspect import get_annotations, getdoc

from broker import errors
from broker.admin.problems import kind_of
from broker.cli.exit_codes import ExitCode, exit_code
from broker.errors import BrokerError, ConversationError, PeerError, RequestError, ResourceError, StatementError
from broker.flow import Disposition
from broker.observe.message_catalogue import MessageChannel, MessageEntry, catalogue, remedy_of, remedy_of_error
from tools.pages.example import SETUP, Example, shown
from tools.pages.markers import table

PLACES = {
    MessageChannel.STATEMENT: "Statements",
    MessageChannel.SELECT: "SELECT",
    MessageChannel.APPLICATION: "Applications and commands",
    MessageChannel.DIALOG: "Error messages of dialogs",
    MessageChannel.FRAME: "Frames",
    MessageChannel.CONNECTION: "Connections",
    MessageChannel.REQUEST: "Requests for routes",
    MessageChannel.START: "Configuration and start",
}
_LANGUAGES = {MessageChannel.STATEMENT: "sql", MessageChannel.SELECT: "sql", MessageChannel.APPLICATION: "python"}
_FATAL = "FATAL with this code. The connection ends, frames before it count, and it is dialled again after a pause."
_ANSWERED = frozenset({MessageChannel.STATEMENT, MessageChannel.SELECT})  # over HTTP, with the status of a problem
_LINK = re.compile(r"\]\((?=[\w/-]+\.md)")  # to a page beside the page from which a text is taken


def slug(key: str) -> str:
    """The name of the page of an entry."""
    return f"{key}.md"


def pages(example: Example) -> dict[str, str]:
    """
    Every page but the index, by name.

    Raises:
        ValueError: an example is not answered with the number that it is an example of.
    """
    return {slug(key): "\n".join(_page(entry, example)) + "\n" for key, entry in catalogue().items()}


def _page(entry: MessageEntry, example: Example) -> Iterator[str]:
    answers = {place: _answer(entry, place, text.strip("\n"), example) for place, text in entry.example.items()}
    yield f"# {_heading(entry)}"
    yield ""
    yield "| Where | When |"
    yield "|---|---|"
    for place, text in entry.when.items():
        yield f"| {PLACES[place]} | {_cell(_beyond(_capital(text)))} |"
    yield ""
    yield f"What to do: {_beyond(_capital(entry.remedy))}"
    yield from _facts(entry, answers)
    yield from _examples(entry, answers)
    yield from _templates(entry)
    if entry.original:
        yield ""
        yield "## In the original"
        yield ""
        yield entry.original
    yield ""
    yield "[All numbers and reasons](index.md)"


def _heading(entry: MessageEntry) -> str:
    return f"{', '.join(filter(None, [str(entry.number or ''), entry.reason]))}: {entry.title}"


def _templates(entry: MessageEntry) -> Iterator[str]:
    """Yield the remedies of `broker why` below a fold, with names for the parts that it fills in."""
    remedies = list(_why(entry))
    if remedies:
        yield ""
        yield "<details>"
        yield "<summary>What <code>broker why</code> proposes</summary>"
        yield from (f"<p>For {cause}: {html.escape(remedy, quote=False)}.</p>" for cause, remedy in remedies)
        yield "</details>"


def _why(entry: MessageEntry) -> Iterator[tuple[str, str]]:
    """Yield the remedies of `broker why`, each with its cause, if it knows this one."""
    if entry.reason:
        remedy = remedy_of(entry.reason, instance="INSTANCE", service="SERVICE", table="DATABASE")
        if remedy != remedy_of("", instance="INSTANCE", service="SERVICE"):
            yield "frames with this reason", remedy
    if MessageChannel.DIALOG in entry.when:
        remedy = remedy_of_error(-entry.number, service="SERVICE")
        is_known = remedy.casefold().startswith(entry.remedy.casefold().rstrip("."))
        if remedy != remedy_of_error(None, service="SERVICE") and not is_known:
            yield "a dialog with this error", remedy


def _facts(entry: MessageEntry, answers: Mapping[MessageChannel, BrokerError]) -> Iterator[str]:
    """Yield the table of what programs see of it."""
    facts: list[tuple[str, str]] = []
    if _ANSWERED & entry.when.keys():
        facts.append(("Severity", str(StatementError.severity)))
        statuses = {kind_of(error).status for place, error in answers.items() if place in _ANSWERED}
        if statuses:
            facts.append(("HTTP status", ", ".join(f"{one.value} {one.phrase}" for one in sorted(statuses))))
    if (_ANSWERED | {MessageChannel.APPLICATION}) & entry.when.keys():
        facts.append(("Exit code of a command", str(exit_code(ConversationError(entry.number, "")))))
    if MessageChannel.START in entry.when:
        facts.append(("Exit code of `broker serve`", str(ExitCode.CONFIGURATION)))
    if MessageChannel.CONNECTION in entry.when:
        facts.append(("The peer gets", _FATAL))
    if MessageChannel.DIALOG in entry.when:
        facts.append(("The dialog", f"fails: the application reads an Error message with the code -{entry.number}"))
    if entry.notified:
        facts.append(("Notification", entry.notified))
    if entry.reason and entry.reason not in {Disposition.FORWARDED, Disposition.DELIVERED}:
        facts.append(("Metric", f'`broker_messages_dropped_total{{reason="{entry.reason}"}}`'))
    if facts:
        yield ""
        yield "| | |"
        yield "|---|---|"
        for name, value in facts:
            yield f"| {name} | {_cell(value)} |"


def _answer(entry: MessageEntry, place: MessageChannel, text: str, example: Example) -> BrokerError:
    error = example.told(place, text)
    if getattr(error, "number", None) != entry.number:
        raise ValueError(f"the {place} example of {entry.number} is answered: {error}")
    return error


def _examples(entry: MessageEntry, answers: Mapping[MessageChannel, BrokerError]) -> Iterator[str]:
    if answers:
        yield ""
        yield "## Example"
        yield ""
        yield "At the instance of the [index](index.md#examples):"
    for place, error in answers.items():
        yield ""
        yield f"```{_LANGUAGES[place]}"
        yield entry.example[place].strip("\n")
        yield "```"
        yield ""
        yield "```text"
        yield shown(error)
        yield "```"


# --- tables ----------------------------------------------------------------------------------------------------


def numbers() -> str:
    """Return the table of numbers that are not the number of a reason."""
    return table(
        ("Number", "Where", "What"),
        (
            (f"[{key}]({slug(key)})", ", ".join(PLACES[place] for place in entry.when), entry.title)
            for key, entry in catalogue().items()
            if not entry.reason
        ),
    )


def reasons() -> str:
    """Return the table of reasons, those that are dispositions first."""
    entries = {entry.reason: (key, entry) for key, entry in catalogue().items() if entry.reason}
    order = [*map(str, Disposition), *sorted(entries.keys() - set(map(str, Disposition)))]
    return table(
        ("Reason", "Number", "What"),
        (
            (f"[{reason}]({slug(key)})", str(entry.number or ""), entry.title)
            for reason, (key, entry) in ((one, entries[one]) for one in order)
        ),
    )


def setup() -> str:
    """Return the statements that make the instance of the examples."""
    return f"```sql\n{SETUP}```"


def unnumbered() -> str:
    """Return the table of the errors of `broker.errors` that have no number, in the order of that module."""
    return table(("Error", "What", "Exit code"), _unnumbered())


def _unnumbered() -> Iterator[tuple[str, str, str]]:
    groups = {PeerError, RequestError, ResourceError, BrokerError}
    for name, kind in vars(errors).items():
        if not isinstance(kind, type) or not issubclass(kind, BrokerError) or kind in groups:
            continue
        if kind.code or any("number" in get_annotations(one) for one in kind.__mro__):
            continue
        first = (getdoc(kind) or "").partition("\n\n")[0].replace("\n", " ")
        yield f"`{name}`", first, str(exit_code(kind.__new__(kind)))


def statements() -> str:
    """Return the table of the numbers that statements raise."""
    return _raised(MessageChannel.STATEMENT)


def selects() -> str:
    """Return the table of the numbers that a SELECT raises."""
    return _raised(MessageChannel.SELECT)


def _raised(channel: MessageChannel) -> str:
    entries = (entry for entry in catalogue().values() if channel in entry.when)
    return table(
        ("Number", "Raised when"), ((f"[{one.number}](errors/{one.number}.md)", one.when[channel]) for one in entries)
    )


def dispositions() -> str:
    """Return the table of dispositions, in the order of the code."""
    by_reason = {entry.reason: entry for entry in catalogue().values()}
    return table(
        ("Disposition", "Number", "What happened", "What to do"),
        (
            (one.reason, str(one.number or ""), one.when[MessageChannel.FRAME], one.remedy)
            for one in (by_reason[str(disposition)] for disposition in Disposition)
        ),
    )


# --- texts -----------------------------------------------------------------------------------------------------


def _cell(text: str) -> str:
    return text.replace("|", "&#124;")


def _beyond(text: str) -> str:
    """A text of a page in `docs/` with its links as they are one directory further down."""
    return _LINK.sub("](../", text)


def _capital(text: str) -> str:
    return text if text.startswith("`") else text[0].upper() + text[1:]
