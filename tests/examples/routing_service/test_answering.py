"""The handler on a queue: every request is answered once, refused with a reason, or stays until it can be answered."""

import sqlite3
import time
import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from broker.ddl.statements import CreateRoute
from broker.dialog.route_requests import CONTRACT, MISSING_ROUTE, Inquiry, render_inquiry
from broker.routing.route import BROKER_CONFIGURATION, RouteProperties
from examples.routing_service.answering import MISSING_BINDING, Answerer, parse_inquiry
from examples.routing_service.requester import Requesters
from tests.support.dialog import QUEUE, FarSide, far_initiator, open_database, receive_frames, rows

INSTANCE = uuid.UUID("5b0f3c1e-5d5e-4f0b-8a55-0e9b0b9c2f11")
ROUTE = CreateRoute("found", RouteProperties(service_name="Orders", lifetime=60, address="tcp://a:4022"))


class Known:
    """A source that knows Orders."""

    def find(self, inquiry: Inquiry) -> Sequence[CreateRoute]:
        return [ROUTE] if inquiry.service_name == "Orders" else []


class Directory:
    """A database with the service that is asked, and an answerer on its queue."""

    def __init__(self, path: Path, socket: Path, *sources: Any) -> None:
        self.db = open_database(path, BROKER_CONFIGURATION)
        self.application = sqlite3.connect(path)
        self.answerer = Answerer(self.application, QUEUE, sources=sources or [Known()], requesters=Requesters([socket]))

    def ask(
        self, body: bytes | str = "Orders", *, kind: str = MISSING_ROUTE, instance: uuid.UUID = INSTANCE
    ) -> FarSide:
        """A request arrives."""
        asker = far_initiator(BROKER_CONFIGURATION, broker_instance=instance.bytes)
        asker.envelope = msgspec.structs.replace(asker.envelope, type=kind, contract=CONTRACT)
        self.arrive(asker.message(0, render_inquiry(Inquiry(body)) if isinstance(body, str) else body))
        return asker

    def arrive(self, *frames: bytes) -> None:
        receive_frames(self.db, list(frames), time.time())

    def answers(self) -> list[tuple[str, bytes]]:
        query = "SELECT message_type_name, message_body FROM broker_transmission ORDER BY transmission_id"
        return [(kind.rpartition("/")[2], body) for kind, body in rows(self.db, query)]

    def waiting(self) -> int:
        return len(rows(self.db, "SELECT 1 FROM broker_message"))

    def close(self) -> None:
        self.application.close()
        self.db.close()


@pytest.fixture
def directory(tmp_path: Path, socket: Path, requesting: Any) -> Iterator[Directory]:
    directory = Directory(tmp_path / "directory.db", socket)
    yield directory
    directory.close()


@pytest.mark.parametrize(
    ("request_", "code", "why"),
    [
        ({"body": b"<poison"}, 9615, "cannot be read"),
        ({"body": b"\xff" * 10}, 9615, "cannot be read"),
        ({"kind": "unheard-of"}, 9615, "not supported"),
        ({"kind": MISSING_BINDING}, 9615, "remote service bindings are not supported"),
        ({"body": "//unknown"}, 9750, "no route to"),
        ({"body": "//unknown", "kind": MISSING_ROUTE.replace("http:", "https:")}, 9750, "no route to"),
        ({"instance": uuid.UUID(int=9)}, 9795, "no instance"),
    ],
)
def test_what_cannot_be_answered_is_refused_with_the_reason(
    directory: Directory, request_: dict[str, Any], code: int, why: str
) -> None:
    directory.ask(**request_)

    assert 0 == directory.answerer.answer_waiting()

    ((kind, body),) = directory.answers()
    assert "Error" == kind
    assert f"<Code>{code}</Code>" in body.decode()
    assert why in body.decode()
    assert (0, 1) == (directory.waiting(), directory.answerer.refused)


def test_a_request_whose_instance_is_silent_waits_and_others_do_not(directory: Directory, requesting: Any) -> None:
    requesting.is_up = False
    directory.ask()
    directory.ask(b"<poison")

    left = directory.answerer.answer_waiting()
    requesting.is_up = True

    assert (1, 1) == (left, directory.waiting())
    assert 0 == directory.answerer.answer_waiting()
    assert ["Error", "EndDialog"] == [kind for kind, _ in directory.answers()]


@pytest.mark.parametrize("scheme", ["http:", "https:"])
def test_a_request_is_answered_by_a_route_and_the_end_once(directory: Directory, requesting: Any, scheme: str) -> None:
    asker = directory.ask(kind=MISSING_ROUTE.replace("http:", scheme))
    directory.arrive(asker.message(1, render_inquiry(Inquiry("Orders"))))

    assert 0 == directory.answerer.answer_waiting()

    assert {"shop"} == {database for _, database in requesting.scripts}
    assert [("EndDialog", b"")] == directory.answers()
    assert 0 == directory.waiting()


@pytest.mark.parametrize("inquiry", [Inquiry(" <a> \r"), Inquiry("Orders", uuid.UUID(int=7))])
def test_a_request_is_read_as_it_was_written(inquiry: Inquiry) -> None:
    assert inquiry == parse_inquiry(render_inquiry(inquiry))


@pytest.mark.parametrize(
    ("body", "why"),
    [
        (f"<Other xmlns='{MISSING_ROUTE}'/>".encode(), "not MissingRoute"),
        (f"<MissingRoute xmlns='{MISSING_ROUTE}'/>".encode(), "no SERVICE_NAME"),
        (
            f"<MissingRoute xmlns='{MISSING_ROUTE}'><SERVICE_NAME>a</SERVICE_NAME><BROKER_INSTANCE>b</BROKER_INSTANCE>"
            "</MissingRoute>".encode(),
            "hexadecimal",
        ),
        (b"<poison", "not XML"),
    ],
)
def test_what_asks_for_nothing_is_refused(body: bytes, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        parse_inquiry(body)
