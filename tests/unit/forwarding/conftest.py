"""Frames for the pass, as the wire has them."""

import pytest

from tests.support.forwarding import ForwarderStation
from tests.support.kernel import EVERY_KERNEL, Walker


@pytest.fixture
def is_patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """One walk takes care of as many frames as there are."""
    monkeypatch.setattr("broker.forwarding.entry.CARE_MAX", 1 << 30)


@pytest.fixture(params=EVERY_KERNEL)
def kernel_name(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both kernels keep one contract."""
    for owner in (ForwarderStation, Walker):
        monkeypatch.setattr(owner, "kernel_name", request.param)
