"""Examples are answered as an instance answers, and leave nothing behind."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from broker.errors import ConversationError, StatementError
from broker.observe.message_catalogue import MessageChannel
from tools.pages.example import Example


@pytest.fixture(scope="module")
def example(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Example]:
    with Example(tmp_path_factory.mktemp("example")) as example:
        yield example


@pytest.mark.parametrize(
    ("place", "text", "number"),
    [
        (MessageChannel.STATEMENT, "DROP ROUTE Nowhere", 15151),
        (MessageChannel.SELECT, "SELECT nothing FROM sys.routes", 207),
        (MessageChannel.APPLICATION, "broker.receive(db, queue='Nowhere')", 208),
    ],
)
def test_an_example_is_answered_with_its_number(
    example: Example, place: MessageChannel, text: str, number: int
) -> None:
    error = example.told(place, text)

    assert isinstance(error, StatementError | ConversationError)
    assert number == error.number


def test_what_a_program_did_before_its_error_is_forgotten(example: Example) -> None:
    begin = "dialog = broker.begin_dialog(db, from_service='//shop/Orders', to_service='//far')\n"
    example.told(MessageChannel.APPLICATION, begin + "dialog.send(None)")

    count = "assert db.execute('SELECT count(*) FROM broker_conversation').fetchone() == (0,)\n"
    error = example.told(MessageChannel.APPLICATION, count + "broker.receive(db, queue='')")

    assert isinstance(error, ConversationError)
