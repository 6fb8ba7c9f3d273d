"""Files without a name, where the file system makes them and where it does not."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from broker.client.temporary import temporary_file


@pytest.mark.parametrize("refusal", [None, 95, 21], ids=["nameless", "not supported", "an old kernel"])
def test_file_has_no_name_and_keeps_what_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refusal: int | None
) -> None:
    plain = os.open

    def open_named(path: str, flags: int, mode: int) -> int:
        if refusal is not None and flags & os.O_TMPFILE == os.O_TMPFILE:
            raise OSError(refusal, "refused")
        return plain(path, flags, mode)

    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(os, "open", open_named)

    with temporary_file() as file:
        file.write(b"body")
        file.seek(0)

        assert (b"body", [], 0o600) == (file.read(), list(tmp_path.iterdir()), os.fstat(file.fileno()).st_mode & 0o777)
