"""
Every failure a caller or an operator can meet, on one page.

Sorted by whose turn it is: the peer broke the rules (end that link, carry on), the caller asked for the wrong
thing (say what and where, change nothing), the machine is short of something (degrade, retry, report). An error
stores fields and builds its sentence in `__str__`; `code` is the original's message number where one exists.
A dropped frame is not an error: see `broker.flow.Disposition`.
"""

from __future__ import annotations

from typing import ClassVar, NamedTuple, Self, dataclass_transform

MAY_NOT_CONNECT = "may not connect"  # of a peer; `broker why` searches refusals for it
NOT_TRUSTED = "does not trust this instance's certificate"  # likewise
NOT_A_FRAME = "not a frame"  # likewise
UNTRUSTED = "certificate is not trusted"  # likewise
NO_HELLO = "no HELLO within"  # likewise
NOTHING_STORED = "nothing more is stored or acknowledged"  # a remedy follows, after a colon
NO_TLS = "does not speak TLS"  # likewise
TLS_REFUSED = "TLS refused: "  # likewise
TLS_ONLY = "this endpoint takes TLS only: set encryption"  # likewise
SHOWN_MAX = 2000  # characters of a line before and after a mistake: a script may be one line of 100 MB


@dataclass_transform(eq_default=False)
class BrokerError(Exception):
    """
    Base of all errors that this package raises on purpose.

    A subclass annotates its fields, which are its arguments, by position or by name, after those that it inherits. Two
    errors are equal if their fields are.
    """

    # A dataclass by hand: generating one for each error takes longer than the other imports of a command.
    code: ClassVar[int] = 0
    says: ClassVar[str] = ""  # the sentence, with the names of fields in braces
    _fields: ClassVar[tuple[str, ...]] = ()

    def __init_subclass__(cls) -> None:
        own = (name for name, form in cls.__annotations__.items() if not str(form).startswith("ClassVar"))
        cls._fields = (*cls._fields, *own)

    def __init__(self, *values: object, **named: object) -> None:
        given = dict(zip(self._fields, values, strict=False))
        twice, unknown = given.keys() & named, named.keys() - {*self._fields}
        missing = [name for name in self._fields if name not in given and name not in named and not hasattr(self, name)]
        if twice or unknown or missing or len(values) > len(given or values):
            raise TypeError(f"{type(self).__name__} takes {', '.join(self._fields)}; not {values} and {named}")
        vars(self).update({name: getattr(type(self), name, None) for name in self._fields}, **given, **named)

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and self._compared() == other._compared()

    def __hash__(self) -> int:
        return hash(type(self))  # its fields may change

    def __str__(self) -> str:
        return self.says.format_map(vars(self)) if self.says else super().__str__()

    def __repr__(self) -> str:
        told = ", ".join(f"{name}={value!r}" for name, value in self._told().items())
        return f"{type(self).__name__}({told})" if told else super().__repr__()

    def but(self, **changes: object) -> Self:
        """The same error, with other values in some fields."""
        return type(self)(**self._told() | changes)

    def _told(self) -> dict[str, object]:
        """The fields; one that makes itself may not have all of them."""
        return {name: vars(self)[name] for name in self._fields if name in vars(self)}

    def _compared(self) -> object:
        return self._told() or self.args


# --- the other side broke the rules -------------------------------------------------------------------------


class PeerError(BrokerError):
    """The adjacent instance broke the wire protocol; its link ends with FATAL `code`."""


class FrameMalformedError(PeerError):
    """A malformed frame: too short for the kind, an unknown link kind, inner lengths that do not add up."""

    problem: str
    code: ClassVar[int] = 28041
    says: ClassVar[str] = "malformed frame: {problem}"


class FrameTooLargeError(PeerError):
    """A length above what the receiver announced in its HELLO."""

    length: int
    max_frame: int
    hint: str = ""
    code: ClassVar[int] = 28042

    def __str__(self) -> str:
        if self.hint:
            return f"{NOT_A_FRAME}: it {self.hint}"
        return f"frame of {self.length} bytes is above max_frame {self.max_frame}"


class HandshakeRefusedError(PeerError):
    """A HELLO that cannot be agreed with, or none in time."""

    problem: str
    code: ClassVar[int] = 28034
    says: ClassVar[str] = "handshake refused: {problem}"


class TlsRefusedError(PeerError):
    """A connection on which no TLS came about, or none that this endpoint accepts; the sentence says what to do."""

    problem: str
    code: ClassVar[int] = 28035
    says: ClassVar[str] = f"{TLS_REFUSED}{{problem}}"


class ConnectDeniedError(PeerError):
    """A peer that has proved who it is and may not connect; `why` names the statement that is missing or forbids it."""

    principal: str
    why: str
    code: ClassVar[int] = 28048
    says: ClassVar[str] = f"{{principal}} {MAY_NOT_CONNECT}: {{why}}"


class OutOfSequenceError(PeerError):
    """A frame that this state of the connection does not allow."""

    frame: str
    state: str
    code: ClassVar[int] = 28043
    says: ClassVar[str] = "{frame} is not allowed while the connection is {state}"


class PeerSilentError(PeerError):
    """The peer sent nothing for three of the heartbeats that it announced."""

    silence_s: float
    code: ClassVar[int] = 9760
    says: ClassVar[str] = "nothing received from the peer for {silence_s:.1f} s"


# --- the caller asked for the wrong thing -------------------------------------------------------------------


class RequestError(BrokerError):
    """The request was refused and nothing was changed."""


class Span(NamedTuple):
    """A place in a text: file (or `-`), line and column counted from 1, and how many characters it covers."""

    source: str
    line: int
    column: int
    length: int = 1


def caret(text_line: str, span: Span) -> str:
    """The line, and under it a mark below every character of the place; of a long line the part around it."""
    first = max(0, span.column - 1 - SHOWN_MAX)
    shown = text_line[first : span.column - 1 + SHOWN_MAX]
    before = shown[: span.column - 1 - first]
    lead = "".join("\t" if c == "\t" else " " for c in before)
    width = max(1, min(span.length, len(shown) - len(before)))
    return f"{shown}\n{lead}{'^' * width}"


class StatementError(RequestError):
    """
    A refused statement.

    Attributes:
        number: The original's message number.
        problem: The sentence.
        span: Position in the script; None if the statement did not come from a text.
        text_line: The line of the script; None likewise.
        severity: The original's severity.
    """

    number: int
    problem: str
    span: Span | None = None
    text_line: str | None = None
    severity: ClassVar[int] = 16

    def __str__(self) -> str:
        head = f"Msg {self.number}, Level {self.severity}"
        if self.span is not None:
            head += f", {self.span.source}:{self.span.line}:{self.span.column}"
        body = f"{head}\n{self.problem}"
        if self.span is not None and self.text_line is not None:
            body += f"\n{caret(self.text_line, self.span)}"
        return body


class DdlSyntaxError(StatementError):
    """
    The text is not a statement of the documented grammar (number 102).

    Attributes:
        created: The name of the object that a CREATE would have made.
    """

    created: str | None = None


class UnknownNameError(StatementError):
    """A statement names an object that does not exist."""


class DuplicateNameError(StatementError):
    """A statement creates an object whose name is taken."""


class ConversationError(RequestError):
    """
    A refused call of an application.

    Attributes:
        number: The original's message number.
        problem: The sentence.
    """

    number: int
    problem: str
    says: ClassVar[str] = "Msg {number}: {problem}"


class SettingError(RequestError):
    """
    One error of the configuration.

    Attributes:
        key: The setting, like `endpoint.listen`.
        problem: The sentence.
        span: Position in the file; None without one.
        hint: The remedy.
        excerpt: The line of the file with a caret below; empty if no file was read. It is not compared.
    """

    key: str
    problem: str
    span: Span | None = None
    hint: str = ""
    excerpt: str = ""

    def __str__(self) -> str:
        where = f"{self.span.source}:{self.span.line}:{self.span.column}: " if self.span else ""
        hint = f"; {self.hint}" if self.hint else ""
        return f"{where}{self.key}: {self.problem}{hint}"

    def _compared(self) -> object:
        return self.key, self.problem, self.span, self.hint

    @property
    def shown(self) -> str:
        """The sentence, and below it the line with a caret under the place; for people."""
        return f"{self}\n{self.excerpt}" if self.excerpt else str(self)


SCRIPTS_UNSEEN = SettingError("scripts", "were not checked", None, "correct the settings first")


class SettingsError(RequestError):
    """
    All errors of the configuration, in one report.

    Attributes:
        errors: A `SettingError` for each.
    """

    def __init__(self, errors: list[SettingError]) -> None:
        super().__init__(errors)
        self.errors = errors

    def __str__(self) -> str:
        return "\n".join(error.shown for error in self.errors)


class NoJournalError(RequestError):
    """There is nothing to read: no such directory, or no file in it that can be read."""

    where: str
    problem: str
    says: ClassVar[str] = "no journal in {where}: {problem}"


class PartnerFileError(RequestError):
    """A partner file that is refused: damaged, or its partner would take what belongs to another partner."""

    problem: str
    hint: str

    def __str__(self) -> str:
        return f"{self.problem}; {self.hint}" if self.hint else self.problem


class PipelineError(RequestError):
    """A run of the pipeline that was asked for wrongly; `hint` says what to do instead."""

    problem: str
    hint: str
    says: ClassVar[str] = "{problem}; {hint}"


class BadRequestError(RequestError):
    """The request itself is not understood: its body, or one of its parameters."""

    problem: str

    def __str__(self) -> str:
        return self.problem


# --- the machine is short of something ----------------------------------------------------------------------


class ResourceError(BrokerError):
    """Something outside the program failed; the caller may try again."""


class StoreUnavailableError(ResourceError):
    """
    A database file cannot be opened, read or written.

    Attributes:
        path: The file.
        problem: The sentence.
    """

    path: str
    problem: str
    says: ClassVar[str] = "store {path}: {problem}"


class StoreBusyError(StoreUnavailableError):
    """
    A database stayed locked for as long as a call waits. Nothing was changed, so the call may be repeated.

    Attributes:
        waited_s: Seconds that the call waited.
        holder: Process that has the write lock; None if unknown.
    """

    waited_s: float
    holder: int | None = None


class DemotedError(StoreUnavailableError):
    """Another daemon is the principal of this database by now; nothing was stored."""


class ListenFailedError(ResourceError):
    """
    The instance cannot listen on an address.

    Attributes:
        address: The address.
        problem: The sentence.
    """

    address: str
    problem: str
    says: ClassVar[str] = "cannot listen on {address}: {problem}"


class CertificateUnusableError(ResourceError):
    """A certificate or key file that cannot be used; `setting` is the key of `[endpoint]` that names it."""

    setting: str
    path: str
    problem: str
    hint: str
    says: ClassVar[str] = "{path}: {problem}; {hint}"


class CertificateTooEarlyError(CertificateUnusableError):
    """A certificate that is not valid yet, or a clock that is slow: either passes without another file."""


class DaemonUnreachableError(ResourceError):
    """No daemon answers on the admin socket."""

    socket: str
    problem: str
    says: ClassVar[str] = "no daemon answers on {socket}: {problem}"


class PipelineUnavailableError(ResourceError):
    """The pipeline cannot run here: what it needs is missing, or its engine does not start; `hint` says what to do."""

    problem: str
    hint: str
    says: ClassVar[str] = "the pipeline cannot run: {problem}; {hint}"
