"""
Text to statements, and what is wrong with text that is none.

The script is cut into statements first (`lexer`), each is parsed by itself (`automaton`, by `grammar.lark`), so memory
is bounded by the longest statement, time is linear, and a mistake in one statement does not hide those in the next. A
`DdlSyntaxError` shows the line, the column, a caret, what would have been right there, and the nearest word when
something looks misspelt.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from itertools import product
from operator import itemgetter
from pkgutil import get_data
from typing import TYPE_CHECKING, Any, NamedTuple, cast
from uuid import UUID

from msgspec import Struct, field
from msgspec.structs import replace

from broker.ddl.lexer import Place, Token, UnclosedError, is_text, next_draft, place_of
from broker.ddl.plain import PlainPlaces, read_plain
from broker.ddl.statements import (
    ANY,
    NAME,
    AlterDatabase,
    AlterMessageType,
    AlterPriority,
    AlterQueue,
    AlterRemoteServiceBinding,
    AlterRoute,
    AlterService,
    BeginConversationTimer,
    ChangePermission,
    ContractType,
    CreateContract,
    CreateMessageType,
    CreatePriority,
    CreateQueue,
    CreateRemoteServiceBinding,
    CreateRoute,
    CreateService,
    DatabaseOption,
    DenyPermission,
    DropContract,
    DropMessageType,
    DropPriority,
    DropQueue,
    DropRemoteServiceBinding,
    DropRoute,
    DropService,
    EndConversation,
    GrantPermission,
    MoveConversation,
    PriorityProperties,
    QueueName,
    RevokePermission,
    Statement,
    StatementOrigin,
    UseDatabase,
)
from broker.errors import DdlSyntaxError
from broker.protocol.layout import NAME_MAX_BYTES
from broker.routing.route import RouteProperties
from broker.security.grants import Permission
from broker.security.principal import PRINCIPAL_MAX, PrincipalError, parse_principal

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator


# --- automaton ---
# The automaton that reads statements: LALR(1), its tables made of `grammar.lark` and kept in `parse_table.json`.
#
# `python -m tools.parse_table` makes the tables, with lark, which is asked for nothing while the program runs: to
# read
# the grammar takes longer than most commands run. A test fails when the file is not what the grammar says.
#
# Theory: a stack of states; a token either moves on to a state (shift), or tells that the values of the last symbols
# are
# the parts of a rule (reduce), whose method makes one value of them. Source: Aho, Sethi, Ullman, "Compilers", 4.7.


TABLE = "parse_table.json"
END = "$END"  # the terminal behind the last token

_Make = Callable[[Sequence[Any]], Any]


class UnexpectedTokenError(Exception):
    """A token that cannot stand where it stands. Shape: `accepts` the terminals that could."""

    def __init__(self, token: Token, accepts: frozenset[str]) -> None:
        super().__init__(token, accepts)
        self.token = token
        self.accepts = accepts


class _Rule(NamedTuple):
    """
    What becomes of the parts of a rule.

    Shape: `origin` the symbol it makes, of `size` parts; `make` gets those of `kept`: an index, `(index,)` for a part
    that is a list whose elements are meant, None for an optional part that is missing.
    """

    origin: str
    size: int
    make: _Make
    kept: Sequence[int | list[int] | None]

    def value(self, parts: Sequence[Any]) -> Any:
        """The value of the whole."""
        values: list[Any] = []
        for one in self.kept:
            if isinstance(one, int):
                values.append(parts[one])
            elif one is None:
                values.append(None)
            else:
                values.extend(parts[one[0]])
        return self.make(values)


class Automaton:
    """
    Reads tokens.

    Args:
        methods: Has a method for each rule of the grammar whose name does not begin with an underscore.

    Shape: `words` the text of each keyword and mark by its terminal; `openers` the terminals that open a statement.
    """

    def __init__(self, methods: object) -> None:
        table = json.loads(get_data("broker.ddl", TABLE) or b"")
        self.words: Mapping[str, str] = table["words"]
        self._start: int = table["start"]
        self._final: int = table["final"]
        self._rules = [
            _Rule(origin, size, _make(methods, method, is_single=is_single), kept)
            for origin, size, method, is_single, kept in table["rules"]
        ]
        # What a symbol does in a state: a number of 0 or more is the next state, one below it is ~ the rule.
        self._states: Sequence[Mapping[str, int]] = table["states"]
        self.openers = self._accepted([self._start], self._states[self._start])

    def parse(self, tokens: Iterable[Token]) -> Any:
        """
        The value of a statement.

        Raises:
            UnexpectedTokenError: a token cannot stand where it stands; of the kind `$END` when the end comes too early.
            RefusedError: as the methods.
        """
        states, values, last = [self._start], list[Any](), None
        for token in tokens:
            self._take(states, values, token)
            last = token
        end = last.end if last else 0
        self._take(states, values, Token(END, "", end, end))
        return values[-1]

    def _take(self, states: list[int], values: list[Any], token: Token) -> None:
        """Reduce as long as this token says so, then shift it; the end is never shifted."""
        kind = token.type
        while True:
            row = self._states[states[-1]]
            step = row.get(kind)
            if step is None:
                raise UnexpectedTokenError(token, self._accepted(states, row))
            if step >= 0:
                states.append(step)
                values.append(token)
                return
            rule = self._rules[~step]
            at = len(values) - rule.size
            value = rule.value(values[at:])
            del values[at:], states[at + 1 :]
            states.append(self._states[states[-1]][rule.origin])
            values.append(value)
            if kind == END and states[-1] == self._final:
                return

    def _accepted(self, states: Sequence[int], row: Mapping[str, int]) -> frozenset[str]:
        """The terminals that could stand here."""
        return frozenset(kind for kind in row if kind.isupper() and self._is_accepted(states, kind))

    def _is_accepted(self, states: Sequence[int], kind: str) -> bool:
        """Whether a token of this kind leads on; a reduction that its state allows may still end in a dead end."""
        states = list(states)
        while (step := self._states[states[-1]].get(kind)) is not None:
            if step >= 0:
                return True
            rule = self._rules[~step]
            del states[len(states) - rule.size :]
            states.append(self._states[states[-1]][rule.origin])
            if kind == END and states[-1] == self._final:
                return True
        return False


def _make(methods: object, name: str | None, *, is_single: bool) -> _Make:
    """What makes the value of a rule; where only one part is left of one that is `is_single`, it is that part."""
    method: _Make = list if name is None else getattr(methods, name)
    return itemgetter(0) if is_single else method


# --- built ---
# What the builder's methods give: a statement without its origin, or what is wrong with a token.


NAME_MAX_CHARACTERS = 128  # sysname of the original


class RefusedError(Exception):
    """A token that the grammar allows and a rule does not; the parser adds the place."""

    def __init__(self, number: int, problem: str, token: Token) -> None:
        super().__init__(number, problem, token)
        self.number = number
        self.problem = problem
        self.token = token


class Built(Struct, frozen=True):
    """A statement without its origin, and the places of its parts by name."""

    make: Callable[..., Statement]
    places: Mapping[str, Place] = field(default_factory=dict)


def checked_name(token: Token, most: int = NAME_MAX_CHARACTERS) -> Token:
    """
    A name of 1 to so many characters.

    Raises:
        RefusedError: 1038 an empty one, 103 a longer one, 102 one that is no text.
    """
    if not token:
        raise RefusedError(1038, "a name must not be empty", token)
    if len(token) > most:
        problem = f"this name has {len(token)} characters; at most {most} are allowed"
        raise RefusedError(103, problem, token)
    if not is_text(token):
        raise RefusedError(102, "this name cannot be written as UTF-8: it has half a character", token)
    return token


# --- security_rules ---
# The grammar's rules about permissions and remote service bindings; a part of the builder.
#
# Source: T-SQL documentation, "GRANT Service Broker Permissions", "GRANT Endpoint Permissions" and their kin, "CREATE
# REMOTE SERVICE BINDING", "ALTER REMOTE SERVICE BINDING", "DROP REMOTE SERVICE BINDING".


_MADE: dict[str, type[ChangePermission]] = {
    "GRANT": GrantPermission,
    "DENY": DenyPermission,
    "REVOKE": RevokePermission,
}


class SecurityRules:
    """The methods by rule; holds no state."""

    def securable(self, parts: Sequence[Token]) -> Token:
        """The name behind `::`, that of a service of any instance."""
        token = checked_name(parts[0], NAME_MAX_BYTES)
        if len(token.encode()) > NAME_MAX_BYTES:
            raise RefusedError(103, f"the name of a service has at most {NAME_MAX_BYTES} bytes", token)
        return token

    def principal(self, parts: Sequence[Token]) -> Token:
        """Who is meant."""
        token = checked_name(parts[0], PRINCIPAL_MAX)
        try:
            parse_principal(token)
        except PrincipalError as error:
            raise RefusedError(15151, str(error), token) from None
        return token

    def principals(self, parts: Sequence[Token]) -> Sequence[Token]:
        """One or several, none twice."""
        seen: set[str] = set()
        for token in parts:
            text = parse_principal(token).text
            if text in seen:
                raise RefusedError(102, f"the principal {str(token)!r} is given twice; remove one", token)
            seen.add(text)
        return parts

    def change_permission(self, parts: Sequence[Any]) -> Built:
        """GRANT, DENY or REVOKE SEND ON SERVICE::name, or CONNECT ON ENDPOINT::name."""
        verb, permission, securable, principals = parts
        names = tuple(str(one) for one in principals)
        make = partial(_MADE[verb.type], Permission(permission.type), str(securable), names)
        return Built(make, {NAME: place_of(securable), "PRINCIPAL": place_of(principals[0])})

    def binding_options(self, parts: Sequence[Any]) -> dict[str, Any]:
        """The principal, and whether it is anonymous."""
        values: dict[str, Any] = {}
        for key, value in parts:
            if key.type in values:
                raise RefusedError(102, f"{key.type} is given twice", key)
            values[key.type] = value
        return values

    def binding_option(self, parts: Sequence[Any]) -> Sequence[Any]:
        """An option and its value."""
        return parts

    def create_binding(self, parts: Sequence[Any]) -> Built:
        """CREATE REMOTE SERVICE BINDING name [AUTHORIZATION owner] TO SERVICE 'service' WITH USER = principal ..."""
        name, owner, service, values = parts
        if "USER" not in values:
            raise RefusedError(102, "CREATE REMOTE SERVICE BINDING needs USER", name)
        if not 1 <= len(service.encode("utf-8", "replace")) <= NAME_MAX_BYTES:
            raise RefusedError(103, f"the name of a service has 1 to {NAME_MAX_BYTES} bytes", service)
        user, is_anonymous = values["USER"], values.get("ANONYMOUS", False)
        make = partial(
            CreateRemoteServiceBinding, str(name), str(service), str(user), anonymous=is_anonymous, owner=owner
        )
        return Built(make, {NAME: place_of(name), "SERVICE": place_of(service), "USER": place_of(user)})

    def alter_binding(self, parts: Sequence[Any]) -> Built:
        """ALTER REMOTE SERVICE BINDING name WITH ..."""
        name, values = parts
        user = values.get("USER")
        make = partial(
            AlterRemoteServiceBinding,
            str(name),
            user=None if user is None else str(user),
            anonymous=values.get("ANONYMOUS"),
        )
        places = {NAME: place_of(name)} | ({} if user is None else {"USER": place_of(user)})
        return Built(make, places)

    def drop_binding(self, parts: Sequence[Token]) -> Built:
        """DROP REMOTE SERVICE BINDING name."""
        return Built(partial(DropRemoteServiceBinding, str(parts[0])), {NAME: place_of(parts[0])})


# --- builder ---
# From the grammar's rules to statements: one method a rule, called while the parser reduces.
#
# A method gets the values of its rule's parts in order (None for an optional part that is missing) and returns the
# value of the whole. A statement's method returns `Built`: the constructor still without its origin, and the places
# of
# the parts an error may be about. What the grammar cannot say (a property twice, a name too long) is refused here.


PRIORITY_LEVEL_DEFAULT = 5  # PRIORITY_LEVEL = DEFAULT, the original's

_GUID = r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}"


class _Queue(Struct, frozen=True):
    value: QueueName
    place: Place


def _once(pairs: Sequence[Sequence[Token]]) -> dict[str, Token]:
    """The values by the terminal of their key, none twice."""
    values: dict[str, Token] = {}
    for key, value in pairs:
        if key.type in values:
            raise RefusedError(102, f"{key.type} is given twice", key)
        values[key.type] = value
    return values


def _each_once(names: Sequence[Token], number: int, what: str) -> None:
    """Refuse a list with a name twice."""
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise RefusedError(number, f"the {what} {str(name)!r} is given twice; remove one", name)
        seen.add(name)


def _guid(token: Token, what: str) -> UUID:
    if re.fullmatch(_GUID, token, re.ASCII | re.IGNORECASE) is None:
        raise RefusedError(8169, f"{str(token)!r} is no {what}: write a GUID", token)
    return UUID(token)


def _plain(token: Token) -> str | int:
    return int(token) if token.type == "INTEGER" else str(token)


def _named(make: Callable[..., Statement], name: Token) -> Built:
    return Built(partial(make, str(name)), {NAME: place_of(name)})


class Builder(SecurityRules):
    """The methods by rule; holds no state, so one serves every parse."""

    # --- parts ---

    def word(self, parts: Sequence[Token]) -> Token:
        """A name, or a word that may serve as one."""
        return parts[0]

    def name(self, parts: Sequence[Token]) -> Token:
        """A name of 1 .. 128 characters."""
        return checked_name(parts[0])

    def authorization(self, parts: Sequence[Token]) -> str:
        """The owner."""
        return str(parts[0])

    def queue(self, parts: Sequence[Token | None]) -> _Queue:
        """`queue` or `schema.queue`."""
        first, second = parts
        assert first is not None  # the grammar
        if second is None:
            return _Queue(QueueName(str(first)), place_of(first))
        return _Queue(QueueName(str(second), str(first)), (place_of(first)[0], place_of(second)[1]))

    def status(self, parts: Sequence[Token]) -> bool:
        """ON or OFF."""
        return parts[0].type == "ON"

    # --- routes ---

    def use_database(self, parts: Sequence[Token]) -> Built:
        """USE name."""
        return _named(UseDatabase, parts[0])

    def route_property(self, parts: Sequence[Token]) -> Sequence[Token]:
        """A property and its value."""
        return parts

    def route_properties(self, parts: Sequence[Sequence[Token]]) -> dict[str, Token]:
        """The properties by name, none twice."""
        return _once(parts)

    def create_route(self, parts: Sequence[Any]) -> Built:
        """CREATE ROUTE name [AUTHORIZATION owner] WITH ..."""
        name, owner, values = parts
        if "ADDRESS" not in values:
            raise RefusedError(102, "CREATE ROUTE needs ADDRESS", name)
        return self._route(partial(CreateRoute, owner=owner), name, values)

    def alter_route(self, parts: Sequence[Any]) -> Built:
        """ALTER ROUTE name WITH ..."""
        name, values = parts
        return self._route(AlterRoute, name, values)

    def drop_route(self, parts: Sequence[Token]) -> Built:
        """DROP ROUTE name."""
        return _named(DropRoute, parts[0])

    def _route(self, make: Callable[..., Statement], name: Token, values: dict[str, Token]) -> Built:
        properties: dict[str, Any] = {key.lower(): _plain(value) for key, value in values.items()}
        places = {key: place_of(value) for key, value in values.items()}
        places[NAME] = place_of(name)
        return Built(partial(make, str(name), RouteProperties(**properties)), places)

    # --- queues ---

    def queue_option(self, parts: Sequence[Any]) -> Sequence[Any]:
        """An option and whether it is ON."""
        return parts

    def queue_options(self, parts: Sequence[Any]) -> dict[str, Any]:
        """The options by the names of the fields."""
        return {key.lower(): value for key, value in _once(parts).items()}

    def create_queue(self, parts: Sequence[Any]) -> Built:
        """CREATE QUEUE queue [WITH ...]."""
        queue, options = parts
        return Built(partial(CreateQueue, queue.value, **(options or {})), {NAME: queue.place})

    def alter_queue(self, parts: Sequence[Any]) -> Built:
        """ALTER QUEUE queue WITH ..."""
        queue, options = parts
        return Built(partial(AlterQueue, queue.value, **options), {NAME: queue.place})

    def drop_queue(self, parts: Sequence[_Queue]) -> Built:
        """DROP QUEUE queue."""
        return Built(partial(DropQueue, parts[0].value), {NAME: parts[0].place})

    # --- services ---

    def create_service(self, parts: Sequence[Any]) -> Built:
        """CREATE SERVICE name [AUTHORIZATION owner] ON QUEUE queue [(contracts)]."""
        name, owner, queue, contracts = parts
        make = partial(CreateService, str(name), queue.value, contracts or (), owner=owner)
        return Built(make, {NAME: place_of(name), "QUEUE": queue.place})

    def alter_service(self, parts: Sequence[Any]) -> Built:
        """ALTER SERVICE name ON QUEUE queue [(changes)]."""
        name, queue, changes = parts
        added, dropped = changes or ((), ())
        make = partial(AlterService, str(name), queue.value, added, dropped)
        return Built(make, {NAME: place_of(name), "QUEUE": queue.place})

    def alter_contracts(self, parts: Sequence[Any]) -> Built:
        """ALTER SERVICE name (changes)."""
        name, (added, dropped) = parts
        return Built(partial(AlterService, str(name), None, added, dropped), {NAME: place_of(name)})

    def drop_service(self, parts: Sequence[Token]) -> Built:
        """DROP SERVICE name."""
        return _named(DropService, parts[0])

    def on_queue(self, parts: Sequence[_Queue]) -> _Queue:
        """ON QUEUE queue."""
        return parts[0]

    def contracts(self, parts: Sequence[Token]) -> tuple[str, ...]:
        """The contracts of a new service, none twice."""
        _each_once(parts, 8404, "contract")
        return tuple(str(name) for name in parts)

    def contract_change(self, parts: Sequence[Token]) -> tuple[bool, str]:
        """ADD (True) or DROP a contract."""
        word, name = parts
        return (word.type == "ADD", str(name))

    def contract_changes(self, parts: Sequence[tuple[bool, str]]) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """What is added and what is dropped."""
        added = tuple(name for is_added, name in parts if is_added)
        return added, tuple(name for is_added, name in parts if not is_added)

    # --- message types, contracts, priorities ---

    def validation(self, parts: Sequence[Token]) -> str:
        """The word for it."""
        return parts[0].type

    def create_message_type(self, parts: Sequence[Any]) -> Built:
        """CREATE MESSAGE TYPE name [AUTHORIZATION owner] [VALIDATION = ...]."""
        name, owner, validation = parts
        make = partial(CreateMessageType, str(name), validation or "NONE", owner)
        return Built(make, {NAME: place_of(name)})

    def alter_message_type(self, parts: Sequence[Any]) -> Built:
        """ALTER MESSAGE TYPE name VALIDATION = ..."""
        name, validation = parts
        return Built(partial(AlterMessageType, str(name), validation), {NAME: place_of(name)})

    def drop_message_type(self, parts: Sequence[Token]) -> Built:
        """DROP MESSAGE TYPE name."""
        return _named(DropMessageType, parts[0])

    def contract_type(self, parts: Sequence[Token]) -> tuple[Token, str]:
        """A message type and who sends it."""
        name, sent_by = parts
        return name, sent_by.type

    def create_contract(self, parts: Sequence[Any]) -> Built:
        """CREATE CONTRACT name [AUTHORIZATION owner] (types)."""
        name, owner, *message_types = parts
        _each_once([message_type for message_type, _ in message_types], 8403, "message type")
        if all(sent_by == "TARGET" for _, sent_by in message_types):
            problem = f"the contract {str(name)!r} must have at least one message type SENT BY INITIATOR or ANY"
            raise RefusedError(8492, problem, name)
        listed = tuple(ContractType(str(message_type), sent_by) for message_type, sent_by in message_types)
        places = {f"TYPE {message_type}": place_of(message_type) for message_type, _ in message_types}
        return Built(partial(CreateContract, str(name), listed, owner), {**places, NAME: place_of(name)})

    def drop_contract(self, parts: Sequence[Token]) -> Built:
        """DROP CONTRACT name."""
        return _named(DropContract, parts[0])

    def priority_property(self, parts: Sequence[Token]) -> Sequence[Token]:
        """A property and its value."""
        return parts

    def priority_properties(self, parts: Sequence[Sequence[Token]]) -> dict[str, Token]:
        """The properties by name, none twice."""
        return _once(parts)

    def create_priority(self, parts: Sequence[Any]) -> Built:
        """CREATE BROKER PRIORITY name FOR CONVERSATION [SET (...)]."""
        name, values = parts
        return self._priority(CreatePriority, name, values or {})

    def alter_priority(self, parts: Sequence[Any]) -> Built:
        """ALTER BROKER PRIORITY name FOR CONVERSATION SET (...)."""
        name, values = parts
        return self._priority(AlterPriority, name, values)

    def drop_priority(self, parts: Sequence[Token]) -> Built:
        """DROP BROKER PRIORITY name."""
        return _named(DropPriority, parts[0])

    def _priority(self, make: Callable[..., Statement], name: Token, values: dict[str, Token]) -> Built:
        properties: dict[str, Any] = {
            key.lower(): ANY
            if value.type == "ANY"
            else PRIORITY_LEVEL_DEFAULT
            if value.type == "DEFAULT"
            else _plain(value)
            for key, value in values.items()
        }
        places = {key: place_of(value) for key, value in values.items()}
        places[NAME] = place_of(name)
        return Built(partial(make, str(name), PriorityProperties(**properties)), places)

    # --- conversations ---

    def cleanup(self, parts: Sequence[Token]) -> dict[str, Any]:
        """WITH CLEANUP."""
        del parts
        return {"cleanup": True}

    def error(self, parts: Sequence[Token]) -> dict[str, Any]:
        """WITH ERROR = code DESCRIPTION = 'text'."""
        code, description = parts
        return {"error_code": int(code), "description": str(description)}

    def end_conversation(self, parts: Sequence[Any]) -> Built:
        """END CONVERSATION 'handle' [WITH ...]."""
        handle, ending = parts
        make = partial(EndConversation, _guid(handle, "conversation handle"), **(ending or {}))
        return Built(make, {NAME: place_of(handle)})

    def move_conversation(self, parts: Sequence[Token]) -> Built:
        """MOVE CONVERSATION 'handle' TO 'group'."""
        handle, group = parts
        make = partial(MoveConversation, _guid(handle, "conversation handle"), _guid(group, "conversation group"))
        return Built(make, {NAME: place_of(handle), "TO": place_of(group)})

    def begin_timer(self, parts: Sequence[Token]) -> Built:
        """BEGIN CONVERSATION TIMER ('handle') TIMEOUT = seconds."""
        handle, timeout = parts
        make = partial(BeginConversationTimer, _guid(handle, "conversation handle"), int(timeout))
        return Built(make, {NAME: place_of(handle), "TIMEOUT": place_of(timeout)})

    # --- databases ---

    def database_option(self, parts: Sequence[Token]) -> Token:
        """What is set; PARTNER FAILOVER is two words."""
        return parts[0]

    def termination(self, parts: Sequence[Token]) -> None:
        """What would become of the sessions of others."""
        del parts

    def alter_database(self, parts: Sequence[Any]) -> Built:
        """ALTER DATABASE name SET option [WITH ...]."""
        name, option, _ = parts
        kind = DatabaseOption.PARTNER_FAILOVER if option.type == "PARTNER" else DatabaseOption(option.type)
        make = partial(AlterDatabase, None if name.type == "CURRENT" else str(name), kind)
        return Built(make, {NAME: place_of(name), "OPTION": place_of(option)})


_ELEMENTS = {
    "NAME": "a name",
    "STRING": "a text in quotes",
    "INTEGER": "a whole number",
    END: "the end of the statement",
}
NEAR_MAX = 128  # characters of a token that are looked at to say what is wrong with it; it may have a hundred million
_QUEUE_OPTIONS = "what is supported is WITH STATUS and POISON_MESSAGE_HANDLING"
_VALID_XML = "use WELL_FORMED_XML, and check the body against its schema in the application"
_NO_OPTION = "only an administrator of the instance gives permissions, so nobody passes them on"
_SELECT = "SELECT"
_ALONE = "a SELECT is asked by itself, not in a script"
_READ_ONLY = "is not supported: the views are read only; ALTER, CREATE and DROP change what they show"
_CHANGING_ROWS = frozenset({"DELETE", "INSERT", "MERGE", "TRUNCATE", "UPDATE"})
_GRANTING = dict.fromkeys(("WITH", "AS"), _NO_OPTION)
# What the original documents and this system leaves out, by the first two words: the option, and what to do instead.
_QUEUE = {
    "RETENTION": "an application keeps what it needs in a table of its own, in the transaction that sends or receives",
    "ACTIVATION": "write the reader as a function, @broker.reader('queue'), and start it with broker run",
    **dict.fromkeys(("ON", "REBUILD", "REORGANIZE"), _QUEUE_OPTIONS),
}
_NOT_SUPPORTED = {
    ("CREATE", "QUEUE"): _QUEUE,
    ("ALTER", "QUEUE"): _QUEUE,
    ("CREATE", "MESSAGE"): {"VALID_XML": _VALID_XML},
    ("ALTER", "MESSAGE"): {"VALID_XML": _VALID_XML},
    **dict.fromkeys(product(("GRANT", "DENY", "REVOKE"), ("CONNECT", "SEND")), _GRANTING),
}


_AUTOMATON = Automaton(Builder())
_WORD = _AUTOMATON.words
_KEYWORDS = {word.upper(): terminal for terminal, word in _WORD.items()}
OPENERS = _AUTOMATON.openers


def parse_script(text: str, *, source: str = "-") -> list[Statement]:
    """
    All statements of a script.

    Raises:
        DdlSyntaxError: the first mistake.
    """
    return list(iter_script(text, source=source))


def iter_script(text: str, *, source: str = "-") -> Iterator[Statement]:
    """
    The statements of a script, each as soon as it is read.

    Raises:
        DdlSyntaxError: the first mistake, after every statement before it.
    """
    for outcome in read_script(text, source=source):
        if isinstance(outcome, DdlSyntaxError):
            raise outcome
        yield outcome


def read_script(text: str, *, source: str = "-") -> Iterator[Statement | DdlSyntaxError]:
    """
    The statements of a script and, in their places, the mistakes: for whoever reports them all.

    Raises:
        Nothing. After an unclosed quote or comment nothing more is read.
    """
    lines = _LineCounter(text)
    at = 0
    while at < len(text):
        plain = read_plain(text, at, _KEYWORDS)
        if plain is not None:
            name, properties, start, end, at = plain
            places = PlainPlaces(text, start)
            yield CreateRoute(
                name, properties, origin=StatementOrigin(source, text, lines.line(start), start, end, places)
            )
            continue
        try:
            draft = next_draft(text, at, _KEYWORDS, OPENERS)
        except UnclosedError as error:
            whole = StatementOrigin(source, text, 1, 0, len(text))
            yield _mistake(whole, (error.at, error.at + error.length), error.problem, error.number)
            return
        at = draft.next
        if draft.tokens:
            start, end = place_of(draft.tokens[0])[0], place_of(draft.tokens[-1])[1]
            yield _parse(draft.tokens, StatementOrigin(source, text, lines.line(start), start, end))


class _LineCounter:
    """The lines of offsets that only grow, so every part of the text is counted once."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._line = 1
        self._counted = 0

    def line(self, at: int) -> int:
        self._line += self._text.count("\n", self._counted, at)
        self._counted = at
        return self._line


def _parse(tokens: list[Token], origin: StatementOrigin) -> Statement | DdlSyntaxError:
    """One statement, or what is wrong with it."""
    try:
        built = cast("Built", _AUTOMATON.parse(tokens))
    except UnexpectedTokenError as error:
        return _unexpected(error, tokens, origin)
    except RefusedError as error:
        return _mistake(origin, place_of(error.token), error.problem, error.number)
    return built.make(origin=replace(origin, places=built.places))


def _unexpected(error: UnexpectedTokenError, tokens: list[Token], origin: StatementOrigin) -> DdlSyntaxError:
    """What to say about a token that cannot stand where it stands, or about an end that comes too early."""
    expected, token = error.accepts, error.token
    if token.type == END:
        place = (origin.end, origin.end)
        return _mistake(origin, place, f"incorrect syntax at the end of the statement; expected {_list(expected)}")
    place = place_of(token)
    option = _unsupported(tokens, token)
    if option:
        return _mistake(origin, place, option)
    near = origin.text[place[0] : min(place[1], place[0] + NEAR_MAX)]
    problem = f"incorrect syntax near {_shorten(near)!r}; expected {_list(expected)}"
    words = [_WORD[terminal] for terminal in expected if _WORD.get(terminal, "").isidentifier()]
    is_first = token is tokens[0]
    if is_first and near.upper() in _CHANGING_ROWS:
        return _mistake(origin, place, f"{near.upper()} {_READ_ONLY}")
    if is_first and near.upper() == _SELECT:
        return _mistake(origin, place, f"{problem}; {_ALONE}")
    from difflib import get_close_matches  # noqa: PLC0415 - for those who mistype; a slow import for all others

    similar = get_close_matches(near.upper(), sorted([*words, _SELECT] if is_first else words), n=1, cutoff=0.7)
    return _mistake(origin, place, f"{problem}; did you mean {similar[0]}?" if similar else problem)


def _unsupported(tokens: list[Token], token: Token) -> str | None:
    """The sentence for an option that the original documents and this system leaves out."""
    verb, kind, option = tokens[0].upper(), tokens[1].upper() if len(tokens) > 1 else "", token.upper()
    instead = _NOT_SUPPORTED.get((verb, kind), {}).get(option)
    if token.type == "STRING" or instead is None:
        return None
    what = "MESSAGE TYPE" if kind == "MESSAGE" else kind
    return f"the option {option} of {verb} {what} is not supported; {instead}"


def _list(expected: Collection[str]) -> str:
    """The expected elements as people say them. Where a name may stand, the words that may serve as names go unsaid."""
    if "NAME" in expected:
        expected = {terminal for terminal in expected if not _WORD.get(terminal, "").isidentifier()}
    shown = sorted(_ELEMENTS.get(terminal) or _quoted(_WORD[terminal]) for terminal in expected)
    return " or ".join(filter(None, (", ".join(shown[:-1]), shown[-1])))


def _quoted(word: str) -> str:
    return word if word.isidentifier() else f"'{word}'"


def _shorten(text: str) -> str:
    return text if len(text) <= 40 else text[:37] + "..."


def _mistake(origin: StatementOrigin, place: Place, problem: str, number: int = 102) -> DdlSyntaxError:
    start, end = place
    return DdlSyntaxError(number, problem, origin.span(start, end), origin.text_line(start))
