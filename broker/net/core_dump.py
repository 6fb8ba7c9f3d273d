"""
No core dumps: a core holds every body that is on its way, and the keys.

Who looks for a crash finds the stack of every thread in the log with PYTHONFAULTHANDLER=1, which shows no values.
"""

from __future__ import annotations

import contextlib
import resource


def forbid_core_dumps() -> None:
    """Let the system write no core of this process, nor of its children; the hard limit stays as it is."""
    with contextlib.suppress(ValueError, OSError):  # not allowed: then the limit is none of ours
        resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
