"""
What a stranger says to an instance over a few links, made from a number, and what the protocol says becomes of it.

A line is bytes for one link, with the codes of FATAL that may answer it: none where the link goes on. Most lines are
legal, many are half legal: a good frame with one field that is not, or a good one at a moment that is not its own.
After a line that ends its link nothing more is said there, so the answer is not lost in a reset.

Source: docs/protocol.md, sections 2 to 6.
"""

import os
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec

from broker.protocol.frame import (
    Envelope,
    Fatal,
    Fault,
    GoAway,
    Header,
    Hello,
    Ping,
    Pong,
    Probe,
    ProbeReply,
    Rejected,
    Stored,
    checksum,
    encode_dialog,
    encode_envelope,
    encode_fault,
    encode_link,
    encode_stored,
)
from broker.protocol.layout import FIRST_DIALOG_KIND, LINK_BODY_MAX_BYTES, PRELUDE, PRELUDE_BYTES, Flag, FrameKind
from tests.fuzz.peer import hostile_maps, link_frame

REFUSED, MALFORMED, TOO_LARGE, OUT_OF_SEQUENCE, SILENT = 28034, 28041, 28042, 28043, 9760
LINKS_MAX, LINES_MAX = 3, 24
STEADY = "//shop/Steady"


@dataclass(frozen=True, slots=True)
class Aim:
    """
    Who is spoken to.

    Shape: `service` that takes dialogs of anybody; `instance` its database; `steady` the id of a sealed dialog of
    others with the same database, which began in the database `far`.
    """

    service: str
    instance: bytes
    steady: bytes
    far: bytes


@dataclass(frozen=True, slots=True)
class Line:
    """Shape: `link` number; `ends` codes of FATAL, one of which answers it; `is_last` when nothing may follow."""

    link: int
    data: bytes
    ends: frozenset[int] = frozenset()
    is_last: bool = False


@dataclass(slots=True)
class Script:
    """
    A conversation.

    Shape: `sent` how far each dialog was said, (sequence, fragment) behind the last one; `pings` by link; `messages`
    ids of dialog frames; `dialogs` ids of this conversation's own.
    """

    address: str
    lines: list[Line] = field(default_factory=list)
    pings: dict[int, list[bytes]] = field(default_factory=dict)
    messages: set[bytes] = field(default_factory=set)
    dialogs: list[bytes] = field(default_factory=list)
    sent: dict[bytes, tuple[int, int]] = field(default_factory=dict)
    restless: set[int] = field(default_factory=set)  # links that announced a short heartbeat
    leaving: set[int] = field(default_factory=set)  # links on which GOAWAY was said


def script_of(number: int, aim: Aim) -> Script:
    """The conversation of this number; the same every time, but for ids that must not repeat."""
    return _Author(random.Random(number), aim, number).write()


class _Author:
    def __init__(self, any_: random.Random, aim: Aim, number: int) -> None:
        self._any = any_
        self._aim = aim
        # An address of its own on loopback, on which nobody listens: answers come over the links that claim it.
        a, b, c = number // (254 * 256) % 250 + 2, number // 254 % 256, number % 254 + 1
        self._script = Script(f"tcp://127.{a}.{b}.{c}:9")
        self._open: set[int] = set()
        self._frames: list[bytes] = []  # good ones, to be said again
        self._places: dict[bytes, int] = {}

    def write(self) -> Script:
        any_ = self._any
        for link in range(any_.randint(1, LINKS_MAX)):
            self._begin(link)
        for _ in range(any_.randint(1, LINES_MAX)):
            if not self._open:
                break
            self._say(any_.choice(sorted(self._open)))
        return self._script

    # --- beginnings ---

    def _begin(self, link: int) -> None:
        self._script.pings[link] = []
        self._open.add(link)
        hello = Hello(
            instance=self._guid(),
            arbitration=self._guid(),
            name=self._any.choice(["fuzz", "", "\u202e<script>", "x" * 300]),
            heartbeat_ms=self._any.choice([15_000, 3_600_000, 2**63 - 1]),
            max_frame=self._any.choice([4096, 65_536, 1 << 20]),
            addresses=(self._script.address,),
        )
        kind = self._any.random()
        if kind < 0.8:
            self._add(link, encode_link(hello))
        elif kind < 0.85:
            self._script.restless.add(link)
            self._add(link, encode_link(msgspec.structs.replace(hello, heartbeat_ms=self._any.choice([-1, 0, 1, 100]))))
        elif kind < 0.95:
            changes: dict[str, object] = self._any.choice(
                [
                    {"protocol": "xbrk"},
                    {"versions": ()},
                    {"versions": (2, 99)},
                    {"max_frame": 4095},
                    {"max_frame": 1 << 40},
                ]
            )
            self._add(link, encode_link(msgspec.structs.replace(hello, **changes)), REFUSED)
        else:
            early = self._any.choice([self._message(), encode_link(Ping(b"12345678")), encode_link(GoAway())])
            self._add(link, early, OUT_OF_SEQUENCE)

    # --- what is said then ---

    def _say(self, link: int) -> None:
        kind = self._any.random()
        if kind < 0.6:
            self._add(link, self._dialog())
        elif kind < 0.85:
            self._add_link(link)
        elif kind < 0.9:
            self._add(link, b"".join(self._any.sample(self._frames, min(3, len(self._frames)))))
        elif kind < 0.97:
            self._add(link, *self._wrong())
        else:
            whole = self._message()
            self._add(link, whole[: self._any.randint(1, len(whole) - 1)], is_last=True)

    def _add(self, link: int, data: bytes, *ends: int, is_last: bool = False) -> None:
        is_last = is_last or bool(ends)
        self._script.lines.append(Line(link, data, frozenset(ends), is_last))
        if is_last:
            self._open.discard(link)

    def _add_link(self, link: int) -> None:
        if self._any.random() < 0.05:
            self._add(link, encode_link(Fatal(1, "fuzz")), is_last=True)
        else:
            self._add(link, self._link(link))

    def _link(self, link: int) -> bytes:
        any_, script = self._any, self._script
        kind = any_.choice(["ping"] * 4 + ["pong", "probe", "reply", "rejected", "goaway"])
        match kind:
            case "ping":
                payload = any_.randbytes(8)
                script.pings[link].append(payload)
                return encode_link(Ping(payload))
            case "pong":
                return encode_link(Pong(any_.randbytes(8)))
            case "probe":
                instance = any_.choice([self._aim.instance, self._guid(), bytes(16)])
                return encode_link(Probe(any_.choice([0, 7, -1, 2**63]), self._aim.service, instance))
            case "reply":
                epoch = any_.choice([-1, 0, 2**64 - 1])
                return encode_link(ProbeReply(1, self._aim.instance, any_.choice(["principal", "x"]), epoch))
            case "rejected":
                code = any_.choice([11285, 0, -1, 2**63])
                return encode_link(
                    Rejected(self._guid(), self._aim.steady, 1, 2, code, "no", any_.choice([-1, 0, 2**63]))
                )
            case _:
                script.leaving.add(link)
                return encode_link(GoAway("fuzz", any_.choice([-1, 0, 5000, 2**63])))

    def _wrong(self) -> tuple[bytes, int]:
        """Bytes that end the link, and the code that they end it with."""
        good = self._message()
        link = self._any.choice(
            [FrameKind.PROBE, FrameKind.PROBE_REPLY, FrameKind.REJECTED, FrameKind.GOAWAY, FrameKind.FATAL]
        )
        wrong: Sequence[tuple[bytes, int]] = [
            (encode_link(Hello(arbitration=self._guid())), OUT_OF_SEQUENCE),
            (PRELUDE.pack(7, FrameKind.PING, 0, 0, 0), MALFORMED),
            (PRELUDE.pack(0, 0, 0, 0, 0), MALFORMED),
            (PRELUDE.pack(16, self._any.choice([0, *range(9, 16)]), 0, 0, 0), MALFORMED),
            (PRELUDE.pack(2**32 - 1, FrameKind.MESSAGE, 0, 0, 0), TOO_LARGE),
            (PRELUDE.pack(17, FrameKind.PING, 0, 0, 0) + bytes(9), MALFORMED),
            (PRELUDE.pack(LINK_BODY_MAX_BYTES + 9, link, 0, 0, 0), MALFORMED),
            (PRELUDE.pack(115, FrameKind.MESSAGE, 0, 0, 0), MALFORMED),
            (good[:76] + b"\0\0" + good[78:], MALFORMED),
            (good[:112] + b"\2\1" + good[114:], MALFORMED),
            (good[:76] + b"\2\0" + good[78:112] + b"\2\0" + good[114:150].ljust(36, b"\0"), MALFORMED),
            (link_frame(link, self._any.choice([b"", b"\x90", b"\xc1", *hostile_maps()[3:6]])), MALFORMED),
        ]
        data, code = self._any.choice(wrong)
        if len(data) > PRELUDE_BYTES and data[4] >= FIRST_DIALOG_KIND:  # its length follows what was done to it
            data = len(data).to_bytes(4, "big") + data[4:]
        return data, code

    # --- dialog frames ---

    def _dialog(self) -> bytes:
        """A good frame, or one with something about it that is not."""
        any_ = self._any
        kind = any_.random()
        if kind < 0.45:
            frame = self._message()
            self._frames.append(frame)
            return frame
        if kind < 0.6 and self._frames:
            return any_.choice(self._frames)
        if kind < 0.75:
            return self._about_others()
        return self._odd()

    def _header(self, conversation: bytes | None = None, **more: Any) -> Header:
        dialogs = self._script.dialogs
        if conversation is None:
            conversation = self._any.choice(dialogs) if dialogs and self._any.random() < 0.6 else self._guid()
            if conversation not in dialogs:
                dialogs.append(conversation)
        message = os.urandom(16)
        self._script.messages.add(message)
        header = Header(
            kind=FrameKind.MESSAGE,
            flags=0,
            message_id=message,
            conversation_id=conversation,
            to_service=self._aim.service,
            from_service=f"{self._script.address}/fuzz",
            from_broker_instance=conversation,  # any: one for each dialog
            to_broker_instance=self._any.choice([bytes(16), self._aim.instance]),
        )
        return replace(header, **more)

    def _message(self) -> bytes:
        """The next message of a dialog, mostly in one fragment; now and then the end of it."""
        header = self._header()
        place = self._places.get(header.conversation_id, 0)
        self._places[header.conversation_id] = place + 1
        flags, body = Flag.LAST_FRAGMENT, self._any.randbytes(self._any.choice([0, 10, 10, 3000]))
        envelope = Envelope(type="DEFAULT", contract="DEFAULT" if place == 0 else "")
        if place and self._any.random() < 0.15:
            flags |= self._any.choice([Flag.END_DIALOG, Flag.ERROR])
        if self._any.random() < 0.1:
            flags &= ~Flag.LAST_FRAGMENT
        return self._encode(replace(header, flags=int(flags), sequence_number=place), encode_envelope(envelope) + body)

    def _encode(self, header: Header, body: bytes) -> bytes:
        self._note(header)
        return encode_dialog(replace(header, body_checksum=checksum(body)), body)

    def _note(self, header: Header) -> None:
        """How far a dialog was said."""
        before = self._script.sent.get(header.conversation_id, (0, 0))
        self._script.sent[header.conversation_id] = max(
            before, (header.sequence_number + 1, header.fragment_number + 1)
        )

    def _about_others(self) -> bytes:
        """For a dialog that others have, sealed: with whatever might be believed."""
        any_, aim = self._any, self._aim
        is_answer = any_.random() < 0.4
        header = self._header(
            aim.steady,
            kind=any_.choice([FrameKind.MESSAGE, FrameKind.ACK, FrameKind.FAULT]),
            flags=any_.randrange(64) & ~1 | is_answer,
            sequence_number=any_.choice([0, 1, 5, 2**63]),
            ack_sequence=any_.choice([0, 1, 99, 2**63]),
            to_service=STEADY,
            from_service="//shop/Orders",
            from_broker_instance=aim.instance if is_answer else aim.far,
            to_broker_instance=aim.far if is_answer else aim.instance,
        )
        return encode_dialog(header, self._body())

    def _body(self) -> bytes:
        any_ = self._any
        bodies: Sequence[Callable[[], bytes]] = [
            lambda: b"",
            lambda: any_.randbytes(200),
            lambda: encode_fault(Fault(any_.choice([-8494, -8470, 5, -(2**31)]), "fuzz")),
            lambda: encode_stored(Stored(((0, 0, 2**32 - 1), (5, 9, 1)))),
            lambda: encode_envelope(Envelope(type="DEFAULT", lifetime=any_.choice([0, -1, 2**62]))) + b"x",
            lambda: b"\x01\x00" + any_.randbytes(120),  # as a sealed box begins
            lambda: (2**32 - 1).to_bytes(4, "big"),
        ]
        return any_.choice(bodies)()

    def _odd(self) -> bytes:
        """A frame whose boundaries are sound, and that no rule takes."""
        any_ = self._any
        changes: Sequence[dict[str, Any]] = [
            {"kind": any_.randrange(0x13, 0x100)},
            {"kind": FrameKind.ACK, "ack_sequence": 2**64 - 1, "ack_fragment": 2**32 - 1},
            {"kind": FrameKind.FAULT},
            {"flags": any_.randrange(256)},
            {"flags": int(Flag.SEALED | Flag.LAST_FRAGMENT)},
            {"flags": int(Flag.FROM_TARGET | Flag.LAST_FRAGMENT)},
            {"hop_count": 255, "hop_limit": any_.choice([0, 255])},
            {"time_to_live": 0},
            {"time_consumed": 2**32 - 1},
            {"sequence_number": any_.choice([4096, 4097, 2**64 - 1])},
            {"fragment_number": any_.choice([4096, 2**32 - 1])},
            {"to_service": any_.choice(["//none", "tcp://127.0.0.1:9/none", "x" * 512, "\u0000", STEADY])},
            {"from_service": any_.choice(["//none", "//shop/Orders", "\u202e"])},
            {"to_broker_instance": self._guid()},
            {"message_id": bytes(16)},
        ]
        header = replace(self._header(), **any_.choice(changes))
        self._note(header)
        frame = encode_dialog(header, self._body())
        if any_.random() < 0.2:  # a name that is no UTF-8 leaves the boundaries as they are
            return frame[:114] + b"\xff" + frame[115:]
        return frame

    def _guid(self) -> bytes:
        """Another one every time: what is said of a dialog again would be about the one of an earlier run."""
        return os.urandom(16)
