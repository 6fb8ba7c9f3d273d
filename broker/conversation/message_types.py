"""
Rules of contracts for message types, and the message types that every database has. Pure.

Only declared contracts and types are checked: a contract that a database does not know lets every type pass. Bodies are
checked in `body_check`. Built-in types and contracts can neither be created nor altered nor dropped. Their numbers are
below those of types and contracts that statements create, and DEFAULT has the original's.

Sources: Service Broker documentation, "CREATE MESSAGE TYPE", "CREATE CONTRACT", "Broker System Messages", "Service
Broker Dynamic Routing"; the numbers are those of the engine's message catalogue.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from enum import StrEnum
from typing import NamedTuple

DEFAULT_LIFETIME = timedelta(days=7)  # the original's 68 years make leaks invisible
LIFETIME_MAX = 2**31 - 1  # seconds; what the original's type holds
ERROR_PRIORITY, TIMER_PRIORITY = 11, 12  # in the queue: an error is read before all but a timer

_SCHEMAS = "http://schemas.microsoft.com/SQL/ServiceBroker"
_NOTICE = f"{_SCHEMAS}/BrokerConfigurationNotice"
DEFAULT = "DEFAULT"  # the message type and the contract that exist everywhere
END_DIALOG = f"{_SCHEMAS}/EndDialog"
ERROR = f"{_SCHEMAS}/Error"
DIALOG_TIMER = f"{_SCHEMAS}/DialogTimer"

# --- what contracts and message types declare ---


class Validation(StrEnum):
    """VALIDATION = ... of a message type."""

    NONE = "NONE"
    EMPTY = "EMPTY"
    WELL_FORMED_XML = "WELL_FORMED_XML"
    JSON = "JSON"


class SentBy(StrEnum):
    """SENT BY ... of a message type in a contract."""

    INITIATOR = "INITIATOR"
    TARGET = "TARGET"
    ANY = "ANY"


class BuiltInType(NamedTuple):
    """A message type of every database; its number is below 65536."""

    message_type_id: int
    name: str
    validation: Validation


class BuiltInContract(NamedTuple):
    """A contract of every database; its number is below 65536."""

    service_contract_id: int
    name: str
    message_types: Mapping[int, SentBy]  # by message_type_id


MESSAGE_TYPES = (
    BuiltInType(1, ERROR, Validation.WELL_FORMED_XML),
    BuiltInType(2, END_DIALOG, Validation.EMPTY),
    BuiltInType(3, DIALOG_TIMER, Validation.EMPTY),
    BuiltInType(4, f"{_NOTICE}/MissingRoute", Validation.WELL_FORMED_XML),
    BuiltInType(5, f"{_NOTICE}/MissingRemoteServiceBinding", Validation.WELL_FORMED_XML),
    BuiltInType(14, DEFAULT, Validation.NONE),
)
CONTRACTS = (
    BuiltInContract(4, _NOTICE, {4: SentBy.INITIATOR, 5: SentBy.INITIATOR}),
    BuiltInContract(6, DEFAULT, {14: SentBy.ANY}),
)
MESSAGE_TYPE_NAMES = frozenset(one.name for one in MESSAGE_TYPES)
CONTRACT_NAMES = frozenset(one.name for one in CONTRACTS)


class Refusal(NamedTuple):
    """Why a message is refused; the original's number, negated, is the code of a FAULT and of an Error message."""

    number: int
    problem: str


class Rule(NamedTuple):
    """The rule of a declared contract for one message type."""

    message_type: str
    sent_by: SentBy | None  # None: it is not part of the contract
    validation: Validation = Validation.NONE
    is_declared: bool = True  # False: there is no such type

    def refusal_to_send(self, *, is_initiator: bool) -> Refusal | None:
        """Why this side must not send it, body aside."""
        what = f"the message type {self.message_type!r} is"
        if not self.is_declared:
            return Refusal(8428, f"{what} not found")
        if self.sent_by is None:
            return Refusal(8431, f"{what} not part of the service contract")
        if is_initiator and self.sent_by is SentBy.TARGET:
            return Refusal(8432, f"{what} marked SENT BY TARGET in the contract; this side is the initiator")
        if not is_initiator and self.sent_by is SentBy.INITIATOR:
            return Refusal(8434, f"{what} marked SENT BY INITIATOR in the contract; this side is the target")
        return None

    def refusal_of_arrival(self, *, is_from_initiator: bool) -> Refusal | None:
        """Why what the far side sent must not be accepted, body aside."""
        what = f"the message type {self.message_type!r}"
        if not self.is_declared:
            return Refusal(8428, f"{what} is not found")
        if self.sent_by is None:
            return Refusal(8498, f"{what} is not part of the contract there")
        if is_from_initiator and self.sent_by is SentBy.TARGET:
            return Refusal(8457, f"the initiator has sent {what}, which the contract marks SENT BY TARGET")
        if not is_from_initiator and self.sent_by is SentBy.INITIATOR:
            return Refusal(8437, f"the target has sent {what}, which the contract marks SENT BY INITIATOR")
        return None

    def invalid(self, problem: str | None) -> Refusal | None:
        """The refusal for a violation that a `Validator` has found; None where it has found none."""
        if problem is None:
            return None
        number = 9616 if self.validation is Validation.WELL_FORMED_XML else 8430
        return Refusal(number, f"the body of the message type {self.message_type!r} failed validation: {problem}")
