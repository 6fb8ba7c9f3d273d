"""Frames for the pass, as the wire has them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from broker.protocol.frame import Header, encode_dialog
from broker.protocol.layout import FrameKind
from tests.support.forwarding import ForwarderStation
from tests.support.kernel import EVERY_KERNEL, Walker

PLAIN = Header(
    kind=FrameKind.MESSAGE,
    flags=0,
    message_id=b"m" * 16,
    conversation_id=b"c" * 16,
    to_service="//test/Target",
    from_service="//test/Initiator",
    from_broker_instance=b"i" * 16,
)


@pytest.fixture
def is_patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """One walk takes care of as many frames as there are."""
    monkeypatch.setattr("broker.forwarding.entry.CARE_MAX", 1 << 30)


@pytest.fixture
def make_frame() -> Callable[..., bytes]:
    """A whole dialog frame: a plain one with these fields changed, and this body."""

    def make(body: bytes = b"body", **fields: Any) -> bytes:
        return encode_dialog(replace(PLAIN, **fields), body)

    return make


@pytest.fixture(params=EVERY_KERNEL)
def kernel_name(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both kernels keep one contract."""
    for owner in (ForwarderStation, Walker):
        monkeypatch.setattr(owner, "kernel_name", request.param)
