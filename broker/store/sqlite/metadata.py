"""
The objects of a database, as rows and values. The statements of the catalog read and change them.

They are queues, services, message types, contracts, priorities, routes, permissions and remote service bindings. Names
compare byte for byte. A function that writes is called inside the caller's transaction. The built-in message types and
contracts are not rows, except a row of the type DEFAULT, made when a contract names it.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Mapping
from operator import itemgetter
from typing import Any, NamedTuple, TypeAlias, TypeVar

from msgspec.structs import astuple

from broker.conversation.message_types import DEFAULT, SentBy, Validation
from broker.routing.route import RouteRow
from broker.security.grants import Permission, PermissionRule, PermissionState, RemoteServiceBinding
from broker.security.principal import PUBLIC, PrincipalError, parse_principal
from broker.store.sqlite.dialog_rules import PRIORITY_DEFAULT
from broker.store.sqlite.failure import READY, UNCONFIRMED

FIRST_ID = 65536  # of what statements make; lower ones are built in, as in the original
DEFAULT_TYPE_ID = 14  # of the message type DEFAULT; the original's

StoredRow: TypeAlias = tuple[Any, ...]
"""A `RouteRow`, unless another program has written something else."""
_T = TypeVar("_T")


class QueueRow(NamedTuple):
    """A queue; `is_receive_enabled` is STATUS = ON, `is_poison_message_handling_enabled` turns it off by itself."""

    queue_id: int
    name: str
    is_receive_enabled: bool
    is_poison_message_handling_enabled: bool = False


class Service(NamedTuple):
    """A service, the contracts that it accepts as a target, empty = any, and whether it asks to be the only target."""

    service_id: int
    name: str
    queue_id: int
    contracts: frozenset[str]
    is_exclusive_target: bool = False


class Priority(NamedTuple):
    """A conversation priority: None = any; `priority_level` is 1 .. 10."""

    name: str
    contract_name: str | None = None
    local_service_name: str | None = None
    remote_service_name: str | None = None
    priority_level: int = PRIORITY_DEFAULT


# --- queues and services ---

_SHOW_ALL = (
    "UPDATE broker_message SET status = ? WHERE status = ? AND queue_id = ? AND endpoint_id IN"
    " (SELECT endpoint_id FROM broker_conversation WHERE service_name = ?)"
)
_QUEUES = "SELECT queue_id, name, is_receive_enabled, is_poison_message_handling_enabled FROM broker_queue"
_SERVICES = "SELECT service_id, name, queue_id, contracts, is_exclusive_target FROM broker_service"


def queues(db: sqlite3.Connection) -> dict[str, QueueRow]:
    """The queues by name."""
    return {row[1]: _queue(row) for row in db.execute(_QUEUES)}


def services(db: sqlite3.Connection) -> dict[str, Service]:
    """The services by name."""
    return {row[1]: _service(row) for row in db.execute(_SERVICES)}


def find_queue(db: sqlite3.Connection, name: str) -> QueueRow | None:
    """The queue of this name."""
    return _first(db, _queue, f"{_QUEUES} WHERE name = ?", name)


def find_service(db: sqlite3.Connection, name: str) -> Service | None:
    """The service of this name."""
    return _first(db, _service, f"{_SERVICES} WHERE name = ?", name)


def services_on(db: sqlite3.Connection, names: Iterable[str]) -> list[str]:
    """Those of these services whose queue is on, or that are gone."""
    query = "SELECT q.is_receive_enabled FROM broker_service s JOIN broker_queue q USING (queue_id) WHERE s.name = ?"
    return [name for name in names if db.execute(query, (name,)).fetchone() != (0,)]


def queues_off(db: sqlite3.Connection) -> list[tuple[str, str]]:
    """(service, queue) of each service whose queue is off."""
    query = "SELECT s.name, q.name FROM broker_service s JOIN broker_queue q USING (queue_id)"
    return db.execute(f"{query} WHERE NOT q.is_receive_enabled ORDER BY s.name").fetchall()


def put_queue(
    db: sqlite3.Connection, name: str, *, is_receive_enabled: bool, is_poison_message_handling_enabled: bool = False
) -> None:
    """Make a queue, or change the one of this name; a queue that is turned on counts its rollbacks from 0."""
    db.execute(
        "INSERT INTO broker_queue (name, is_receive_enabled, is_poison_message_handling_enabled) VALUES (?, ?, ?)"
        " ON CONFLICT (name) DO UPDATE SET is_receive_enabled = excluded.is_receive_enabled,"
        " is_poison_message_handling_enabled = excluded.is_poison_message_handling_enabled,"
        " rollbacks = CASE WHEN excluded.is_receive_enabled THEN 0 ELSE rollbacks END",
        (name, is_receive_enabled, is_poison_message_handling_enabled),
    )


def put_service(
    db: sqlite3.Connection, name: str, queue_id: int, contracts: frozenset[str], *, is_exclusive_target: bool = False
) -> None:
    """Make a service, or change the one of this name; unless it is an exclusive target, all its messages are shown."""
    put = _put("service", "queue_id, contracts, is_exclusive_target")
    db.execute(put, (name, queue_id, json.dumps(sorted(contracts)), is_exclusive_target))
    if not is_exclusive_target:
        db.execute(_SHOW_ALL, (READY, UNCONFIRMED, queue_id, name))


def drop_queue(db: sqlite3.Connection, name: str) -> None:
    """Remove a queue and the messages in it."""
    db.execute(
        "DELETE FROM broker_message WHERE queue_id = (SELECT queue_id FROM broker_queue WHERE name = ?)", (name,)
    )
    drop(db, "queue", name)


def _queue(row: tuple[int, str, int, int]) -> QueueRow:
    return QueueRow(*row[:2], bool(row[2]), bool(row[3]))


def _service(row: tuple[int, str, int, str, int]) -> Service:
    return Service(*row[:3], frozenset(json.loads(row[3])), bool(row[4]))


# --- message types and contracts ---


def contracts(db: sqlite3.Connection) -> dict[str, frozenset[str]]:
    """The message types of each contract, by name."""
    named: dict[str, set[str]] = {}
    rows = db.execute(
        "SELECT c.name, t.name FROM broker_contract c LEFT JOIN broker_contract_message_type u USING (contract_id)"
        " LEFT JOIN broker_message_type t USING (message_type_id)"
    )
    for contract, message_type in rows:
        named.setdefault(contract, set()).add(message_type)
    return {contract: frozenset(listed) for contract, listed in named.items()}


def find_message_type(db: sqlite3.Connection, name: str) -> Validation | None:
    """The validation of the message type of this name; DEFAULT is always there."""
    if name == DEFAULT:
        return Validation.NONE
    query = "SELECT validation FROM broker_message_type WHERE name = ?"
    return _first(db, lambda row: Validation(row[0]), query, name)


def put_message_type(db: sqlite3.Connection, name: str, validation: Validation) -> None:
    """Make a message type, or change the one of this name."""
    db.execute(
        "INSERT INTO broker_message_type (message_type_id, name, validation)"
        " SELECT max(?, coalesce(max(message_type_id) + 1, 0)), ?, ? FROM broker_message_type WHERE true"
        " ON CONFLICT (name) DO UPDATE SET validation = excluded.validation",
        (FIRST_ID, name, str(validation)),
    )


def find_contract(db: sqlite3.Connection, name: str) -> dict[str, SentBy] | None:
    """The message types of the contract of this name, each with who may send it."""
    if db.execute("SELECT 1 FROM broker_contract WHERE name = ?", (name,)).fetchone() is None:
        return None
    rows = db.execute(
        "SELECT t.name, u.sent_by FROM broker_contract c JOIN broker_contract_message_type u USING (contract_id)"
        " JOIN broker_message_type t USING (message_type_id) WHERE c.name = ?",
        (name,),
    )
    return {message_type: SentBy(sent_by) for message_type, sent_by in rows}


def put_contract(db: sqlite3.Connection, name: str, message_types: Mapping[str, SentBy]) -> None:
    """Make a contract, or change the one of this name; its message types exist."""
    if DEFAULT in message_types:
        db.execute(
            "INSERT OR IGNORE INTO broker_message_type (message_type_id, name, validation) VALUES (?, ?, 'NONE')",
            (DEFAULT_TYPE_ID, DEFAULT),
        )
    db.execute(
        "INSERT INTO broker_contract (contract_id, name)"
        " SELECT max(?, coalesce(max(contract_id) + 1, 0)), ? FROM broker_contract WHERE true"
        " ON CONFLICT (name) DO NOTHING",
        (FIRST_ID, name),
    )
    _drop_usages(db, name)
    db.executemany(
        "INSERT INTO broker_contract_message_type (contract_id, message_type_id, sent_by)"
        " SELECT c.contract_id, t.message_type_id, ? FROM broker_contract c, broker_message_type t"
        " WHERE c.name = ? AND t.name = ?",
        [(str(sent_by), name, message_type) for message_type, sent_by in message_types.items()],
    )


def drop_contract(db: sqlite3.Connection, name: str) -> None:
    """Remove a contract."""
    _drop_usages(db, name)
    drop(db, "contract", name)


def _drop_usages(db: sqlite3.Connection, contract: str) -> None:
    db.execute(
        "DELETE FROM broker_contract_message_type"
        " WHERE contract_id = (SELECT contract_id FROM broker_contract WHERE name = ?)",
        (contract,),
    )


# --- priorities ---

_PRIORITY_COLUMNS = "contract_name, local_service_name, remote_service_name, priority_level"
_PRIORITIES = f"SELECT name, {_PRIORITY_COLUMNS} FROM broker_priority"  # noqa: S608 - the columns above


def find_priority(db: sqlite3.Connection, name: str) -> Priority | None:
    """The priority of this name."""
    return _first(db, Priority._make, f"{_PRIORITIES} WHERE name = ?", name)


def find_priority_about(db: sqlite3.Connection, priority: Priority) -> str | None:
    """The name of the priority with just the criteria of this one."""
    where = "(contract_name, local_service_name, remote_service_name) IS (?, ?, ?)"
    return _first(db, itemgetter(0), f"SELECT name FROM broker_priority WHERE {where}", *priority[1:4])  # noqa: S608 - see above


def put_priority(db: sqlite3.Connection, priority: Priority) -> None:
    """Make a priority, or change the one of this name; conversations that exist keep theirs."""
    db.execute(_put("priority", _PRIORITY_COLUMNS), priority)


# --- routes ---

_ROUTE_COLUMNS = ", ".join(RouteRow.__struct_fields__[1:])
_ROUTES = f"SELECT name, {_ROUTE_COLUMNS} FROM broker_route"  # noqa: S608 - the columns above


def routes(db: sqlite3.Connection) -> Iterator[StoredRow]:
    """All routes as stored, expired ones included; those of one service are adjacent."""
    return db.execute(f"{_ROUTES} ORDER BY remote_service_name")


def find_route(db: sqlite3.Connection, name: str) -> StoredRow | None:
    """The route of this name."""
    return _first(db, StoredRow, f"{_ROUTES} WHERE name = ?", name)


def put_routes(db: sqlite3.Connection, rows: Iterable[RouteRow]) -> None:
    """Make routes, or change those of the same names."""
    db.executemany(_put("route", _ROUTE_COLUMNS), map(astuple, rows))


# --- permissions: a GRANT that cannot be read grants nothing; a DENY that cannot be read denies every principal ---

_OF_RULE = "FROM broker_permission WHERE permission = ? AND securable = ? AND principal = ?"


def permissions(db: sqlite3.Connection) -> tuple[tuple[PermissionRule, ...], list[str]]:
    """The rules in the order of their principals, and the principals that cannot be read."""
    rules: list[PermissionRule] = []
    unreadable: list[str] = []
    query = "SELECT permission, securable, principal, state FROM broker_permission ORDER BY principal, securable"
    for permission, securable, text, state in db.execute(query):
        try:
            principal = parse_principal(text)
        except PrincipalError:
            unreadable.append(text)
            if state == PermissionState.GRANT:
                continue
            principal = parse_principal(PUBLIC)
        rules.append(PermissionRule(Permission(permission), securable, principal, PermissionState(state)))
    return tuple(rules), unreadable


def find_state(db: sqlite3.Connection, rule: PermissionRule) -> PermissionState | None:
    """Return the stored state of the permission, securable and principal of a rule; None when nothing is stored."""
    return _first(db, lambda row: PermissionState(row[0]), f"SELECT state {_OF_RULE}", *_about(rule))


def put_permission(db: sqlite3.Connection, rule: PermissionRule) -> None:
    """Store a rule in the place of the one about the same."""
    key = "permission, securable, principal"
    db.execute(_put("permission", "state", key=key), (*_about(rule), str(rule.state)))


def drop_permission(db: sqlite3.Connection, rule: PermissionRule) -> None:
    """Remove what is stored about the same as this rule."""
    db.execute(f"DELETE {_OF_RULE}", _about(rule))


def drop_permissions_on(db: sqlite3.Connection, service: str) -> None:
    """Remove what is stored about a service that was dropped; patterns stay."""
    db.execute("DELETE FROM broker_permission WHERE permission = 'SEND' AND securable = ?", (service,))


def _about(rule: PermissionRule) -> tuple[str, str, str]:
    return str(rule.permission), rule.securable, rule.principal.text


# --- remote service bindings ---

_BINDING_COLUMNS = "remote_service_name, remote_principal, is_anonymous_on"
_BINDINGS = f"SELECT name, {_BINDING_COLUMNS} FROM broker_remote_service_binding"  # noqa: S608 - the columns above


def bindings(db: sqlite3.Connection) -> dict[str, RemoteServiceBinding]:
    """The bindings by name."""
    return {row[0]: _binding(row) for row in db.execute(_BINDINGS)}


def find_binding(db: sqlite3.Connection, name: str) -> RemoteServiceBinding | None:
    """The binding of this name."""
    return _first(db, _binding, f"{_BINDINGS} WHERE name = ?", name)


def find_binding_of(db: sqlite3.Connection, remote_service_name: str) -> RemoteServiceBinding | None:
    """The binding of a far service. Cost: one look-up in an index."""
    return _first(db, _binding, f"{_BINDINGS} WHERE remote_service_name = ?", remote_service_name)


def put_binding(db: sqlite3.Connection, binding: RemoteServiceBinding) -> None:
    """Make a binding, or change the one of this name; no other is of the same service."""
    values = (binding.name, binding.remote_service_name, binding.remote_principal, binding.is_anonymous_on)
    db.execute(_put("remote_service_binding", _BINDING_COLUMNS), values)


def _binding(row: tuple[str, str, str, int]) -> RemoteServiceBinding:
    return RemoteServiceBinding(*row[:3], bool(row[3]))


# --- all of them ---

_USERS = {  # names of what names an object, and keeps it from being dropped: by both kinds
    ("queue", "service"): "SELECT s.name FROM broker_queue q JOIN broker_service s USING (queue_id) WHERE q.name = ?",
    ("message type", "contract"): (
        "SELECT c.name FROM broker_message_type t JOIN broker_contract_message_type u USING (message_type_id)"
        " JOIN broker_contract c USING (contract_id) WHERE t.name = ?"
    ),
    ("contract", "service"): "SELECT s.name FROM broker_service s, json_each(s.contracts) j WHERE j.value = ?",
    ("contract", "priority"): "SELECT name FROM broker_priority WHERE contract_name = ?",
    ("service", "priority"): "SELECT name FROM broker_priority WHERE local_service_name = ?",
}


def find_user(db: sqlite3.Connection, kind: str, name: str, by: str) -> str | None:
    """The first name of what names this object, of the kind `by`."""
    return _first(db, itemgetter(0), f"{_USERS[kind, by]} ORDER BY 1", name)


def drop(db: sqlite3.Connection, table: str, name: str) -> None:
    """Remove an object of this name that has no other rows; conversations keep a priority that they have."""
    db.execute(f"DELETE FROM broker_{table} WHERE name = ?", (name,))  # noqa: S608 - names that callers list


def _put(table: str, columns: str, *, key: str = "name") -> str:
    """SQL that makes a row of this key, whose columns come first, or changes the other columns of the one there is."""
    marks = ", ".join("?" for _ in f"{key}, {columns}".split(", "))
    changes = ", ".join(f"{column} = excluded.{column}" for column in columns.split(", "))
    return (
        f"INSERT INTO broker_{table} ({key}, {columns}) VALUES ({marks})"  # noqa: S608 - names of this module
        f" ON CONFLICT ({key}) DO UPDATE SET {changes}"
    )


def _first(db: sqlite3.Connection, make: Callable[[Any], _T], query: str, *parameters: object) -> _T | None:
    """What is made of the first row that a query finds."""
    row = db.execute(query, parameters).fetchone()
    return None if row is None else make(row)
