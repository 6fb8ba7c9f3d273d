"""
Recursive descent parser: from text to statements, and to an error for text that is not one.

A script is cut into statements (`lexer`), and each is parsed by itself, so memory is bounded by the longest statement,
time is linear, and a mistake in one statement does not hide those in the next. Nothing is read twice: one token of
look-ahead decides everything. The first mistake of a statement is reported with its line and column, a caret, what
would have been right there, and the nearest word when something looks misspelt.

A new statement is a struct in `statements`, a line in `STATEMENTS` with its method, a handler in
`broker.catalog.handlers` and a line in `render`. Its words are free to be names as well, unless they are reserved.

Sources: the T-SQL documentation's page of each statement.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping
from difflib import get_close_matches
from functools import partial, reduce
from itertools import product
from typing import Any, NoReturn, TypeAlias, cast
from uuid import UUID

from msgspec.structs import replace

from broker.ddl import statements as ddl
from broker.ddl.lexer import END, NAME, NUMBER, TEXT, Token, UnclosedError, read_tokens
from broker.errors import DdlSyntaxError
from broker.protocol.layout import NAME_MAX_BYTES
from broker.routing.route import RouteProperties
from broker.security.grants import Permission
from broker.security.principal import PRINCIPAL_MAX, PrincipalError, parse_principal

NAME_MAX_CHARACTERS = 128  # sysname of the original
PRIORITY_LEVEL_DEFAULT = 5  # PRIORITY_LEVEL = DEFAULT, the original's
_CLASSES = frozenset({NAME, TEXT, NUMBER, END})
NEAR_MAX = 128  # characters of a token that are compared with known words; it may have a hundred million

# Words that are names only in brackets or double quotes; all other keywords may be names as they are.
_RESERVED = frozenset(
    {"ADD", "ALTER", "ANY", "AUTHORIZATION", "BEGIN", "BY", "CASCADE", "CREATE", "CURRENT", "DATABASE", "DEFAULT"}
    | {"DENY", "DROP", "END", "FOR", "FROM", "GRANT", "MOVE", "OFF", "ON", "REVOKE", "ROLLBACK", "SET", "TO", "USE"}
    | {"USER", "WITH"}
)
_NO_LETTER = frozenset("/0123456789")  # with which a name in brackets may begin
_GUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.ASCII | re.IGNORECASE)
_DATABASE_OPTIONS = {option.split()[0]: option for option in ddl.DatabaseOption}


def _each(advice: Mapping[str, str]) -> dict[str, str]:
    """The advice by every opening that a key means: of words with `|` between them each one counts."""
    return {
        " ".join(words): text
        for key, text in advice.items()
        for words in product(*(word.split("|") for word in key.split()))
    }


# Options of the original that this system leaves out, after the first two words, and what to do instead.
_READER = "write the reader as a function, @broker.reader('queue'), and start it with broker run"
_RETENTION = "an application keeps what it needs in its own table, in the transaction that sends or receives"
_OF_A_SERVER = "it is about a database server: leave the statement out"
_TRUST = "databases trust each other by certificates: see GRANT SEND and CREATE REMOTE SERVICE BINDING"
_NOT_SUPPORTED = _each(
    {
        "CREATE|ALTER QUEUE ACTIVATION": _READER,
        "CREATE|ALTER QUEUE ON|REBUILD|REORGANIZE": "what is supported is WITH STATUS and POISON_MESSAGE_HANDLING",
        "CREATE|ALTER MESSAGE VALID_XML": (
            "use WELL_FORMED_XML, and check the body against its schema in the application"
        ),
        "GRANT|DENY|REVOKE CONNECT|SEND WITH|AS": (
            "only an administrator of the instance gives permissions, so a principal cannot pass them on"
        ),
        "ALTER DATABASE HONOR_BROKER_PRIORITY": "priorities are always honored: leave the statement out",
        "ALTER DATABASE TRUSTWORTHY": _TRUST,
        "ALTER DATABASE SINGLE_USER|RESTRICTED_USER|MULTI_USER|OFFLINE|ONLINE": _OF_A_SERVER,
        "ALTER DATABASE READ_ONLY|READ_WRITE|RECOVERY|EMERGENCY|WITNESS": _OF_A_SERVER,
    }
)
_PARTNER = (
    "a pair of databases is made in the configuration, databases.NAME.mirroring: what can be set is PARTNER FAILOVER"
)

# Statements of the original that are not statements here, by their first words, and what to do instead.
_BY_CODE = "an application does it in its own transaction"
_NO_PROGRAM = "leave it out: a script has statements of the broker only"
_NO_SERVER = "there are no tables, programs or logins here, only objects of the broker: leave it out"
_PRIVATE_KEY = "private keys are files: databases.NAME.private_key"
_PERMISSION = (
    "the permissions are CONNECT ON ENDPOINT and SEND ON SERVICE; [admin] of the configuration says who may change"
)
_ASK = "ask for a queue by IF [NOT] EXISTS (SELECT * FROM sys.service_queues WHERE name = 'name')"
_INSTEAD = _each(
    {
        "SEND": f"{_BY_CODE}: dialog.send(body, type=...); or broker send",
        "RECEIVE": f"{_BY_CODE}: broker.receive(db, queue=...); or broker receive",
        "WAITFOR": f"{_BY_CODE}: broker.receive(db, queue=..., wait=SECONDS); or broker receive --wait SECONDS",
        "GET CONVERSATION": f"{_BY_CODE}: broker.receive(db, queue=...) returns messages of one conversation group",
        "BEGIN DIALOG": f"{_BY_CODE}: broker.begin_dialog(db, from_service=..., to_service=...); or broker send",
        **dict.fromkeys(
            ("BEGIN TRAN|TRANSACTION", "COMMIT|ROLLBACK|SAVE"),
            "leave it out: a script is one change, and is undone as a whole when one of its statements fails",
        ),
        "DECLARE": (
            f"{_NO_PROGRAM}; applications begin dialogs and send: broker.begin_dialog, dialog.send; or broker send"
        ),
        "EXEC|EXECUTE|PRINT|WHILE|RETURN|RAISERROR": _NO_PROGRAM,
        "BEGIN TRY|CATCH": _NO_PROGRAM,
        "THROW|GOTO|BREAK|CONTINUE": _NO_PROGRAM,
        "DBCC|RECONFIGURE|CHECKPOINT|SHUTDOWN|REVERT|ENABLE|DISABLE|ADD": _NO_SERVER,
        "ELSE": "begin its statement with a second IF, EXISTS in place of NOT EXISTS, or the other way round",
        "IF OBJECT_ID": _ASK,
        "IF DB_ID": "the databases are those of the configuration: leave it out",
        "KILL": "broker dialogs end ends conversations; a connection ends when its peer may not connect: DENY CONNECT",
        "BACKUP|RESTORE": "back up the database file: see Operations",
        "GET_TRANSMISSION_STATUS": "it is a function: SELECT GET_TRANSMISSION_STATUS('handle')",
        "ALTER AUTHORIZATION": "owners mean nothing here: leave it out",
        "ALTER SERVICE MASTER KEY": _PRIVATE_KEY,
        "CREATE|ALTER|DROP XML": "check the body against its schema in the application",
        "CREATE|ALTER|DROP TABLE|VIEW|FUNCTION|TRIGGER|SCHEMA|SYNONYM|TYPE|INDEX|ASSEMBLY|SERVER|SEQUENCE": _NO_SERVER,
        "CREATE|ALTER|DROP ENDPOINT": (
            "set listen, message_forwarding, message_forward_size, encryption ... of [endpoint] in the configuration"
        ),
        "CREATE|ALTER|DROP|BACKUP CERTIFICATE": (
            "certificates are PEM files: make them with broker certs, and name them in the configuration"
        ),
        "CREATE|ALTER|DROP|OPEN|CLOSE MASTER KEY": _PRIVATE_KEY,
        "CREATE|ALTER|DROP|OPEN|CLOSE SYMMETRIC KEY": "keys of dialogs are made with them",
        "CREATE|ALTER|DROP PROCEDURE|PROC": _READER,
        "CREATE|ALTER|DROP EVENT NOTIFICATION|SESSION": (
            f"for QUEUE_ACTIVATION, {_READER}; other events are in the log and the metrics"
        ),
        "CREATE|ALTER|DROP LOGIN|USER|ROLE": "a principal is the subject of a certificate: GRANT ... TO [CN=...]",
        "CREATE DATABASE": "add [databases.NAME] with its path to the configuration, and start the instance again",
        "DROP DATABASE": "take [databases.NAME] out of the configuration, and start the instance again",
        "GRANT|DENY|REVOKE VIEW|TAKE|EXECUTE|EXEC|SELECT|INSERT|UPDATE|DELETE|IMPERSONATE|ALL|CONTROL": _PERMISSION,
        "GRANT|DENY|REVOKE RECEIVE": ("the rights of the database file decide who may receive: use chown and chmod"),
        "GRANT|DENY|REVOKE REFERENCES": "every application may use every message type and contract",
    }
)
# Statements that end where a word follows that opens one, such as ALTER QUEUE q MOVE and GRANT ALTER ON x.
_CUT_OFF = _each(
    {
        "ALTER QUEUE": "ALTER QUEUE changes STATUS and POISON_MESSAGE_HANDLING: there is no index to move",
        "GRANT|DENY|REVOKE": _PERMISSION,
    }
)
GUARDED_VIEWS = tuple(kind.view for kind in ddl.KINDS)
_CHANGING_ROWS = frozenset({"DELETE", "INSERT", "MERGE", "TRUNCATE", "UPDATE"})
_READ_ONLY = "is not supported: the views are read only; ALTER, CREATE and DROP change what they show"
_SELECT = "SELECT"
_ALONE = "SELECT cannot be part of a script: run it alone, without USE and GO; broker sql -d NAME chooses the database"


def parse_script(text: str, *, source: str = "-") -> list[ddl.Statement]:
    """
    All statements of a script.

    Raises:
        DdlSyntaxError: the first mistake.
    """
    statements = []
    for outcome in read_script(text, source=source):
        if isinstance(outcome, DdlSyntaxError):
            raise outcome
        statements.append(outcome)
    return statements


def read_script(text: str, *, source: str = "-") -> Iterator[ddl.Statement | DdlSyntaxError]:
    """The statements of a script and, in their order, the mistakes. After an unclosed quote or comment it ends."""
    at = counted = 0
    line = 1
    guard: ddl.ExistsGuard | None = None
    blocks: list[tuple[ddl.ExistsGuard | None, Token]] = []  # those that are open: the guard, and BEGIN
    whole = ddl.StatementOrigin(source, text, 1, 0, len(text))
    while at < len(text):
        try:
            tokens, at = read_tokens(text, at, _OPENERS)
        except UnclosedError as error:
            yield _mistake(whole, error.start, error.end, error.problem, error.number)
            return
        match [token.kind for token in tokens[:2]]:
            case ["BEGIN", "TRY" | "CATCH"]:  # refused below, but not a second time at its END
                blocks.append((None, tokens[1]))
            case ["BEGIN", *more] if more != ["CONVERSATION"] and " ".join(["BEGIN", *more]) not in _INSTEAD:
                blocks.append((guard, tokens.pop(0)))
            case ["END", *more] if blocks and more != ["CONVERSATION"]:
                blocks.pop()
                guard = blocks[-1][0] if blocks else None
                del tokens[: 2 if more in (["TRY"], ["CATCH"]) else 1]
        if tokens:
            start, end = tokens[0].start, tokens[-1].end
            line += text.count("\n", counted, start)
            counted = start
            places: dict[str, tuple[int, int]] = {}
            parser = _StatementParser(tokens, ddl.StatementOrigin(source, text, line, start, end, places), places)
            outer, guard = guard, blocks[-1][0] if blocks else None
            try:
                if tokens[0].kind == "IF":
                    guard = parser.guard(outer)
                elif tokens[0].kind == "SET":
                    parser.session_option()
                else:
                    yield parser.statement(outer)
            except DdlSyntaxError as error:
                if tokens[0].kind == "CREATE" and ddl.NAME in places:
                    error.created = next(one.value for one in tokens if one.end == places[ddl.NAME][1])
                yield error
    if blocks and blocks[-1][1].kind == "BEGIN":
        yield _mistake(whole, *blocks[-1][1][2:], "this BEGIN has no END")


class _StatementParser:
    """
    Reads one statement. A method for each form and part; each takes its tokens, or raises DdlSyntaxError.

    `_refused` collects which kinds were asked for in vain at which token, to say what was expected there.
    """

    def __init__(self, tokens: list[Token], origin: ddl.StatementOrigin, places: dict[str, tuple[int, int]]) -> None:
        self._tokens = tokens
        self._next = 0
        self._refused: list[tuple[int, tuple[str, ...]]] = []
        self._origin = origin
        self._places = places  # those of the origin
        tokens.append(Token(END, "", origin.end, origin.end))

    def statement(self, guard: ddl.ExistsGuard | None = None) -> ddl.Statement:
        """The whole statement, executed only where `guard` holds."""
        form: _Forms | Callable[[_StatementParser], ddl.Statement] = _FORMS
        while isinstance(form, dict):
            form = form[self.expect(*form).kind]
        statement = form(self)
        self.end()
        if guard is None:
            return statement
        if isinstance(statement, ddl.UseDatabase | ddl.AlterDatabase):
            self._refuse(self._tokens[0], 102, f"{self._tokens[0].kind} cannot be under IF: write it before")
        return replace(statement, guard=guard)

    def guard(self, outer: ddl.ExistsGuard | None = None) -> ddl.ExistsGuard:
        """IF [NOT] EXISTS (SELECT ... FROM view WHERE name = 'name'); not under another one."""
        self.expect("IF")
        if outer is not None:
            self._refuse(self._tokens[0], 102, "IF cannot be under IF: give each statement its own condition")
        is_negated = self.accept("NOT") is not None
        self.words("EXISTS", "(", "SELECT")
        while not self.accept("FROM"):  # what it selects does not matter
            if self._tokens[self._next].kind is END:
                self._refuse(self._tokens[self._next], 102, f"IF EXISTS asks for one object by name: {_ASK}")
            self._next += 1
        view = self.name_token()
        while self.accept("."):
            view = self.name_token()
        if view.value.lower() not in GUARDED_VIEWS:
            self._refuse(view, 102, f"IF EXISTS can ask for {', '.join(f'sys.{one}' for one in GUARDED_VIEWS)}")
        self.expect("WHERE")
        column = self.name_token()
        if column.value.lower() != "name":
            self._refuse(column, 102, "IF EXISTS can ask for a name only: WHERE name = 'text'")
        self.expect("=")
        name = self.expect(TEXT)
        if (more := self._tokens[self._next]).kind in {"AND", "OR"}:
            self._refuse(more, 102, f"IF EXISTS can ask for a name only: leave {more.kind} and its condition out")
        self.expect(")")
        self.end()
        return ddl.ExistsGuard(view.value.lower(), name.value, is_negated)

    def session_option(self) -> None:
        """SET ... of a session, as tools write it into scripts: it means nothing here."""
        self.expect("SET")
        while not self.accept(END):
            token = self._tokens[self._next]
            if not (token.kind.isupper() or token.kind in {",", NAME, NUMBER}):
                self._fail()
            self._next += 1

    # --- tokens ---

    def accept(self, *kinds: str) -> Token | None:
        """The next token if it is of one of these kinds."""
        token = self._tokens[self._next]
        if token.kind in kinds:
            self._next += 1
            return token
        self._refused.append((self._next, kinds))
        return None

    def expect(self, *kinds: str) -> Token:
        """The next token, which must be of one of these kinds."""
        token = self._tokens[self._next]
        if token.kind in kinds:
            self._next += 1
            return token
        self._refused.append((self._next, kinds))
        return self._fail()

    def words(self, *kinds: str) -> None:
        """These words and marks, one after the other."""
        for kind in kinds:
            self.expect(kind)

    def end(self) -> None:
        """See that nothing follows; may be asked again."""
        if self._tokens[self._next].kind is not END:
            self._refused.append((self._next, (END,)))
            self._fail()

    def name_token(self, most: int = NAME_MAX_CHARACTERS) -> Token:
        """A name of 1 to so many characters."""
        token = self._tokens[self._next]
        kind, value, *_ = token
        if kind is not NAME and (kind in _RESERVED or not kind.isupper()):
            self._refused.append((self._next, (NAME,)))
            self._fail()
        self._next += 1
        if not value:
            self._refuse(token, 1038, "a name must not be empty")
        if len(value) > most:
            self._refuse(token, 103, f"this name has {len(value)} characters; at most {most} are allowed")
        if not value.isascii():
            try:
                value.encode()
            except UnicodeEncodeError:
                self._refuse(token, 102, "this name cannot be written as UTF-8: it has half a character")
        return token

    # --- parts ---

    def name(self) -> str:
        """Any name."""
        return self.name_token().value

    def names(self) -> Iterator[Token]:
        """One name or several, with commas between them."""
        yield self.name_token()
        while self.accept(","):
            yield self.name_token()

    def object_name(self) -> str:
        """The name of what the statement is about."""
        token = self.name_token()
        self._places[ddl.NAME] = token[2:]
        return token.value

    def owner(self) -> str | None:
        """AUTHORIZATION owner, or nothing."""
        return self.name() if self.accept("AUTHORIZATION") else None

    def queue(self, key: str = ddl.NAME) -> ddl.QueueName:
        """`queue` or `schema.queue`."""
        first = last = self.name_token()
        if self.accept("."):
            last = self.name_token()
        self._places[key] = first.start, last.end
        return ddl.QueueName(last.value, None if last is first else first.value)

    def guid(self, key: str, what: str) -> UUID:
        """A GUID in quotes."""
        token = self._part(key, TEXT)
        if _GUID.fullmatch(token.value) is None:
            self._refuse(token, 8169, f"{token.value!r} is no {what}: write a GUID")
        return UUID(token.value)

    def principal(self) -> Token:
        """The text of a principal."""
        token = self.name_token(PRINCIPAL_MAX)
        try:
            parse_principal(token.value)
        except PrincipalError as error:
            self._refuse(token, 15151, str(error))
        return token

    def options(self, readers: dict[str, _Reader], *, is_list: bool = False) -> dict[str, Any]:
        """
        Read one option or several, each at most once, and return their values by name in small letters.

        Args:
            readers: The reader of each option, by its word; it reads the text after the word.
            is_list: True if there is a comma between two options; otherwise there may be one after each.
        """
        values: dict[str, Any] = {}
        key: Token | None = self.expect(*readers)
        while key is not None:
            name = key.kind.lower()
            if name in values:
                self._refuse(key, 102, f"{key.kind} is given twice")
            values[name] = readers[key.kind](self, key.kind)
            has_comma = self.accept(",")
            key = self.accept(*readers) if not is_list else self.expect(*readers) if has_comma else None
        return values

    def enclosed(self, readers: dict[str, _Reader], *, is_list: bool = False) -> dict[str, Any]:
        """As `options`, in parentheses."""
        self.expect("(")
        values = self.options(readers, is_list=is_list)
        self.expect(")")
        return values

    def value(self, key: str, *kinds: str) -> Any:
        """`=` and a text, a number, or what a word means."""
        self.expect("=")
        token = self._part(key, *kinds)
        return int(token.value) if token.kind is NUMBER else _MEANINGS.get(token.kind, token.value)

    def poison_value(self, key: str) -> bool:
        """`(STATUS = ON)` or `(STATUS = OFF)`."""
        self.words("(", "STATUS")
        is_on: bool = self.value(key, "ON", "OFF")
        self.expect(")")
        return is_on

    def principal_value(self, key: str) -> str:
        """`= principal`."""
        self.expect("=")
        token = self.principal()
        self._places[key] = token[2:]
        return token.value

    def name_or_any(self, key: str) -> ddl.NameOrAny:
        """`= name` or `= ANY`."""
        self.expect("=")
        word = self.accept("ANY")
        token = word or self.name_token()
        self._places[key] = token[2:]
        return ddl.ANY if word else token.value

    def _part(self, key: str, *kinds: str) -> Token:
        token = self.expect(*kinds)
        self._places[key] = token[2:]
        return token

    # --- routes and queues ---

    def use_database(self) -> ddl.Statement:
        """USE name."""
        return ddl.UseDatabase(self.object_name(), origin=self._origin)

    def drop(self, kind: ddl.ObjectKind) -> ddl.Statement:
        """DROP ... [IF EXISTS] name."""
        is_guarded = [one.kind for one in self._tokens[self._next : self._next + 2]] == ["IF", "EXISTS"]
        self._next += 2 * is_guarded
        what: Any = self.queue() if kind is ddl.QUEUE else self.object_name()
        statement = kind.drop(what, origin=self._origin)
        return replace(statement, guard=ddl.ExistsGuard(kind.view, statement.name)) if is_guarded else statement

    def create_route(self) -> ddl.Statement:
        """CREATE ROUTE name [AUTHORIZATION owner] WITH ADDRESS = '...', ..."""
        name, owner = self.object_name(), self.owner()
        self.expect("WITH")
        properties = self.options(_ROUTE_PROPERTIES, is_list=True)
        if "address" not in properties:
            self._refuse_whole("CREATE ROUTE needs ADDRESS")
        return ddl.CreateRoute(name, RouteProperties(**properties), owner, origin=self._origin)

    def alter_route(self) -> ddl.Statement:
        """ALTER ROUTE name WITH ..."""
        name = self.object_name()
        self.expect("WITH")
        return ddl.AlterRoute(name, RouteProperties(**self.options(_ROUTE_PROPERTIES)), origin=self._origin)

    def create_queue(self) -> ddl.Statement:
        """CREATE QUEUE queue [WITH ...] [ON filegroup]; the filegroup means nothing here."""
        queue = self.queue()
        options = self._queue_options() if self.accept("WITH") else {}
        if self.accept("ON"):
            self.name()
        return ddl.CreateQueue(queue, **options, origin=self._origin)

    def alter_queue(self) -> ddl.Statement:
        """ALTER QUEUE queue WITH ..."""
        queue = self.queue()
        self.expect("WITH")
        return ddl.AlterQueue(queue, **self._queue_options(), origin=self._origin)

    def _queue_options(self) -> dict[str, Any]:
        options = self.options(_QUEUE_OPTIONS)
        options.pop("retention", None)
        options.pop("activation", None)
        return options

    def activation_value(self, key: str) -> bool:
        """`(STATUS = OFF, ...)` or `(DROP)`, which tools write into scripts: no procedure is started."""
        word = self._tokens[self._next - 1]
        self.expect("(")
        start = self._next
        while self._tokens[self._next].kind not in (")", END):
            self._next += 1
        inside = " ".join(token.kind for token in self._tokens[start : self._next])
        self.expect(")")
        if inside != "DROP" and "STATUS = OFF" not in inside:
            verb = self._tokens[0].kind
            self._refuse(word, 102, f"the option {key} of {verb} QUEUE is not supported; {_READER}")
        return False

    def retention_value(self, key: str) -> bool:
        """`= OFF`, which tools write into scripts."""
        if self.value(key, "ON", "OFF"):
            token = self._tokens[self._next - 1]
            self._refuse(token, 102, f"RETENTION = ON is not supported; {_RETENTION}")
        return False

    # --- services ---

    def create_service(self) -> ddl.Statement:
        """CREATE SERVICE name [AUTHORIZATION owner] ON QUEUE queue [(contracts)] [WITH (EXCLUSIVE_TARGET = ON)]."""
        name, owner = self.object_name(), self.owner()
        self.words("ON", "QUEUE")
        queue = self.queue("QUEUE")
        contracts: dict[str, None] = {}
        if self.accept("("):
            for token in self.names():
                if token.value in contracts:
                    self._refuse(token, 8404, f"the contract {token.value!r} is given twice; remove one")
                contracts[token.value] = None
            self.expect(")")
        return ddl.CreateService(name, queue, tuple(contracts), owner, **self._service_options(), origin=self._origin)

    def alter_service(self) -> ddl.Statement:
        """ALTER SERVICE name [ON QUEUE queue] [(ADD | DROP CONTRACT name, ...)] [WITH (...)], one of them at least."""
        name, queue = self.object_name(), None
        if self.accept("ON"):
            self.expect("QUEUE")
            queue = self.queue("QUEUE")
        changes: dict[str, list[str]] = {"ADD": [], "DROP": []}
        options = self._service_options()
        has_more = self.accept("(") if queue or options else self.expect("(")
        while has_more:
            verb = self.expect("ADD", "DROP").kind
            self.expect("CONTRACT")
            changes[verb].append(self.name_token().value)
            has_more = self.accept(",")
            if not has_more:
                self.expect(")")
        options = options or self._service_options()
        return ddl.AlterService(
            name, queue, tuple(changes["ADD"]), tuple(changes["DROP"]), **options, origin=self._origin
        )

    def _service_options(self) -> dict[str, Any]:
        return self.enclosed(_SERVICE_OPTIONS, is_list=True) if self.accept("WITH") else {}

    # --- message types, contracts, priorities ---

    def create_message_type(self) -> ddl.Statement:
        """CREATE MESSAGE TYPE name [AUTHORIZATION owner] [VALIDATION = ...]."""
        name, owner = self.object_name(), self.owner()
        validation = self._validation() if self.accept("VALIDATION") else "NONE"
        return ddl.CreateMessageType(name, validation, owner, origin=self._origin)

    def alter_message_type(self) -> ddl.Statement:
        """ALTER MESSAGE TYPE name VALIDATION = ..."""
        name = self.object_name()
        self.expect("VALIDATION")
        return ddl.AlterMessageType(name, self._validation(), origin=self._origin)

    def _validation(self) -> str:
        self.expect("=")
        return self.expect("NONE", "EMPTY", "WELL_FORMED_XML", "JSON").kind

    def create_contract(self) -> ddl.Statement:
        """CREATE CONTRACT name [AUTHORIZATION owner] (name SENT BY INITIATOR | TARGET | ANY, ...)."""
        name, owner = self.object_name(), self.owner()
        self.expect("(")
        sent_by: dict[str, str] = {}
        for token in self.names():
            if token.value in sent_by:
                self._refuse(token, 8403, f"the message type {token.value!r} is given twice; remove one")
            self.words("SENT", "BY")
            sent_by[token.value] = self.expect("INITIATOR", "TARGET", "ANY").kind
            self._places[f"TYPE {token.value}"] = token[2:]
        self.expect(")")
        if set(sent_by.values()) == {"TARGET"}:
            problem = f"the contract {name!r} must have at least one message type SENT BY INITIATOR or ANY"
            self._refuse_whole(problem, 8492)
        types = tuple(ddl.ContractType(message_type, who) for message_type, who in sent_by.items())
        return ddl.CreateContract(name, types, owner, origin=self._origin)

    def create_priority(self) -> ddl.Statement:
        """CREATE BROKER PRIORITY name FOR CONVERSATION [SET (...)]."""
        name = self.object_name()
        self.words("FOR", "CONVERSATION")
        given = self.enclosed(_PRIORITY_PROPERTIES) if self.accept("SET") else {}
        return ddl.CreatePriority(name, ddl.PriorityProperties(**given), origin=self._origin)

    def alter_priority(self) -> ddl.Statement:
        """ALTER BROKER PRIORITY name FOR CONVERSATION SET (...)."""
        name = self.object_name()
        self.words("FOR", "CONVERSATION", "SET")
        properties = ddl.PriorityProperties(**self.enclosed(_PRIORITY_PROPERTIES))
        return ddl.AlterPriority(name, properties, origin=self._origin)

    # --- permissions and remote service bindings ---

    def change_permission(self, make: type[ddl.ChangePermission]) -> ddl.Statement:
        """GRANT, DENY or REVOKE: SEND ON SERVICE::name or CONNECT ON ENDPOINT::name, TO principals [CASCADE]."""
        permission = Permission(self.expect("SEND", "CONNECT").kind)
        what = "SERVICE" if permission is Permission.SEND else "ENDPOINT"
        whole = self._tokens[self._next]
        if whole.kind in {"TO", "FROM"}:
            problem = f"{permission} on a whole database is not a permission here: say {permission} ON {what}::name"
            self._refuse(whole, 102, problem)
        self.expect("ON")
        if not (self.accept(what) and self.accept("::")):
            problem = f"the name comes after {what}::, as in {permission} ON {what}::name"
            self._refuse(self._tokens[self._next], 102, problem)
        securable = self.accept("*") or self.name_token(NAME_MAX_BYTES)
        if len(securable.value.encode()) > NAME_MAX_BYTES:
            self._refuse(securable, 103, f"the name of a service has at most {NAME_MAX_BYTES} bytes")
        self._places[ddl.NAME] = securable[2:]
        self.expect("TO", *(("FROM",) if make is ddl.RevokePermission else ()))
        principals: dict[str, str] = {}
        while not principals or self.accept(","):
            token = self.principal()
            text = parse_principal(token.value).text
            if text in principals:
                self._refuse(token, 102, f"the principal {token.value!r} is given twice; remove one")
            principals[text] = token.value
            self._places.setdefault("PRINCIPAL", token[2:])
        self.accept("CASCADE")
        return make(permission, securable.value, tuple(principals.values()), origin=self._origin)

    def create_binding(self) -> ddl.Statement:
        """CREATE REMOTE SERVICE BINDING name [AUTHORIZATION owner] TO SERVICE 'service' WITH USER = principal ..."""
        name, owner = self.object_name(), self.owner()
        self.words("TO", "SERVICE")
        token = self._part("SERVICE", TEXT)
        if not 1 <= len(token.value.encode("utf-8", "replace")) <= NAME_MAX_BYTES:
            self._refuse(token, 103, f"the name of a service has 1 to {NAME_MAX_BYTES} bytes")
        self.expect("WITH")
        options = self.options(_BINDING_OPTIONS)
        if "user" not in options:
            self._refuse_whole("CREATE REMOTE SERVICE BINDING needs USER")
        return ddl.CreateRemoteServiceBinding(name, token.value, **options, owner=owner, origin=self._origin)

    def alter_binding(self) -> ddl.Statement:
        """ALTER REMOTE SERVICE BINDING name WITH ..."""
        name = self.object_name()
        self.expect("WITH")
        return ddl.AlterRemoteServiceBinding(name, **self.options(_BINDING_OPTIONS), origin=self._origin)

    # --- conversations and databases ---

    def end_conversation(self) -> ddl.Statement:
        """END CONVERSATION 'handle' [WITH CLEANUP | WITH ERROR = code DESCRIPTION = 'text']."""
        handle = self.guid(ddl.NAME, "conversation handle")
        ending: dict[str, Any] = {}
        if self.accept("WITH"):
            if self.expect("CLEANUP", "ERROR").kind == "CLEANUP":
                ending = {"cleanup": True}
            else:
                ending = {"error_code": self.value("ERROR", NUMBER)}
                self.expect("DESCRIPTION")
                ending["description"] = self.value("DESCRIPTION", TEXT)
        return ddl.EndConversation(handle, **ending, origin=self._origin)

    def move_conversation(self) -> ddl.Statement:
        """MOVE CONVERSATION 'handle' TO 'group'."""
        handle = self.guid(ddl.NAME, "conversation handle")
        self.expect("TO")
        return ddl.MoveConversation(handle, self.guid("TO", "conversation group"), origin=self._origin)

    def begin_timer(self) -> ddl.Statement:
        """BEGIN CONVERSATION TIMER ('handle') TIMEOUT = seconds."""
        self.expect("(")
        handle = self.guid(ddl.NAME, "conversation handle")
        self.words(")", "TIMEOUT")
        return ddl.BeginConversationTimer(handle, self.value("TIMEOUT", NUMBER), origin=self._origin)

    def alter_database(self) -> ddl.Statement:
        """ALTER DATABASE name | CURRENT SET option [WITH ROLLBACK IMMEDIATE | ROLLBACK AFTER n SECONDS | NO_WAIT]."""
        current = self.accept("CURRENT")
        token = current or self.name_token()
        self._places[ddl.NAME] = token[2:]
        self.expect("SET")
        option = _DATABASE_OPTIONS[self._part("OPTION", *_DATABASE_OPTIONS).kind]
        if option is ddl.DatabaseOption.PARTNER_FAILOVER and not self.accept("FAILOVER"):
            self._refuse(self._tokens[self._next - 1], 102, _PARTNER)
        is_rolling_back = self.accept("WITH") and self.expect("ROLLBACK", "NO_WAIT").kind == "ROLLBACK"
        if is_rolling_back and self.expect("IMMEDIATE", "AFTER").kind == "AFTER":
            self.expect(NUMBER)
            self.accept("SECONDS")
        return ddl.AlterDatabase(None if current else token.value, option, origin=self._origin)

    # --- mistakes ---

    def _refuse(self, token: Token, number: int, problem: str) -> NoReturn:
        raise _mistake(self._origin, token.start, token.end, problem, number)

    def _refuse_whole(self, problem: str, number: int = 102) -> NoReturn:
        """Refuse what is wrong with the whole statement, at its name; a mistake in its words comes first."""
        self.end()
        raise _mistake(self._origin, *self._places[ddl.NAME], problem, number)

    def _fail(self) -> NoReturn:
        """Refuse the next token, or an end that comes too early."""
        origin, token = self._origin, self._tokens[self._next]
        expected = {kind for at, kinds in self._refused if at == self._next for kind in kinds}
        if token.kind is END:
            cut_off = _CUT_OFF.get(" ".join(one.kind for one in self._tokens[:2] if one.kind not in _CLASSES))
            problem = cut_off or f"incorrect syntax at the end of the statement; expected {_list(expected)}"
        elif origin.text[token.start] == "@":
            raise _mistake(origin, token.start, token.end, "variables are not supported: write the value itself", 137)
        else:
            problem = self._unsupported(token, expected) or self._unexpected(token, expected)
        raise _mistake(origin, token.start, token.end, problem)

    def _unsupported(self, token: Token, expected: Collection[str]) -> str | None:
        """The sentence for a statement or option that the original documents and this system leaves out."""
        for at in (0, self._next) if END in expected else (0,):  # it may follow another without a mark between
            for count in (4, 3, 2, 1):
                name = " ".join(one.kind for one in self._tokens[at : at + count])
                if name in _INSTEAD and (at or self._next <= count):
                    return f"{name} is not a statement here: {_INSTEAD[name]}"
        verb, kind, option = self._tokens[0].value.upper(), self._tokens[1].value.upper(), token.value.upper()
        instead = _NOT_SUPPORTED.get(f"{verb} {kind} {option}")
        if token.kind is TEXT or instead is None:
            return None
        what = "MESSAGE TYPE" if kind == "MESSAGE" else kind
        return f"the option {option} of {verb} {what} is not supported; {instead}"

    def _unexpected(self, token: Token, expected: set[str]) -> str:
        near = self._origin.text[token.start : min(token.end, token.start + NEAR_MAX)]
        problem = f"incorrect syntax near {_shorten(near)!r}; expected {_list(expected)}"
        if NAME in expected and token.kind in _RESERVED:
            return f"{problem}; a name that is a keyword is written in brackets: [{near}]"
        if NAME in expected and near[:1] in _NO_LETTER:
            name = self._origin.text[token.start : token.start + NEAR_MAX].split(maxsplit=1)[0].rstrip(",;")
            return f"{problem}; a name like this is written in brackets: [{name}]"
        words = [kind for kind in expected if kind.isupper()]
        if token is self._tokens[0]:
            if near.upper() in _CHANGING_ROWS:
                return f"{near.upper()} {_READ_ONLY}"
            if near.upper() == _SELECT:
                return _ALONE
            words.append(_SELECT)
        similar = get_close_matches(near.upper(), sorted(words), n=1, cutoff=0.7)
        return f"{problem}; did you mean {similar[0]}?" if similar else problem


def _list(expected: Collection[str]) -> str:
    """The expected kinds as people say them. Where a name may stand, words go unsaid: most may be names."""
    shown = sorted(
        kind if kind.isupper() or kind in _CLASSES else f"'{kind}'"
        for kind in expected
        if NAME not in expected or not kind.isupper()
    )
    return " or ".join(filter(None, (", ".join(shown[:-1]), shown[-1])))


def _shorten(text: str) -> str:
    return text if len(text) <= 40 else text[:37] + "..."


def _mistake(origin: ddl.StatementOrigin, start: int, end: int, problem: str, number: int = 102) -> DdlSyntaxError:
    return DdlSyntaxError(number, problem, origin.span(start, end), origin.text_line(start))


_Reader: TypeAlias = Callable[[_StatementParser, str], Any]


def _one_of(*kinds: str) -> _Reader:
    return lambda parser, key: parser.value(key, *kinds)


_MEANINGS = {"ON": True, "OFF": False, "ANY": ddl.ANY, "DEFAULT": PRIORITY_LEVEL_DEFAULT}
_ROUTE_PROPERTIES = {
    **dict.fromkeys(("SERVICE_NAME", "BROKER_INSTANCE", "ADDRESS", "MIRROR_ADDRESS"), _one_of(TEXT)),
    **dict.fromkeys(("LIFETIME", "WEIGHT"), _one_of(NUMBER)),
}
_QUEUE_OPTIONS: dict[str, _Reader] = {
    "STATUS": _one_of("ON", "OFF"),
    "POISON_MESSAGE_HANDLING": _StatementParser.poison_value,
    "RETENTION": _StatementParser.retention_value,
    "ACTIVATION": _StatementParser.activation_value,
}
_SERVICE_OPTIONS = {"EXCLUSIVE_TARGET": _one_of("ON", "OFF")}
_PRIORITY_PROPERTIES: dict[str, _Reader] = {
    "CONTRACT_NAME": _StatementParser.name_or_any,
    "LOCAL_SERVICE_NAME": _StatementParser.name_or_any,
    "REMOTE_SERVICE_NAME": _one_of(TEXT, "ANY"),
    "PRIORITY_LEVEL": _one_of(NUMBER, "DEFAULT"),
}
_BINDING_OPTIONS: dict[str, _Reader] = {
    "USER": _StatementParser.principal_value,
    "ANONYMOUS": _one_of("ON", "OFF"),
}

STATEMENTS: dict[str, Callable[[_StatementParser], ddl.Statement]] = {
    "USE": _StatementParser.use_database,
    **{f"DROP {kind.words}": partial(_StatementParser.drop, kind=kind) for kind in ddl.KINDS},
    "CREATE ROUTE": _StatementParser.create_route,
    "ALTER ROUTE": _StatementParser.alter_route,
    "CREATE QUEUE": _StatementParser.create_queue,
    "ALTER QUEUE": _StatementParser.alter_queue,
    "CREATE SERVICE": _StatementParser.create_service,
    "ALTER SERVICE": _StatementParser.alter_service,
    "CREATE MESSAGE TYPE": _StatementParser.create_message_type,
    "ALTER MESSAGE TYPE": _StatementParser.alter_message_type,
    "CREATE CONTRACT": _StatementParser.create_contract,
    "CREATE BROKER PRIORITY": _StatementParser.create_priority,
    "ALTER BROKER PRIORITY": _StatementParser.alter_priority,
    "GRANT": partial(_StatementParser.change_permission, make=ddl.GrantPermission),
    "DENY": partial(_StatementParser.change_permission, make=ddl.DenyPermission),
    "REVOKE": partial(_StatementParser.change_permission, make=ddl.RevokePermission),
    "CREATE REMOTE SERVICE BINDING": _StatementParser.create_binding,
    "ALTER REMOTE SERVICE BINDING": _StatementParser.alter_binding,
    "END CONVERSATION": _StatementParser.end_conversation,
    "MOVE CONVERSATION": _StatementParser.move_conversation,
    "BEGIN CONVERSATION TIMER": _StatementParser.begin_timer,
    "ALTER DATABASE": _StatementParser.alter_database,
}
"""The method for each statement, by the words that open it."""

_Forms: TypeAlias = "dict[str, _Forms | Callable[[_StatementParser], ddl.Statement]]"


def _by_word(statements: dict[str, Callable[[_StatementParser], ddl.Statement]]) -> _Forms:
    """The methods word by word."""
    forms: Any = {}
    for words, method in statements.items():
        *first, last = words.split()
        reduce(lambda at, word: at.setdefault(word, {}), first, forms)[last] = method
    return cast("_Forms", forms)


_FORMS = _by_word(STATEMENTS)
_OPENERS = {*_FORMS, "IF"}  # not SET, which is a word of other statements
