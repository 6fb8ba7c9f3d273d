"""A daemon or an application that does not end in good order when it is told to is found."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.chaos import child, leaving
from tests.chaos.child import Application
from tests.chaos.job import Job, Orders
from tests.chaos.leaving import BadEndError, bad_ends, leave

AT_THE_END = (
    "import signal, sys, time; signal.signal(signal.SIGTERM, lambda *_: {}); print(flush=True); time.sleep(600)"
)


class Process:
    """As `Daemon` is asked; does so at SIGTERM."""

    def __init__(self, what: str) -> None:
        command = [sys.executable, "-c", AT_THE_END.format(what)]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        assert self._process.stdout is not None
        self._process.stdout.readline()
        self._process.stdout.close()
        self.pid, self.wait, self.kill = self._process.pid, self._process.wait, self._process.kill
        self.terminate = self._process.terminate


@pytest.mark.parametrize(("code", "codes"), [(0, [0]), (7, [0, 7])])
def test_a_good_end_is_no_error(code: int, codes: list[int]) -> None:
    daemon: Any = Process(f"sys.exit({code})")

    daemon.terminate()

    leave("billing", daemon, codes=codes)


def test_another_exit_code_is_told() -> None:
    daemons: Any = {"billing": Process("sys.exit(7)"), "stock-1": Process("sys.exit(0)")}

    assert ["billing has ended with exit code 7 after SIGTERM"] == bad_ends(daemons)


def test_one_that_does_not_end_is_told_and_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leaving, "LEAVE_SECONDS", 0.1)
    daemon: Any = Process("None")
    daemon.terminate()

    with pytest.raises(BadEndError, match=r"billing has not ended 0.1 s after SIGTERM"):
        leave("billing", daemon, codes=[0])

    assert daemon.wait(0) < 0


@pytest.mark.parametrize(
    ("what", "told"),
    [
        ("sys.exit(0)", []),
        ("sys.exit(1)", ["application has ended with exit code 1"]),
        ("None", ["application has not ended 0.1 s after SIGTERM"]),
    ],
)
def test_an_application_that_ends_badly_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str, told: list[str]
) -> None:
    orders = tmp_path / "orders.json"
    Orders("001-kill", is_sending=False).write(orders)
    job = Job("application", "target", str(tmp_path / "no.db"), str(tmp_path), str(orders), "Inbox")
    begun = tmp_path / "begun"
    code = AT_THE_END.format(what).replace("print(flush=True)", f"open({str(begun)!r}, 'w').close()")
    host: Any = SimpleNamespace(popen=lambda _, **how: subprocess.Popen([sys.executable, "-c", code], **how))
    application = Application(host, job, tmp_path / "application.json")
    application.start()
    while not begun.exists():
        assert application.is_running
    if told and "not ended" in told[0]:
        monkeypatch.setattr(child, "STOP_SECONDS", 0.1)

    application.stop()
    application.stop()

    assert told == application.bad_ends
    assert not application.is_running
