"""
Inputs made by a grammar and then spoilt: what is nearly right goes deeper than what is random.

A target says by itself what must hold (`tests.fuzz.peer`, `operator`, `live`), so a test here only makes inputs.
"""

from __future__ import annotations

import struct
from functools import cache

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.fuzz import operator, peer
from tests.fuzz.door import targets
from tests.fuzz.target import KIB, Target
from tests.support.tiers import examples

TARGETS = targets()
MANY = settings(max_examples=examples(200))
LIVE = settings(max_examples=40)


def attempt(name: str, data: bytes) -> None:
    target: Target = TARGETS[name]

    target.attempt(data[: 4 * target.input_max])


@st.composite
def spoilt(draw: st.DrawFn, whole: bytes, *, times: int = 4) -> bytes:
    """Bytes that are cut, flipped, doubled, or have something put in."""
    data = bytearray(whole)
    for _ in range(draw(st.integers(0, times))):
        at = draw(st.integers(0, len(data)))
        match draw(st.sampled_from(["cut", "flip", "double", "insert", "set"])):
            case "cut":
                del data[at:]
            case "flip" if at < len(data):
                data[at] ^= 1 << draw(st.integers(0, 7))
            case "double":
                data[at:at] = data[at : at + 64]
            case "insert":
                data[at:at] = draw(st.binary(max_size=16))
            case "set" if at + 4 <= len(data):
                data[at : at + 4] = struct.pack(">I", draw(st.sampled_from([0, 1, 7, 8, 2**16, 2**31, 2**32 - 1])))
            case _:
                pass
    return bytes(data)


def spoilt_seed(name: str) -> st.SearchStrategy[bytes]:
    """One of a target's seeds, spoilt."""
    return st.deferred(lambda: st.sampled_from(_seeds(name)).flatmap(spoilt))


@cache
def _seeds(name: str) -> list[bytes]:
    return TARGETS[name].seeds()


# --- MessagePack ---

KEYS = [b"protocol", b"versions", b"instance", b"arbitration", b"name", b"max_frame", b"heartbeat_ms", b"addresses"]
LENGTHS = st.one_of(st.integers(0, 5), st.sampled_from([255, 2**16, 2**31 - 1, 2**32 - 1]))
HEADS = [(b"\xd9", ">B"), (b"\xda", ">H"), (b"\xdb", ">I"), (b"\xc4", ">B"), (b"\xc6", ">I"), (b"\xdc", ">H")]
HEADS += [(b"\xdd", ">I"), (b"\xde", ">H"), (b"\xdf", ">I"), (b"\xc7", ">B"), (b"\xc9", ">I")]
LEAVES = st.one_of(
    st.sampled_from([b"\xc0", b"\xc1", b"\xc2", b"\xc3", b"\xa0", b"\x90", b"\x80", b"\xcb\x7f\xf0" + bytes(6)]),
    st.integers(0, 2**64 - 1).map(lambda number: b"\xcf" + struct.pack(">Q", number)),
    st.integers(-(2**63), -1).map(lambda number: b"\xd3" + struct.pack(">q", number)),
    st.binary(max_size=20).map(lambda text: bytes([0xD9, len(text)]) + text),
    st.binary(max_size=20).map(lambda data: bytes([0xC4, len(data)]) + data),
    st.just(b"\xc4\x10" + b"i" * 16),
)


@st.composite
def lying(draw: st.DrawFn) -> bytes:
    """A text, array, map or extension that is not as long as it says."""
    head, form = draw(st.sampled_from(HEADS))
    limit = 256 ** struct.calcsize(form) - 1
    return head + struct.pack(form, min(draw(LENGTHS), limit)) + draw(st.binary(max_size=9))


VALUES = st.recursive(
    st.one_of(LEAVES, lying()),
    lambda inner: st.one_of(
        st.lists(inner, max_size=5).map(lambda items: bytes([0x90 + len(items)]) + b"".join(items)),
        st.lists(st.tuples(LEAVES, inner), max_size=5).map(
            lambda pairs: bytes([0x80 + len(pairs)]) + b"".join(map(b"".join, pairs))
        ),
        st.tuples(st.integers(1, 1500), inner).map(lambda nested: b"\x91" * nested[0] + nested[1]),
    ),
    max_leaves=8,
)
NAMED = st.sampled_from(KEYS).map(lambda key: bytes([0xA0 + len(key)]) + key)
MAPS = st.lists(st.tuples(st.one_of(NAMED, LEAVES), VALUES), max_size=12).map(
    lambda pairs: bytes([0x80 + len(pairs)]) + b"".join(map(b"".join, pairs))
)


@MANY
@given(st.integers(0, 15), MAPS | VALUES)
def test_messagepack_of_any_shape_is_taken_or_refused(kind: int, body: bytes) -> None:
    """Nested, with lengths that lie, with keys twice, of wrong types, for every kind of link frame."""
    attempt("message", bytes([kind]) + body)


@MANY
@given(MAPS | VALUES, st.integers(-3, 3))
def test_envelope_of_any_shape_is_taken_or_refused(body: bytes, lie: int) -> None:
    attempt("body", max(0, len(body) + lie).to_bytes(4, "big") + body)


@LIVE
@given(MAPS)
def test_hello_of_any_shape_ends_its_own_link_at_most(body: bytes) -> None:
    attempt("link", b"\1" + peer.link_frame(1, body))


@MANY
@given(spoilt_seed("stream"))
def test_spoilt_stream_is_taken_or_refused(data: bytes) -> None:
    attempt("stream", data)


@MANY
@given(spoilt_seed("frames"))
def test_kernels_make_the_same_of_spoilt_frames(data: bytes) -> None:
    attempt("frames", data)


@MANY
@given(spoilt_seed("box"))
def test_spoilt_box_does_not_open(data: bytes) -> None:
    attempt("box", data)


@LIVE
@given(spoilt_seed("link"))
def test_spoilt_link_ends_and_leaves_nothing(data: bytes) -> None:
    attempt("link", data)


# --- TLS ---


@LIVE
@given(spoilt_seed("tls"))
def test_spoilt_handshake_is_refused_and_closed(data: bytes) -> None:
    attempt("tls", data)


# --- T-SQL ---

WORDS = sorted({word for script in operator.SCRIPTS for word in script.split()})
TOKENS = st.sampled_from([*WORDS, "'", "[", "]", "--", "/*", "(", ",", ";"])


@st.composite
def spoilt_scripts(draw: st.DrawFn) -> str:
    """Scripts whose words are left out, doubled, exchanged, or taken from elsewhere."""
    words = [word for script in draw(st.lists(st.sampled_from(operator.SCRIPTS), min_size=1, max_size=3)) for word in
             script.split(" ")]  # fmt: skip
    for _ in range(draw(st.integers(0, 5))):
        at = draw(st.integers(0, len(words) - 1))
        match draw(st.integers(0, 3)):
            case 0 if len(words) > 1:
                del words[at]
            case 1:
                words.insert(at, words[at])
            case 2:
                words[at] = draw(TOKENS)
            case _:
                other = draw(st.integers(0, len(words) - 1))
                words[at], words[other] = words[other], words[at]
    return draw(st.sampled_from([" ", "\n", "\t"])).join(words)


@MANY
@given(spoilt_scripts())
def test_spoilt_script_is_read_or_refused_at_a_place(text: str) -> None:
    attempt("script", text.encode(errors="surrogateescape" if text.isascii() else "surrogatepass"))


@settings(max_examples=examples(100))
@given(st.lists(st.sampled_from([w for q in operator.QUESTIONS[:4] for w in q.split()]), min_size=1, max_size=14))
def test_question_of_words_in_any_order_is_answered_or_refused(words: list[str]) -> None:
    attempt("question", f"SELECT {' '.join(words)}".encode())


# --- TOML ---


@MANY
@given(spoilt_seed("settings"))
def test_spoilt_configuration_is_read_or_refused(data: bytes) -> None:
    attempt("settings", data)


# --- HTTP ---

PIECES = ["/", "//", "..", ".", "%2e%2e", "%2f", "%00", "v1", "status", "sql", "views", "sys.routes", "why", "*", "?"]
PIECES += ["limit=1", "&after=0", "#", ";", "\\", "\u00e9", "metrics", "readyz", "http://evil/"]
HEADER_LINES = """Host: evil|Host:|Origin: null|Content-Length: 5|Content-Length: -1|Content-Length: 5, 5
Transfer-Encoding: chunked|Transfer-Encoding: gzip, chunked|Expect: 100-continue|Upgrade: h2c|Connection: upgrade
X-HTTP-Method-Override: DELETE| folded|No colon|: none|Cookie: a=b|Content-Type: text/plain|Content-Encoding: gzip
Content-Encoding: deflate|A: \0""".replace("\n", "|").split("|")


@st.composite
def requests(draw: st.DrawFn) -> bytes:
    """A request that is nearly one."""
    method = draw(st.sampled_from(["GET", "POST", "HEAD", "DELETE", "OPTIONS", "TRACE", "CONNECT", "get", "\0", "G T"]))
    path = "/" + "".join(draw(st.lists(st.sampled_from([*PIECES, "a" * 300]), max_size=8)))
    lines = [f"{method} {path} HTTP/1.{draw(st.sampled_from([1, 1, 1, 0, 9]))}", "Host: localhost"]
    lines += draw(st.lists(st.sampled_from([*HEADER_LINES, "A: " + "b" * 9000]), max_size=4))
    end = draw(st.sampled_from(["\r\n", "\r\n", "\n", "\r"]))
    body = draw(st.binary(max_size=40) | st.just(b"5\r\n[[[[[\r\n0\r\n\r\n"))
    return (end.join(lines) + end * 2).encode() + body


@LIVE
@given(st.integers(0, 2), requests())
def test_request_that_is_nearly_one_is_answered_or_refused(door: int, request: bytes) -> None:
    attempt("http", bytes([door]) + request[: 12 * KIB])
