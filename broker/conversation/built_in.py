"""
The message types and contracts that every database has without any statement. Pure.

They are shown by the views, and can neither be made nor altered nor dropped. The numbers are below those of what
statements make; DEFAULT has the original's.

Source: Service Broker documentation, "Broker System Messages", "CREATE CONTRACT", "Service Broker Dynamic Routing".
"""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct

from broker.conversation.validation import SentBy, Validation
from broker.conversation.well_known import DEFAULT, DIALOG_TIMER, END_DIALOG, ERROR

_SCHEMAS = "http://schemas.microsoft.com/SQL/ServiceBroker"
_NOTICE = f"{_SCHEMAS}/BrokerConfigurationNotice"


class BuiltInType(Struct, frozen=True):
    """Shape: `message_type_id` below 65536."""

    message_type_id: int
    name: str
    validation: Validation


class BuiltInContract(Struct, frozen=True):
    """Shape: `service_contract_id` below 65536; `message_types` their numbers."""

    service_contract_id: int
    name: str
    message_types: Mapping[int, SentBy]


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
