"""
What attributes of spans are called: the names of OpenTelemetry where it has one, ours below `broker.`.

Source: OpenTelemetry semantic conventions 1.37, "Messaging spans" and "Messaging attributes".
"""

from __future__ import annotations

SYSTEM = "messaging.system"
OPERATION_NAME = "messaging.operation.name"
OPERATION_TYPE = "messaging.operation.type"
DESTINATION = "messaging.destination.name"
MESSAGE_ID = "messaging.message.id"
CONVERSATION_ID = "messaging.message.conversation_id"
ENVELOPE_SIZE = "messaging.message.envelope.size"  # bytes of the whole frame
ERROR_TYPE = "error.type"  # of what was dropped: its disposition

SERVICE_NAME = "service.name"  # of the resource
SERVICE_VERSION = "service.version"
SERVICE_INSTANCE = "service.instance.id"

FROM_SERVICE = "broker.from_service"
FROM_TARGET = "broker.from_target"
SEQUENCE_NUMBER = "broker.message_sequence_number"
FRAGMENT_NUMBER = "broker.fragment_number"
HOP_COUNT = "broker.hop_count"
OUTCOME = "broker.outcome"  # as in the journal
ROUTE = "broker.route"
ADJACENT_IN = "broker.adjacent_in"
ADJACENT_OUT = "broker.adjacent_out"

SYSTEM_NAME = "sbrk"
TYPES = {"send": "send", "deliver": "receive"}  # the conventions have none for `forward`
