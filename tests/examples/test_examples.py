"""
Each example does what its README says: its commands are run with real daemons, and what they print is compared.

The ports of the configuration are moved to free ones, so that examples run beside each other. `BROKER_TEST_SENDERS` is
the number of senders of the audit feed, 200 unless it is given.
"""

import os
import re
import shutil
import signal
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from examples.demo.topology import free_port

EXAMPLES = Path(__file__).parents[2] / "examples"
NAMES = sorted(page.parent.name for page in EXAMPLES.glob("*/README.md"))
SENDERS = int(os.environ.get("BROKER_TEST_SENDERS", "200"))
SECONDS = 150 + SENDERS / 10
PORT = re.compile(r"(?<=127\.0\.0\.1:)42\d\d|\b42\d\d(?=$| order| wait| >)", re.MULTILINE)
SHARES = re.compile(r"small counted (\d+), large (\d+)$", re.MULTILINE)


pytestmark = pytest.mark.timeout(SECONDS + 30)


def block(page: Path, language: str) -> str:
    """The first block of a page in a language."""
    found = re.search(rf"^```{language}\n(.*?)^```$", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    assert found is not None, page
    return found[1]


def copied(name: str, directory: Path) -> Path:
    """A copy of an example, on ports of its own."""
    shutil.copytree(EXAMPLES / name, directory, ignore=shutil.ignore_patterns("state", "__py*"))
    shutil.copy(EXAMPLES / "instances.sh", directory.parent)
    ports: dict[str, str] = {}
    for file in directory.iterdir():
        text = file.read_text(encoding="utf-8")
        if file.suffix in {".toml", ".sql", ".sh"}:
            file.write_text(PORT.sub(lambda found: ports.setdefault(found[0], str(free_port())), text))
    assert ports
    return directory


def printed(name: str, directory: Path, script: str) -> str:
    """What the commands print; the logs of the daemons are told when they fail."""
    environ = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    with subprocess.Popen(
        ["sh", "-euc", script], cwd=copied(name, directory), env=environ, text=True, start_new_session=True,
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    ) as running:  # fmt: skip
        try:
            told, problem = running.communicate(timeout=SECONDS)
        except subprocess.TimeoutExpired:
            os.killpg(running.pid, signal.SIGKILL)
            raise
    logs = "".join(f"\n{log.name}: {log.read_text()[-2000:]}" for log in directory.glob("state/*.log"))
    assert 0 == running.returncode, problem + logs
    return told


def test_every_example_is_told_in_the_list_of_examples() -> None:
    told = re.findall(r"^\| \[(\w+)\]", (EXAMPLES / "README.md").read_text(encoding="utf-8"), re.MULTILINE)

    assert NAMES == sorted(told)


@pytest.mark.parametrize("name", NAMES)
def test_every_file_of_an_example_is_told_on_its_page(name: str) -> None:
    page = (EXAMPLES / name / "README.md").read_text(encoding="utf-8")

    files = {file.name for file in (EXAMPLES / name).iterdir() if file.suffix in {".toml", ".sql", ".sh", ".py"}}

    assert files == {file for file in files if f"`{file}`" in page}


def test_outbox_sends_what_is_committed_and_nothing_else(tmp_path: Path) -> None:
    page = EXAMPLES / "outbox" / "README.md"

    assert block(page, "text") == printed("outbox", tmp_path / "example", block(page, "sh"))


def test_two_domains_are_paired_and_talk_sealed(tmp_path: Path) -> None:
    page = EXAMPLES / "two_domains" / "README.md"

    assert block(page, "text") == printed("two_domains", tmp_path / "example", block(page, "sh"))
    with closing(sqlite3.connect(tmp_path / "example" / "state" / "billing" / "billing.db")) as db:
        secured = db.execute("SELECT DISTINCT security, far_principal FROM broker_session_key").fetchall()
    assert [("FULL", "CN=orders")] == secured


def test_work_is_shared_by_weight(tmp_path: Path) -> None:
    """Of 200 dialogs 150 go to the large worker, give or take six standard deviations of 6.1."""
    page = EXAMPLES / "weighted_work" / "README.md"

    told = printed("weighted_work", tmp_path / "example", block(page, "sh"))

    shares = "small counted S, large L"
    assert SHARES.sub(shares, block(page, "text"), count=1) == SHARES.sub(shares, told, count=1)
    small, large = map(int, SHARES.findall(told)[0])
    assert 200 == small + large
    assert 113 <= large <= 187


def test_audit_feed_is_written_down_once_and_in_order(tmp_path: Path) -> None:
    page = EXAMPLES / "audit_feed" / "README.md"

    told = printed("audit_feed", tmp_path / "example", block(page, "sh").replace("200", str(SENDERS)))

    assert block(page, "text").replace("200", str(SENDERS)).replace("600", str(3 * SENDERS)) == told
