"""What a request says: the documented XML, read back as it was, and refused when it says nothing."""

from __future__ import annotations

import uuid

import pytest

from broker.dialog.route_requests import (
    CONTRACT,
    MISSING_ROUTE,
    Inquiry,
    group_of,
    parse_inquiry,
    render_inquiry,
    type_of,
)

INSTANCE = uuid.UUID("5b0f3c1e-5d5e-4f0b-8a55-0e9b0b9c2f11")


def test_the_body_is_the_documented_one() -> None:
    assert render_inquiry(Inquiry("//a?b&c")) == (
        b'<MissingRoute xmlns="http://schemas.microsoft.com/SQL/ServiceBroker/BrokerConfigurationNotice/MissingRoute">'
        b"<SERVICE_NAME>//a?b&amp;c</SERVICE_NAME></MissingRoute>"
    )


@pytest.mark.parametrize("inquiry", [Inquiry(" <a> \r"), Inquiry("Orders", INSTANCE)])
def test_a_request_is_read_as_it_was_written(inquiry: Inquiry) -> None:
    assert inquiry == parse_inquiry(render_inquiry(inquiry))


def test_requests_for_one_service_are_one_group_whatever_instance_they_name() -> None:
    assert group_of("Orders") == group_of("Orders")
    assert group_of("Orders") != group_of("orders")
    assert 16 == len(group_of("Orders"))


@pytest.mark.parametrize(
    ("body", "why"),
    [
        (b"<MissingRoute/>", "not MissingRoute"),
        (f"<Other xmlns='{MISSING_ROUTE}'/>".encode(), "not MissingRoute"),
        (f"<MissingRoute xmlns='{MISSING_ROUTE}'/>".encode(), "no SERVICE_NAME"),
        (
            f"<MissingRoute xmlns='{MISSING_ROUTE}'><SERVICE_NAME>a</SERVICE_NAME><BROKER_INSTANCE>b</BROKER_INSTANCE>"
            "</MissingRoute>".encode(),
            "hexadecimal",
        ),
        (b"<poison", "no XML"),
    ],
)
def test_what_asks_for_nothing_is_refused(body: bytes, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        parse_inquiry(body)


def test_both_spellings_of_a_message_type_are_one() -> None:
    assert MISSING_ROUTE == type_of(MISSING_ROUTE.replace("http:", "https:"))
    assert CONTRACT == type_of(CONTRACT)
