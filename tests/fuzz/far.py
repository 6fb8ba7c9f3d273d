"""What comes from further away than a neighbour: sealed frames, answers of a daemon, a pairing."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from functools import cache
from typing import Any

import msgspec

from broker.admin.meeting import Channel, _Acceptance, _Confirmation, _Opening
from broker.errors import FrameMalformedError, PairingError
from broker.protocol.frame import decode_dialog
from broker.security.key_packet import Mode
from broker.security.opening import Opener
from broker.security.refusal import SealRefusedError
from broker.security.session import Sealer, Secured
from tests.fuzz.target import KIB, Target
from tests.support.identities import credentials
from tests.support.sealed import NOW, initiator, sealed

# --- sealed frames ---


@cache
def _secured() -> Secured:
    return Secured(Mode.FULL, far_principal="CN=billing")


@cache
def _opener() -> Opener:
    return Opener(credentials("billing", "orders"), keys_max=64)


@cache
def _good_frames() -> tuple[bytes, ...]:
    contact = initiator(_secured())
    # With keys of this process alone: what another one has sealed is none of these.
    by = Sealer(_secured(), contact.direction(), credentials("orders", "billing"), os.urandom)
    return tuple(sealed(contact, by, bytes([number]) * 20) for number in range(3))


def _opened(data: bytes) -> None:
    """Whatever comes as a sealed frame: only what the far database has sealed is believed, and as it was."""
    header, body = decode_dialog(data)
    opened = _opener().open(header, data, body, lambda: None, NOW)
    # Two fields change on the way, and nothing else.
    good = {frame[:6] + frame[7:12] + frame[16:] for frame in _good_frames()}
    assert data[:6] + data[7:12] + data[16:] in good
    assert opened.body


# --- a pairing ---


def _meeting(data: bytes) -> None:
    """What the other side of a pairing says, before and after it has proved anything; the first byte says when."""
    kinds: tuple[Any, ...] = (_Opening, _Acceptance, _Confirmation)

    async def hear() -> None:
        reader = asyncio.StreamReader(limit=64 * KIB)
        reader.feed_data(data[1:])
        reader.feed_eof()
        channel = Channel(reader, None)  # type: ignore[arg-type]  # it only hears
        await channel.hear(kinds[data[0] % 3 if data else 0], seconds=5)

    _loop().run_until_complete(hear())


@cache
def _loop() -> asyncio.AbstractEventLoop:
    return asyncio.new_event_loop()


def _said(value: msgspec.Struct) -> bytes:
    data = msgspec.msgpack.encode(value)
    return len(data).to_bytes(4, "big") + data


def _sayings() -> list[bytes]:
    good: list[Callable[[], msgspec.Struct]] = [
        lambda: _Opening(b"n" * 32),
        lambda: _Acceptance(b"n" * 32, b"{}", b"p" * 32),
        lambda: _Confirmation(b"{}", b"p" * 32),
    ]
    return [bytes([number]) + _said(make()) for number, make in enumerate(good)] + [b"\0\xff\xff\xff\xff", b"\1\0\0"]


def close() -> None:
    """End what the targets have started; the next input starts it anew."""
    if _loop.cache_info().currsize:
        _loop().close()
        _loop.cache_clear()


@cache
def targets() -> tuple[Target, ...]:
    """The targets of this file."""
    return (
        Target("opened", _opened, (SealRefusedError, FrameMalformedError), lambda: list(_good_frames())),
        Target("meeting", _meeting, (PairingError,), _sayings),
    )
