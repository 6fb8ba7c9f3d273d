"""A signal before an instance serves ends it in good order, or does nothing."""

from __future__ import annotations

import subprocess
import sys

import pytest

SCRIPT = """
import os, signal
from broker.daemon.early_signal import end_on_signal
end_on_signal()
os.kill(os.getpid(), {})
print("on")
"""


@pytest.mark.parametrize(
    ("name", "code", "said"), [("SIGTERM", 0, ""), ("SIGHUP", 0, "on"), ("SIGUSR1", 0, "on"), ("SIGUSR2", 0, "on")]
)
def test_signal_before_anything_has_begun(name: str, code: int, said: str) -> None:
    words = [sys.executable, "-c", SCRIPT.format(f"signal.{name}")]

    result = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)

    assert (code, said, "") == (result.returncode, result.stdout.strip(), result.stderr)


def test_nothing_that_takes_long_is_imported_before() -> None:
    """Else a signal meanwhile would end the process."""
    script = (
        "import sys; import broker.daemon.early_signal; print('asyncio' in sys.modules, 'structlog' in sys.modules)"
    )

    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True)

    assert "False False" == result.stdout.strip()
