"""
What the walk of a kernel costs for each frame, without the sockets around it: both kernels, few and many destinations.

Every destination has a way of its own, in turn at four sinks, whose runs are joined for one write as an outbox does;
frames come in an order that a hash decides, 256 KiB at a time. CPU time of this process, median of rounds that the
kernels take in turn, so that both see the same weather. The same with a ring that records no dialog or every one; what
was recorded is taken when half the ring is full, and that is part of the cost. And with one that has no room, so that
every record is shed, as nearly all are in a flood. Where the weather is bad, count instructions instead, without a ring
("none"), with one of that sample, or with one that is full ("shed"):

    for rounds in 2 12; do
        valgrind --tool=callgrind --callgrind-out-file=/dev/null python -m bench.kernel compiled 1000 $rounds none
    done

and divide the difference of the two totals by ten times the frames of a round, which the program prints.
"""

import sys
import time
from hashlib import sha256
from statistics import median

from broker.flow import Disposition
from broker.forwarding.entry import Buffer, EntryOf, ForwardingEntry, FrameOrigin, UnknownOrigin
from broker.forwarding.kernels import KERNELS
from broker.forwarding.ring import Ring
from broker.forwarding.slow_path import SlowPath
from broker.protocol.frame import Header, encode_dialog
from broker.protocol.layout import NO_GUID, FrameKind

PAYLOAD = 256
DESTINATIONS = (1, 1000, 100_000)
SINKS = 4
FRAMES_MIN = 20_000  # of a round
READ_BYTES = 256 * 1024
RING_BYTES = 1024 * 1024
RINGS = {"none": None, "0": (RING_BYTES, 0.0), "1": (RING_BYTES, 1.0), "shed": (0, 1.0)}  # capacity and sample
RINGS_TOLD = {"none": "", "0": ", ring of sample 0", "1": ", ring of sample 1", "shed": ", ring that is full"}
ROUNDS = 9
NOBODY = UnknownOrigin()


class Sink:
    """Joins its runs for one write, and does not write."""

    def __init__(self) -> None:
        self.runs: list[Buffer] = []

    def flush(self, _now: float, _origin: FrameOrigin, _way_of: EntryOf) -> None:
        """Like an outbox that has a link."""
        data = self.runs[0] if len(self.runs) == 1 else b"".join(self.runs)
        assert data
        self.runs.clear()

    def recover(self, _now: float, _origin: FrameOrigin, _way_of: EntryOf) -> None:
        """Nothing fails here."""
        raise AssertionError


class Track:
    """One kernel that knows its destinations, and the reads that it walks round after round."""

    def __init__(self, kernel: type[SlowPath], reads: list[bytes], ring: tuple[int, float] | None) -> None:
        self._sinks = [Sink() for _ in range(SINKS)]
        self._ring = None if ring is None else Ring(ring[0], sample=ring[1])
        self._kernel = kernel(
            max_frame=1 << 20, max_hops=255, resolve=self._resolve, drop_way=self._drop, ring=self._ring
        )
        self._reads = reads
        self._slab = bytearray(2 * READ_BYTES)
        self.round()

    def round(self) -> float:
        """Walk every read once; CPU seconds of the walks and what follows them, without the copy into the slab."""
        spent = 0.0
        for read in self._reads:
            self._slab[: len(read)] = read
            begun = time.process_time()
            if self._ring is not None:
                self._ring.begin(0.0, NOBODY, is_from_here=False)
            left = len(read)
            while left:  # more than once only while the ways are new: a walk takes care of so many and no more
                batch = self._kernel.walk(self._slab, left)
                for sink in batch.touched:
                    sink.flush(0.0, NOBODY, self._kernel.entry_of)
                self._slab[: left - batch.consumed] = self._slab[batch.consumed : left]
                left -= batch.consumed
            if self._ring is not None and self._ring.used > RING_BYTES // 2:
                self._ring.take()
            spent += time.process_time() - begun
            assert self._ring is None or bool(self._ring.shed) != bool(self._ring.buffer)
        return spent

    def _resolve(
        self,
        key: bytes,
        _conversation: bytes,
        kind: int,
        _is_from_target: bool,  # noqa: FBT001
    ) -> tuple[ForwardingEntry, bool]:
        number = int(key[-6:])
        return ForwardingEntry(self._sinks[number % SINKS], Disposition.FORWARDED, kind=kind, route=str(number)), False

    def _drop(self, disposition: Disposition, _kind: int) -> ForwardingEntry:
        raise AssertionError(disposition)


def reads_of(destinations: int) -> tuple[list[bytes], int]:
    """Whole frames to all destinations in turn of a hash, as reads bring them, and how many there are."""
    count = max(FRAMES_MIN, destinations)
    frames = []
    for number in range(count):
        to = number if destinations == count else int.from_bytes(sha256(b"%d" % number).digest()[:8], "big")
        header = Header(
            kind=FrameKind.MESSAGE,
            flags=0,
            message_id=number.to_bytes(16, "big"),
            conversation_id=sha256(b"%d" % (to % destinations)).digest()[:16],
            to_service=f"//bench/service-{to % destinations:06d}",
            from_service="//bench/initiator",
            from_broker_instance=NO_GUID,
            sequence_number=number,
        )
        frames.append(encode_dialog(header, bytes(PAYLOAD)))
    if destinations == count:
        frames.sort(key=lambda frame: sha256(frame).digest())
    each = READ_BYTES // len(frames[0])
    return [b"".join(frames[at : at + each]) for at in range(0, count, each)], count


def run() -> dict[str, float]:
    """CPU microseconds for each frame."""
    figures = {}
    for destinations in DESTINATIONS:
        reads, count = reads_of(destinations)
        tracks = {
            f"{name}{RINGS_TOLD[label]}": Track(kernel, reads, ring)
            for name, kernel in sorted(KERNELS.items(), reverse=True)
            for label, ring in RINGS.items()
        }
        spent: dict[str, list[float]] = {name: [] for name in tracks}
        for _ in range(ROUNDS):
            for name, track in tracks.items():
                spent[name].append(track.round())
        for name, seconds in spent.items():
            figures[f"{name}, {destinations:,} destinations"] = median(seconds) / count * 1e6
    return figures


def main() -> None:
    """The table; or, with KERNEL DESTINATIONS ROUNDS RING, rounds of one kernel to count instructions of."""
    if len(sys.argv) == 1:
        for what, microseconds in run().items():
            print(f"{what:55} {microseconds:8.4f}")
        return
    name, destinations, rounds, ring = sys.argv[1:]
    reads, count = reads_of(int(destinations))
    track = Track(KERNELS[name], reads, RINGS[ring])
    for _ in range(int(rounds)):
        track.round()
    print(f"{count} frames a round")


if __name__ == "__main__":
    main()
