"""What comes from further away than a neighbour: sealed frames."""

from __future__ import annotations

import os
from functools import cache

from broker.errors import FrameMalformedError
from broker.protocol.frame import decode_dialog
from broker.security.seal import SealRefusedError
from broker.security.secured import Mode, Secured
from broker.security.session import Opener, Sealer
from tests.fuzz.target import Target
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


@cache
def targets() -> tuple[Target, ...]:
    """The targets of this file."""
    return (Target("opened", _opened, (SealRefusedError, FrameMalformedError), lambda: list(_good_frames())),)
