"""Whole conversations made by a grammar, against a live daemon; for longer by `make fuzz`."""

from collections.abc import Iterator

import pytest

from broker.protocol.frame import Fatal, Hello, Pong, encode_dialog, encode_link
from tests.fuzz.converse import Heard, Stage, WrongAnswerError, judge
from tests.fuzz.spoken import MALFORMED, Line, Script
from tests.support.forwarding import PLAIN

WARM, CONVERSATIONS = 100, 200
GROWTH_MAX = 16 * 1024 * 1024
HELLO = encode_link(Hello(name="here"))


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    with Stage(tmp_path_factory.mktemp("stage")) as stage:
        yield stage


def test_daemon_lives_and_its_neighbour_goes_on_whatever_strangers_say(stage: Stage) -> None:
    """Every refusal is the documented one, what the neighbour sends comes once and in order, and memory stays."""
    stage.converse(range(WARM))
    before = stage.rss

    stage.converse(range(WARM, WARM + CONVERSATIONS))
    stage.steady.goes_on(5)
    stage.check()

    assert stage.rss - before < GROWTH_MAX
    assert WARM + CONVERSATIONS == stage.told["conversations"]
    answers = {"FATAL 28034", "FATAL 28041", "FATAL 28042", "FATAL 28043", "heard kind 0x11", "REJECTED 9795"}
    assert not answers - stage.told.keys(), "the grammar has lost what it was made for"


# --- the judge itself ---

ENDING = Line(0, b"", frozenset({MALFORMED}), is_last=True)
OPEN = Line(0, b"")


def script(line: Line, **more: object) -> Script:
    return Script("tcp://127.2.0.1:9", [line], {0: [b"12345678"]}, **more)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("line", "heard", "problem"),
    [
        (OPEN, encode_link(Pong(b"12345678")), "HELLO does not come first"),
        (OPEN, HELLO, "a PING without its PONG"),
        (OPEN, HELLO + encode_link(Pong(b"87654321")), "PONG without its PING"),
        (OPEN, HELLO + encode_link(Fatal(MALFORMED)), "what was said allows"),
        (ENDING, HELLO, "was due"),
        (ENDING, HELLO + encode_link(Fatal(MALFORMED)) + encode_link(Pong(b"12345678")), "something follows FATAL"),
        (OPEN, HELLO + encode_dialog(PLAIN), "a dialog of nobody"),
    ],
)
def test_an_answer_that_is_not_documented_is_found(line: Line, heard: bytes, problem: str) -> None:
    with pytest.raises(WrongAnswerError, match=problem):
        judge(script(line), {0: Heard(bytearray(heard))})
