"""The catalogue of numbers is read as it is written, says something of everything in it, and is a view."""

from pathlib import Path

import pytest

from broker.flow import NUMBER, Disposition
from broker.observe.message_catalogue import MessageChannel, catalogue, read


def test_a_number_is_in_one_file(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / f"{name}.toml").write_text("[9744]")

    with pytest.raises(ValueError, match=r"b\.toml has a second table \[9744\]"):
        read(tmp_path)


def test_everything_has_words() -> None:
    silent = [
        key
        for key, entry in catalogue().items()
        if not (entry.title and entry.when and entry.remedy) or (entry.number and not entry.original)
    ]

    assert [] == silent
    assert [] == [key for key, one in catalogue().items() if MessageChannel.DIALOG in one.when and not one.notified]


def test_every_disposition_is_there_with_its_number_and_who_is_told() -> None:
    reasons = {entry.reason: entry for entry in catalogue().values() if entry.reason}

    assert {str(one): one.number for one in Disposition} == {reason: entry.number for reason, entry in reasons.items()}
    assert all(entry.notified and MessageChannel.FRAME in entry.when for entry in reasons.values())
    assert len(NUMBER) == sum(1 for entry in reasons.values() if entry.number)
