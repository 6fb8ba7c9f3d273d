"""A process that has forbidden core dumps leaves none, and neither do its children."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import resource, subprocess, sys
from broker.daemon.process import forbid_core_dumps
hard = resource.getrlimit(resource.RLIMIT_CORE)[1]
resource.setrlimit(resource.RLIMIT_CORE, (hard, hard))
forbid_core_dumps()
ask = "import resource; print(resource.getrlimit(resource.RLIMIT_CORE)[0])"
print(resource.getrlimit(resource.RLIMIT_CORE)[0], subprocess.run([sys.executable, "-c", ask], capture_output=True,
      text=True, check=True).stdout.strip(), hard == resource.getrlimit(resource.RLIMIT_CORE)[1])
"""


def test_neither_the_process_nor_its_children_leave_a_core() -> None:
    """In a process of its own: the limit is the whole process's."""
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True)

    assert "0 0 True\n" == done.stdout
