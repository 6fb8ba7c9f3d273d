"""The records in a ring, one value each."""

from collections.abc import Iterator
from dataclasses import dataclass

from broker.flow import Disposition
from broker.forwarding.entry import ForwardingEntry, PassOrigin
from broker.forwarding.ring import HEAD, HEAD_BYTES, TAKEN_BACK, RingContents
from broker.protocol.frame import Header, decode_dialog
from broker.protocol.layout import TO_SERVICE_AT


@dataclass(frozen=True, slots=True)
class VisitRecord:
    """One visit of a frame."""

    arrival: PassOrigin
    left: float  # monotonic seconds
    entry: ForwardingEntry | None  # that it took; None where a database here reports
    disposition: Disposition | None  # what became of it; None when it is acknowledged
    frame_bytes: int  # the whole frame
    raw_header: bytes  # 114 bytes as it arrived, but for `time_consumed`, which is as it left
    to_service: bytes
    from_service: bytes

    @property
    def header(self) -> Header:
        """
        All fields.

        Raises:
            FrameMalformedError: a name is not UTF-8.
        """
        alone = self.raw_header + self.to_service + self.from_service
        return decode_dialog(len(alone).to_bytes(4, "big") + alone[4:])[0]


def decode(taken: RingContents) -> Iterator[VisitRecord]:
    """The records that were taken, in the order in which they were written. In any thread."""
    data, at = bytes(taken.data), 0
    while at < len(data):
        size, number, arrival, left = HEAD.unpack_from(data, at)
        header_at, to_at, end = at + HEAD_BYTES, at + HEAD_BYTES + TO_SERVICE_AT, at + size
        at = end
        if number == TAKEN_BACK:
            continue
        from_at = to_at + int.from_bytes(data[to_at - 2 : to_at], "big")
        entry, disposition = taken.endings[number]
        yield VisitRecord(
            arrival=taken.arrivals[arrival],
            left=left,
            entry=entry,
            disposition=disposition,
            frame_bytes=int.from_bytes(data[header_at : header_at + 4], "big"),
            raw_header=data[header_at:to_at],
            to_service=data[to_at:from_at],
            from_service=data[from_at:end],
        )
