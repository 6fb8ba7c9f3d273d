"""What a test does instead of sleeping."""

import threading
import time
from collections.abc import Callable

import pytest


def sleep_by(monkeypatch: pytest.MonkeyPatch, pause: Callable[[float], object]) -> None:
    """
    Call `pause` with the seconds wherever this thread would sleep. Other threads, which earlier tests may have left
    behind, sleep on: they would spin else, and be counted.
    """
    own, sleep = threading.get_ident(), time.sleep

    def instead(seconds: float) -> None:
        if threading.get_ident() == own:
            pause(seconds)
        else:
            sleep(seconds)

    monkeypatch.setattr(time, "sleep", instead)
