"""
A request for a route: the names that both sides know, and the message that asks. Pure.

A database asks in the name of the service `SERVICE_BROKER`, which every database of the original has; it asks the
service `BROKER_CONFIGURATION`, wherever the route to it leads. There is no answer but the end of the dialog: who is
asked has made the route by then, or says with an error why not.

Source: Service Broker documentation, "Service Broker Dynamic Routing", "Broker Configuration Notice Service".
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass

from broker.dialog.flat_xml import FlatXml, parse_flat_xml, render_flat_xml

QUEUE = "ServiceBrokerQueue"  # where answers to requests arrive, in the database that asked
CONTRACT = "http://schemas.microsoft.com/SQL/ServiceBroker/BrokerConfigurationNotice"
MISSING_ROUTE = f"{CONTRACT}/MissingRoute"
MISSING_BINDING = f"{CONTRACT}/MissingRemoteServiceBinding"  # the other request of the contract

_GROUPS = uuid.UUID("bef0c593-c142-44e5-a649-034cbdfa2741")  # any, and never another


@dataclass(frozen=True, slots=True)
class Inquiry:
    """
    What is asked: a route to this service.

    Shape: `broker_instance` what the conversation that waits has named, None when any will do.
    """

    service_name: str
    broker_instance: uuid.UUID | None = None


def group_of(service_name: str) -> bytes:
    """
    The conversation group of every request for this service.

    By it a request is found again after a restart, when its message has long been acknowledged and is gone.
    """
    return uuid.uuid5(_GROUPS, service_name).bytes


def render_inquiry(inquiry: Inquiry) -> bytes:
    """The body of MissingRoute; the service name is one that XML can hold."""
    texts = {"SERVICE_NAME": inquiry.service_name}
    if inquiry.broker_instance is not None:
        texts["BROKER_INSTANCE"] = str(inquiry.broker_instance).upper()
    return render_flat_xml(FlatXml("MissingRoute", MISSING_ROUTE, texts))


def parse_inquiry(body: bytes) -> Inquiry:
    """
    What a body of MissingRoute asks for.

    Raises:
        ValueError: it is no such document, names no service, or a broker instance that is no GUID.
    """
    document = parse_flat_xml(body)
    if (document.name, document.namespace) != ("MissingRoute", MISSING_ROUTE):
        raise ValueError(f"the document is {document.name!r} of {document.namespace!r}, not MissingRoute")
    service_name = document.texts.get("SERVICE_NAME", "")
    if not service_name:
        raise ValueError("it has no SERVICE_NAME")
    instance = document.texts.get("BROKER_INSTANCE", "").strip()
    return Inquiry(service_name, uuid.UUID(instance) if instance else None)


def type_of(message_type: str) -> str:
    """A message type in its `http` form: the documentation of the original has both."""
    return "http:" + message_type.removeprefix("https:") if message_type.startswith("https:") else message_type
