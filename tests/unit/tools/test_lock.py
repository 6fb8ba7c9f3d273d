"""The lock is read whole, and what is installed of it is found."""

from pathlib import Path

import pytest

from tools.lock import REQUIREMENTS, Locked, LockError, read_lock

DIGEST = "a" * 64


def lock(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


def test_entries_have_version_marker_and_every_hash(tmp_path: Path) -> None:
    text = f"""one==1.0 \\
    --hash=sha256:{DIGEST} \\
    --hash=sha256:{"b" * 64}
two-b==2.0rc1 ; sys_platform == 'win32' \\
    --hash=sha256:{DIGEST}
"""

    entries = read_lock(lock(tmp_path / "lock.txt", text))

    assert [Locked("one", "1.0"), Locked("two-b", "2.0rc1", "sys_platform == 'win32'")] == [
        Locked(one.name, one.version, one.marker) for one in entries
    ]
    assert [(DIGEST, "b" * 64), (DIGEST,)] == [one.hashes for one in entries]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("one==1.0\n", "no hash for one"),
        ("one>=1.0\n", "lock.txt:1: no pinned version"),
        (f"    --hash=sha256:{DIGEST}\n", "lock.txt:1"),
        ("git+https://example/one\n", "lock.txt:1"),
        (f"one==1.0 \\\n    --hash=md5:{DIGEST}\n", "lock.txt:2"),
    ],
)
def test_entry_that_does_not_say_which_files_is_refused(tmp_path: Path, text: str, says: str) -> None:
    with pytest.raises(LockError, match=says):
        read_lock(lock(tmp_path / "lock.txt", text))


@pytest.mark.parametrize("name", ["runtime", "pipeline", "dev", "supply", "fuzz"])
def test_every_lock_names_versions_and_hashes(name: str) -> None:
    assert all(one.hashes for one in read_lock(REQUIREMENTS / f"{name}.txt"))


def test_locks_agree_on_versions() -> None:
    """What runs is what was tested."""
    tested = {(one.name, one.version) for one in read_lock(REQUIREMENTS / "dev.txt")}

    for name in ("runtime", "pipeline"):
        assert {(one.name, one.version) for one in read_lock(REQUIREMENTS / f"{name}.txt")} <= tested
