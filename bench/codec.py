"""
What it costs to turn a frame into bytes and back, in CPU microseconds a frame: what the two ends of a dialog pay, and
a gateway does not; and to seal it and open it again, in the steady state of a dialog, once both sides have the key.

The yardstick is the one `struct` call without which the fields of a header do not become bytes at all.
"""

import os
import time
from collections.abc import Callable
from functools import partial
from uuid import uuid4

from bench.figures import Row, row_of
from broker.protocol.decoder import FrameDecoder
from broker.protocol.frame import Header, decode_dialog, encode_dialog
from broker.protocol.layout import HEADER, MAX_FRAME, Flag, FrameKind
from broker.security.seal import ECHO_BYTES, NO_ECHO, Box, Direction, frame_key, open_frame, read_box
from broker.security.secured import Mode, Secured
from broker.security.session import DialogCredentials, Sealer

PAYLOADS = (64, 256, 1024, 16 * 1024, 256 * 1024)
REPEATS = 7
ROUND_SECONDS = 0.02
YARDSTICK = "struct.pack"
SECRET = bytes(range(32))  # of a dialog that exists here only


def measure(payloads: tuple[int, ...] = PAYLOADS, *, round_seconds: float = ROUND_SECONDS) -> list[Row]:
    """One row for each size and direction, and the yardstick of each."""
    rows = []
    for payload in payloads:
        header = _header()
        body = os.urandom(payload)
        frame = encode_dialog(header, body)
        fields = HEADER.unpack_from(frame)
        decoder = FrameDecoder(MAX_FRAME)
        subjects: dict[str, dict[str, Callable[[], object]]] = {
            "encode": {"header and body": partial(encode_dialog, header, body)},
            "decode": {"header and body": partial(decode_dialog, frame), "split only": partial(decoder.feed, frame)},
            "seal": {"header and box": _sealing(body)},
            "open": {"box": _opening(body)},
        }
        for mode, calls in subjects.items():
            pack: dict[str, Callable[[], object]] = {YARDSTICK: partial(HEADER.pack, *fields)}
            rows += _rows(f"{payload:,} B payload", mode, pack | calls, round_seconds)
    return rows


def _header() -> Header:
    return Header(
        kind=int(FrameKind.MESSAGE),
        flags=int(Flag.LAST_FRAGMENT),
        message_id=uuid4().bytes,
        conversation_id=uuid4().bytes,
        to_service="//bench/service-000000",
        from_service="//bench/initiator",
        from_broker_instance=uuid4().bytes,
        to_broker_instance=uuid4().bytes,
        sequence_number=1,
    )


def _sealing(body: bytes) -> Callable[[], bytes]:
    """A side of an anonymous dialog whose key has arrived."""
    header = _header()
    header.flags |= int(Flag.SEALED)
    now = time.time()
    direction = _direction(header)
    sealer = Sealer(Secured(Mode.ANONYMOUS, secret=SECRET), direction, DialogCredentials(), os.urandom)
    _, box = decode_dialog(sealer.seal(header, body, now))
    sealer.heard(read_box(box).key_id[:ECHO_BYTES], os.urandom(16))
    return partial(sealer.seal, header, body, now)


def _opening(body: bytes) -> Callable[[], bytes]:
    """The same, for a key that is known."""
    frame = _sealing(body)()
    header, content = decode_dialog(frame)
    box: Box = read_box(content)
    assert box.echo != NO_ECHO
    return partial(open_frame, frame_key(SECRET, _direction(header), box.key_id), box, frame, len(frame) - len(content))


def _direction(header: Header) -> Direction:
    names = header.to_service, header.from_service, header.from_broker_instance
    return Direction(header.conversation_id, True, *names)


def _rows(case: str, mode: str, calls: dict[str, Callable[[], object]], round_seconds: float) -> list[Row]:
    """Rounds in turn, so that all see the same weather."""
    counts = {name: _calls_in(call, round_seconds) for name, call in calls.items()}
    samples: dict[str, list[dict[str, float]]] = {name: [] for name in calls}
    for _ in range(REPEATS):
        for name, call in calls.items():
            samples[name].append({"cpu_us": _cpu_us(call, counts[name])})
    return [
        row_of(("codec", case, mode, name), "cpu_us", taken, yardstick=YARDSTICK) for name, taken in samples.items()
    ]


def _calls_in(call: Callable[[], object], seconds: float) -> int:
    count = 1
    while _cpu_us(call, count) * count < seconds * 1e6:
        count *= 2
    return count


def _cpu_us(call: Callable[[], object], count: int) -> float:
    begun = time.process_time()
    for _ in range(count):
        call()
    return (time.process_time() - begun) / count * 1e6
