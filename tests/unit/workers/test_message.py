"""Questions and answers are values that survive the way between two processes."""

from __future__ import annotations

import pickle
from uuid import UUID

import msgspec
import pytest

from broker.control.load import load_settings
from broker.routing.address import NetworkAddress
from broker.routing.route import MirroredPair
from broker.workers.message import (
    Answered,
    Asked,
    Begin,
    Load,
    PairKnown,
    Passed,
    Question,
    Reached,
    Report,
    Rows,
    WorkerReport,
    pack_settings,
    unpack_settings,
)

FAR = NetworkAddress("far", 4022)


@pytest.mark.parametrize("question", [Begin(b"s", b"i" * 16), Load(), Report(), Rows("sys.v"), Passed()])
def test_question_arrives_as_it_was_asked(question: Question) -> None:
    packed = msgspec.msgpack.encode(Asked(7, question))

    assert msgspec.msgpack.decode(packed, type=Asked) == Asked(7, question)


def test_report_arrives_as_it_was_told() -> None:
    report = WorkerReport(
        status={"name": "g", "forwarding": {"held": 1}},
        samples={"broker_connections": [(("peer", "in", "LOGGED_IN"), 2.0)]},
        down=[FAR],
        reached=[Reached(FAR, "SUPPRESSED", "Connection refused")],
        addresses=["tcp://g:4022"],
        own=[NetworkAddress("g", 4022)],
        pairs=[PairKnown(MirroredPair("//s", UUID(int=1), FAR, NetworkAddress("near", 4022)), FAR, 3, "far says so")],
    )

    packed = msgspec.msgpack.encode(report)

    assert msgspec.msgpack.decode(packed, type=WorkerReport) == report


def test_answer_without_a_value_is_nothing() -> None:
    answered = msgspec.msgpack.decode(msgspec.msgpack.encode(Answered(1)), type=Answered)

    assert (msgspec.msgpack.decode(answered.answer), answered.problem) == (None, "")


def test_settings_arrive_as_they_are() -> None:
    settings = load_settings(None, environ={"BROKER_ENDPOINT__MAX_HOPS": "3", "BROKER_ENDPOINT__HEARTBEAT": "1s"})

    assert unpack_settings(pack_settings(settings)) == settings


def test_what_is_no_settings_is_refused() -> None:
    with pytest.raises(TypeError, match="list instead of settings"):
        unpack_settings(pickle.dumps([]))
