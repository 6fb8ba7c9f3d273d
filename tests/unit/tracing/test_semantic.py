"""Attributes are called as OpenTelemetry calls them, where it does."""

from __future__ import annotations

from opentelemetry.semconv._incubating.attributes import messaging_attributes as messaging
from opentelemetry.semconv.attributes import error_attributes, service_attributes

from broker.journal import spans as semantic


def test_names_are_those_of_the_conventions() -> None:
    ours = (
        semantic.SYSTEM,
        semantic.OPERATION_NAME,
        semantic.OPERATION_TYPE,
        semantic.DESTINATION,
        semantic.MESSAGE_ID,
        semantic.CONVERSATION_ID,
        semantic.ENVELOPE_SIZE,
        semantic.ERROR_TYPE,
        semantic.SERVICE_NAME,
        semantic.SERVICE_VERSION,
    )

    assert (
        messaging.MESSAGING_SYSTEM,
        messaging.MESSAGING_OPERATION_NAME,
        messaging.MESSAGING_OPERATION_TYPE,
        messaging.MESSAGING_DESTINATION_NAME,
        messaging.MESSAGING_MESSAGE_ID,
        messaging.MESSAGING_MESSAGE_CONVERSATION_ID,
        messaging.MESSAGING_MESSAGE_ENVELOPE_SIZE,
        error_attributes.ERROR_TYPE,
        service_attributes.SERVICE_NAME,
        service_attributes.SERVICE_VERSION,
    ) == ours


def test_types_of_operations_are_those_of_the_conventions() -> None:
    known = {one.value for one in messaging.MessagingOperationTypeValues}

    assert set(semantic.TYPES.values()) <= known


def test_the_rest_is_below_our_own_name() -> None:
    named = {name: value for name, value in vars(semantic).items() if name.isupper() and isinstance(value, str)}
    own = {value for value in named.values() if value.startswith("broker.")}

    assert 9 == len(own)
