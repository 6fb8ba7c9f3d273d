"""A signal before an instance serves ends it in good order, or does nothing."""

import subprocess
import sys

SCRIPT = """
import os, signal, sys
from broker.daemon.early_signal import end_on_signal
end_on_signal()
for number in (signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):
    os.kill(os.getpid(), number)
assert not {"asyncio", "structlog"} & set(sys.modules), "a signal during a slow import would end the process"
print("on", flush=True)
os.kill(os.getpid(), signal.SIGTERM)
print("still on")
"""


def test_signal_before_anything_has_begun() -> None:
    result = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, timeout=60, check=False)

    assert (0, "on", "") == (result.returncode, result.stdout.strip(), result.stderr)
