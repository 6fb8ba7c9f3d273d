"""A program ends with the one that started it, killed or not."""

from __future__ import annotations

import os
import subprocess
import sys

import psutil

from broker.bench.generator import tied

START = """
import subprocess, sys, time
from broker.bench.generator import tied
print(subprocess.Popen([*tied(), "sleep", "600"]).pid, flush=True)
time.sleep(600)
"""


def test_killed_parent_takes_its_child_along() -> None:
    with subprocess.Popen([sys.executable, "-c", START], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        child = psutil.Process(int(parent.stdout.readline()))

        parent.kill()
        _, left = psutil.wait_procs([child], timeout=60)

    assert [] == left


def test_it_becomes_the_program_and_keeps_its_process_id() -> None:
    done = subprocess.Popen([*tied(), "sh", "-c", "echo $$; exit 7"], stdout=subprocess.PIPE, text=True)
    told, _ = done.communicate()

    assert (f"{done.pid}\n", 7) == (told, done.returncode)


def test_program_whose_parent_has_gone_is_not_started() -> None:
    command = [*tied()[:-1], str(os.getpid() + 1), "echo", "started"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)

    assert (1, "") == (done.returncode, done.stdout)
