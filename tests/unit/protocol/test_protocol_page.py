"""docs/protocol.md is a contract: its numbers and tables are those of the code, its vectors in test_frame.py."""

import re
from pathlib import Path

import pytest

from broker.errors import PeerError
from broker.flow import Disposition
from broker.protocol import layout
from broker.protocol.frame import KIND_OF
from broker.protocol.layout import Flag, FrameKind
from broker.protocol.link_state import TRANSITIONS, LinkPhase

PAGE = (Path(__file__).parents[3] / "docs" / "protocol.md").read_text(encoding="utf-8")


def rows(heading: str) -> list[list[str]]:
    """The cells of every table row under a heading, up to the next heading."""
    match = re.search(rf"^#+ {re.escape(heading)}\n(.*?)(?=^#|\Z)", PAGE, re.MULTILINE | re.DOTALL)
    assert match is not None, heading
    lines = [line for line in match[1].splitlines() if line.startswith("|") and not line.startswith("|---")]
    return [[cell.strip(" `*") for cell in line.strip("|").split("|")] for line in lines]


def test_every_kind_has_a_vector(golden: dict[str, bytes]) -> None:
    assert {kind.value for kind in FrameKind} == {frame[4] for frame in golden.values()}


def test_annotated_message_is_its_vector(golden: dict[str, bytes]) -> None:
    """The table under the first vector names all of its bytes but the inside of the envelope."""
    table = re.search(r"^\| Bytes \| Field \|.*?\n\n", PAGE, re.MULTILINE | re.DOTALL)
    assert table is not None
    cells = [line.split("|")[1].replace("16 zero bytes", "`" + "00" * 16 + "`") for line in table[0].splitlines()[2:-1]]
    *parts, envelope, payload = ["".join(re.findall(r"[0-9a-f]{2}", cell)) for cell in cells]
    digits = golden["MESSAGE"].hex()

    assert digits.startswith("".join(parts) + envelope)
    assert digits.endswith(payload)


def test_every_fatal_code_is_listed() -> None:
    listed = {int(code) for code, _ in rows("FATAL codes")[1:]}

    assert {error.code for error in PeerError.__subclasses__()} == listed


def test_dialog_kinds_are_listed() -> None:
    listed = {name: int(number, 16) for number, name, _ in rows("5. Dialog frames")[1:]}

    assert {kind.name: kind.value for kind in FrameKind if kind >= layout.FIRST_DIALOG_KIND} == listed


@pytest.mark.parametrize(
    ("heading", "kind"),
    [
        ("0x01 HELLO", FrameKind.HELLO),
        ("0x04 PROBE", FrameKind.PROBE),
        ("0x05 PROBE_REPLY", FrameKind.PROBE_REPLY),
        ("0x06 REJECTED", FrameKind.REJECTED),
        ("0x07 GOAWAY", FrameKind.GOAWAY),
        ("0x08 FATAL", FrameKind.FATAL),
    ],
)
def test_keys_of_a_link_body_are_listed_with_their_defaults(heading: str, kind: FrameKind) -> None:
    form = next(form for form, its_kind in KIND_OF.items() if its_kind is kind)
    words = {"": "empty", (): "empty", layout.NO_GUID: "zero", (1,): "[1]"}
    message = form()  # type: ignore[call-arg]

    expected = {key: getattr(message, key) for key in message.__struct_fields__}  # type: ignore[union-attr]

    assert heading.startswith(f"0x{kind:02x} ")
    assert {key: str(words.get(value, value)) for key, value in expected.items()} == {
        key: default for key, _, default, _ in rows(heading)[1:]
    }


def test_flags_are_listed() -> None:
    listed = {name: int(bit, 16) for bit, name, _ in rows("Flags")[1:]}

    assert {flag.name: flag.value for flag in Flag} == listed


def test_header_is_listed_field_by_field() -> None:
    fields = [(int(at), int(size), name) for at, size, name, _ in rows("Header")[1:] if size.isdigit()]
    at = 0
    for offset, size, name in fields:
        assert at == offset, name
        at += size

    assert at == layout.HEADER_BYTES


def test_states_are_those_of_the_connection() -> None:
    listed: dict[tuple[str, str], str] = {}
    state = ""
    for first, may_receive, leads_to in rows("States")[1:]:
        state = first or state
        listed |= {(state, kind): leads_to for kind in may_receive.split(", ") if kind.isupper()}

    assert {(state.value, FrameKind(kind).name): after.value for (state, kind), after in TRANSITIONS.items()} == listed
    assert set(LinkPhase) >= {state for state, _ in listed}


def test_numbers_of_drops_are_those_of_the_dispositions() -> None:
    number_of = {disposition.value: str(disposition.number) for disposition in Disposition}
    listed = {
        reason: number for _, _, reason, number in rows("6. Handling of a dialog frame")[1:] if reason in number_of
    }

    assert {reason: number_of[reason] for reason in listed} == listed
    assert len(listed) == 8


def test_bounds_are_those_of_the_layout() -> None:
    smallest, largest = layout.MAX_FRAME_RANGE
    shortest, longest = layout.HEARTBEAT_MS_RANGE

    assert rows("7. Bounds")[1:] == [
        ["frame", f"{layout.MAX_FRAME >> 20} MiB", f"{smallest >> 10} KiB .. {largest >> 20} MiB, announced in HELLO"],
        ["body of a link frame", "", f"{layout.LINK_BODY_MAX_BYTES >> 10} KiB"],
        [
            "name of a service, message type, contract",
            "",
            f"at most {layout.NAME_MAX_BYTES} bytes; of a service at least 1",
        ],
        ["hop_limit", str(layout.HOP_LIMIT), "0 .. 255; 0 goes nowhere"],
        ["time_to_live", f"{layout.TIME_TO_LIVE_MS} ms", "0 .. 2^32 - 1; 0 goes nowhere"],
        ["heartbeat", f"{layout.HEARTBEAT_MS // 1000} s", f"{shortest / 1000} s .. {longest // 3_600_000} h"],
        ["silence", f"{layout.SILENCE_FACTOR} heartbeats of the peer", ""],
        ["HELLO", f"{layout.HANDSHAKE_TIMEOUT:g} s", ""],
        [
            "any other frame, from its first byte to its last",
            f"{layout.FRAME_SECONDS:g} s, and 1 s for each {layout.FRAME_BYTES_PER_SECOND >> 10} KiB of its length",
            "",
        ],
        ["addresses of a HELLO that are read", f"the first {layout.ADDRESSES_MAX}", ""],
    ]
