"""What the load generator is given to send."""

from __future__ import annotations

from collections import Counter

from broker.bench.generator import FRAMES_A_CONNECTION, SET_BYTES, STAMP_BYTES, frames, service_names, traffic
from broker.protocol.decoder import FrameDecoder
from broker.protocol.frame import Hello, decode_dialog, decode_link
from broker.protocol.layout import MAX_FRAME


def test_every_service_gets_equally_many_frames_of_one_length() -> None:
    services = service_names(7)

    made = traffic(services, 64, connections=1, listeners=1)
    whole = FrameDecoder(MAX_FRAME).feed(made.frames)

    headers = [decode_dialog(frame)[0] for frame in whole]
    assert {made.frame_bytes} == {len(frame) for frame in whole}
    assert dict.fromkeys(services, len(whole) // 7) == Counter(header.to_service for header in headers)


def test_no_frame_is_a_copy_of_another() -> None:
    whole = FrameDecoder(MAX_FRAME).feed(traffic(service_names(3), 64, connections=2, listeners=1).frames)

    headers = [decode_dialog(frame)[0] for frame in whole]

    assert len(whole) == len({(header.conversation_id, header.sequence_number) for header in headers})
    assert len(whole) == len({header.message_id for header in headers})


def test_the_stamp_lies_in_the_body() -> None:
    made = traffic(service_names(1), STAMP_BYTES, connections=1, listeners=1)

    _, body = decode_dialog(made.frames[: made.frame_bytes])

    assert made.frames[made.stamp_at : made.frame_bytes] == body


def test_there_is_enough_for_every_connection_and_for_the_smallest_set() -> None:
    large = traffic(service_names(1), 256 * 1024, connections=5, listeners=1)
    small = traffic(service_names(1), 64, connections=1, listeners=1)

    assert 5 * FRAMES_A_CONNECTION * large.frame_bytes == len(large.frames)
    assert SET_BYTES - small.frame_bytes < len(small.frames) <= SET_BYTES


def test_every_connection_says_hello_as_somebody_else() -> None:
    made = traffic(service_names(1), 64, connections=2, listeners=3)

    said = [decode_link(frame) for frame in FrameDecoder(MAX_FRAME).feed(made.greetings)]

    assert made.greeting_bytes * 5 == len(made.greetings)
    assert 5 == len({hello.instance for hello in said if isinstance(hello, Hello)})


def test_so_many_frames_as_asked_for() -> None:
    assert 10 == len(FrameDecoder(MAX_FRAME).feed(frames(service_names(3), 16, count=10)))
