"""
A page for every number and every reason, made of the code and of its catalogue of numbers.

The texts are those of `broker/observe/messages`, and an instance gives the answers to the examples.
"""

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


def pages(example: Example) -> dict[str, str]:
    """
    Return every page but the index, by name.

    Raises:
        ValueError: An example is not answered with the number that it is an example of.
    """
    return {f"{key}.md": "\n\n".join(_page(entry, example)) + "\n" for key, entry in catalogue().items()}


def _page(entry: MessageEntry, example: Example) -> Iterator[str]:
    answers = {place: _answer(entry, place, text.strip("\n"), example) for place, text in entry.example.items()}
    yield f"# {', '.join(filter(None, [str(entry.number or ''), entry.reason]))}: {entry.title}"
    yield table(("Where", "When"), ((PLACES[place], _beyond(_capital(text))) for place, text in entry.when.items()))
    yield f"What to do: {_beyond(_capital(entry.remedy))}"
    if facts := list(_facts(entry, answers)):
        yield table(("", ""), facts)
    if answers:
        yield "## Example\n\nAt the instance of the [index](index.md#examples):"
    for place, error in answers.items():
        yield f"```{_LANGUAGES[place]}\n{entry.example[place].strip()}\n```\n\n```text\n{shown(error)}\n```"
    if remedies := [f"<p>For {cause}:\n{_proposed(remedy)}</p>" for cause, remedy in _why(entry)]:
        summary = "<summary>What <code>broker why</code> proposes</summary>"
        yield "\n".join(["<details>", summary, *remedies, "</details>"])
    if entry.original:
        yield f"## In the original\n\n{entry.original}"
    yield "[All numbers and reasons](index.md)"


def _proposed(remedy: str) -> str:
    """A remedy as HTML, with each statement to run on its own line."""
    text = re.sub(r"(broker sql[^:]*:) USE", r"\1\nUSE", html.escape(remedy, quote=False))
    return text if text.endswith(";") else f"{text}."


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


def _facts(entry: MessageEntry, answers: Mapping[MessageChannel, BrokerError]) -> Iterator[tuple[str, str]]:
    """Yield what programs see of it."""
    if _ANSWERED & entry.when.keys():
        yield "Severity", str(StatementError.severity)
        if statuses := {kind_of(error).status for place, error in answers.items() if place in _ANSWERED}:
            yield "HTTP status", ", ".join(f"{one.value} {one.phrase}" for one in sorted(statuses))
    if (_ANSWERED | {MessageChannel.APPLICATION}) & entry.when.keys():
        yield "Exit code of a command", str(exit_code(ConversationError(entry.number, "")))
    if MessageChannel.START in entry.when:
        yield "Exit code of `broker serve`", str(ExitCode.CONFIGURATION)
    if MessageChannel.CONNECTION in entry.when:
        yield "The peer gets", _FATAL
    if MessageChannel.DIALOG in entry.when:
        yield "The dialog", f"fails: the application reads an Error message with the code -{entry.number}"
    if entry.notified:
        yield "Notification", entry.notified
    if entry.reason and entry.reason not in {Disposition.FORWARDED, Disposition.DELIVERED}:
        yield "Metric", f'`broker_messages_dropped_total{{reason="{entry.reason}"}}`'


def _answer(entry: MessageEntry, place: MessageChannel, text: str, example: Example) -> BrokerError:
    error = example.told(place, text)
    if getattr(error, "number", None) != entry.number:
        raise ValueError(f"the {place} example of {entry.number} is answered: {error}")
    return error


def numbers() -> str:
    """Return the table of numbers that are not the number of a reason."""
    entries = [(key, one) for key, one in catalogue().items() if not one.reason]
    rows = ((f"[{key}]({key}.md)", ", ".join(PLACES[place] for place in one.when), one.title) for key, one in entries)
    return table(("Number", "Where", "What"), rows)


def reasons() -> str:
    """Return the table of reasons, those that are dispositions first."""
    entries = {one.reason: (key, one) for key, one in catalogue().items() if one.reason}
    order = [*map(str, Disposition), *sorted(entries.keys() - set(map(str, Disposition)))]
    found = ((reason, *entries[reason]) for reason in order)
    rows = ((f"[{reason}]({key}.md)", str(one.number or ""), one.title) for reason, key, one in found)
    return table(("Reason", "Number", "What"), rows)


def setup() -> str:
    """Return the statements that make the instance of the examples."""
    return f"```sql\n{SETUP}```"


def unnumbered() -> str:
    """Return the table of the errors of `broker.errors` that have no number, in the order of that module."""
    kinds = [one for one in vars(errors).values() if isinstance(one, type) and issubclass(one, BrokerError)]
    groups = {PeerError, RequestError, ResourceError, BrokerError}
    rows = []
    for kind in kinds:
        if kind not in groups and not kind.code and not any("number" in get_annotations(one) for one in kind.__mro__):
            first = (getdoc(kind) or "").partition("\n\n")[0].replace("\n", " ")
            rows.append((f"`{kind.__name__}`", first, str(exit_code(kind.__new__(kind)))))
    return table(("Error", "What", "Exit code"), rows)


def raised(channel: MessageChannel) -> str:
    """Return the table of the numbers that statements or a SELECT raise."""
    entries = ((one.number, one.when[channel]) for one in catalogue().values() if channel in one.when)
    return table(("Number", "Raised when"), ((f"[{number}](errors/{number}.md)", text) for number, text in entries))


def dispositions() -> str:
    """Return the table of dispositions, in the order of the code."""
    by_reason = {one.reason: one for one in catalogue().values()}
    entries = [by_reason[str(disposition)] for disposition in Disposition]
    rows = ((one.reason, str(one.number or ""), one.when[MessageChannel.FRAME], one.remedy) for one in entries)
    return table(("Disposition", "Number", "What happened", "What to do"), rows)


def _beyond(text: str) -> str:
    """Return a text of a page in `docs/` with its links for one directory further down."""
    return _LINK.sub("](../", text)


def _capital(text: str) -> str:
    return text if text.startswith("`") else text[0].upper() + text[1:]
