"""Nobody sends in a phase before everybody is in it, and nothing comes behind its verdict unseen."""

from __future__ import annotations

import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from examples.demo.topology import TimedOutError
from tests.chaos import chapter
from tests.chaos.chapter import Judged, read_chapter, wait_entered
from tests.chaos.history import Event, History, OpenQuestionError, What


def fleet(histories: Path, **wanted: bool) -> Any:
    applications = {
        name: SimpleNamespace(job=SimpleNamespace(name=name), is_wanted=is_so) for name, is_so in wanted.items()
    }
    return SimpleNamespace(histories=histories, applications=applications)


def history(directory: Path, name: str = "billing") -> History:
    directory.mkdir(exist_ok=True)
    return History(directory / f"{name}.history", name, "billing.db")


def test_a_phase_waits_for_the_application_that_is_still_in_the_last_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chapter, "ENTER_SECONDS", 0.0)
    history(tmp_path / "002-kill").close()
    made = fleet(tmp_path, billing=True, parcel=True, mirror=False)

    with pytest.raises(TimedOutError, match="all applications in 002-kill: not within 0 s: parcel"):
        wait_entered(made, "002-kill")

    history(tmp_path / "002-kill", "parcel").close()
    wait_entered(made, "002-kill")


def test_what_became_of_a_transaction_is_waited_for(tmp_path: Path) -> None:
    written = history(tmp_path / "001-kill")
    number = written.intend([Event(What.SENT, "dialog")])
    later = threading.Timer(0.1, written.settle, [number], {"is_committed": True})
    later.start()

    [entry] = read_chapter(tmp_path / "001-kill")
    later.join()

    assert "dialog" == entry.event.conversation


def test_what_nobody_ever_tells_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chapter, "ANSWER_SECONDS", 0.0)
    history(tmp_path / "001-kill").intend([Event(What.SENT, "dialog")])

    with pytest.raises(OpenQuestionError):
        read_chapter(tmp_path / "001-kill")


def test_what_comes_behind_the_verdict_is_told_once(tmp_path: Path) -> None:
    judged, written = Judged(), history(tmp_path / "001-kill")
    written.tell(Event(What.RECEIVED, "dialog", number=1))
    before = judged.added()
    judged.close(tmp_path / "001-kill", read_chapter(tmp_path / "001-kill"))
    quiet = judged.added()

    written.tell(Event(What.RECEIVED, "dialog", number=2))

    assert ([], []) == (before, quiet)
    assert ["when all was over: billing:3: received 2 of dialog dialog"] == judged.added()
    assert [] == judged.added()
