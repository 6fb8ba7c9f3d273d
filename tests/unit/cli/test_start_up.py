"""
What a command does not import, because it does not need it: the reason for which it starts at once.

The figures are in docs/terminal.md; they depend on the machine, what is imported does not.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import broker
from broker.admin.event_stream import PULSES
from broker.cli.group import COMMANDS, LASTING
from tests.support.command import run
from tests.support.journalled import visit, write
from tests.unit.cli.test_top import stream
from tests.unit.cli.test_top_screen import FULL

PACKAGE = Path(broker.__file__).parent
# Each of them takes a tenth of the time that a command may take, or more.
SLOW = (
    "aiohttp",
    "asyncio",
    "cryptography",
    "lark",
    "logging",
    "msgspec",
    "multiprocessing",
    "prometheus_client",
    "pydantic",
    "pyspark",
    "rich",
    "sqlglot",
    "structlog",
    "uvloop",
)
STATUS = {
    "name": "one", "ready": True, "uptime_s": 1, "software": "broker", "loop": "uvloop", "kernel": "compiled",
    "listen": [], "broker_instance": "B", "connections": [], "addresses": {}, "databases": {},
    "forwarding": dict.fromkeys(
        ("enabled", "forwarded", "delivered", "held", "pool_bytes", "pool_limit_bytes", "dropped", "unaccounted"), 0
    ),
}  # fmt: skip
ROWS = {"columns": ["a"], "rows": [[1]], "messages": []}


def imported(*arguments: str, of: tuple[str, ...]) -> list[str]:
    """Which of these packages are imported when the command `broker` has ended."""
    program = (
        "import sys\nfrom broker.cli import main\n"
        "try: main()\nexcept SystemExit: pass\n"
        f"print(*sorted(set({of!r}) & set(sys.modules)), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", program, *arguments], capture_output=True, text=True, check=True)
    return done.stderr.splitlines()[-1].split()


@pytest.mark.parametrize("name", ["", *sorted(COMMANDS)])
def test_the_help_of_a_command_imports_nothing_slow(name: str) -> None:
    assert [] == imported(*name.split(), "--help", of=SLOW)


@pytest.mark.parametrize(
    "arguments",
    [
        ["status"],
        ["top", "--once"],
        ["top", "--once", "-o", "json"],
        ["sql", "SELECT 1"],
    ],
    ids=" ".join,
)
def test_a_command_that_finds_no_daemon_imports_nothing_slow(arguments: list[str]) -> None:
    assert [] == imported(*arguments, "--socket", "/nonexistent/admin.sock", of=(*SLOW, "sqlite3"))


@pytest.mark.parametrize(
    "arguments", [["explain", "--to", "b"], ["why", "5b0f3c1e-5d5e-4f0b-8a55-0e9b0b9c2f11"]], ids=" ".join
)
def test_a_command_that_reads_whole_answers_imports_what_reads_them(arguments: list[str]) -> None:
    assert imported(*arguments, "--socket", "/nonexistent/admin.sock", of=SLOW) in ([], ["msgspec"])


@pytest.mark.parametrize("output", ["table", "json"])
@pytest.mark.parametrize(
    ("arguments", "target", "answer"),
    [
        (["status"], "/v1/status", STATUS),
        (["sql", "SELECT 1"], "/v1/sql", ROWS),
    ],
    ids=["status", "sql"],
)
def test_a_command_that_asks_a_daemon_imports_nothing_slow(
    fake_admin: Any, arguments: list[str], target: str, answer: dict[str, Any], output: str
) -> None:
    fake_admin.answers[target] = (200, answer)

    found = imported(*arguments, "--socket", str(fake_admin.path), "-o", output, of=(*SLOW, "sqlite3"))

    assert [] == found
    assert [target] == [asked for _, asked, _ in fake_admin.asked]


def test_a_command_that_plans_leaves_the_parser_to_the_daemon(tmp_path: Path) -> None:
    script = tmp_path / "routes.sql"
    script.write_text("DROP ROUTE r", encoding="utf-8")

    assert [] == imported("routes", "plan", "--socket", "/nonexistent/admin.sock", str(script), of=SLOW)


@pytest.mark.parametrize(
    "arguments",
    [
        ["send", "-d", "FILE", "--from", "Orders", "--to", "b", "x"],
        ["receive", "-d", "FILE", "--queue", "OrdersQueue"],
        ["quarantine", "list", "-d", "FILE"],
        ["dialogs", "end", "-d", "FILE", "--older-than", "7d", "--dry-run"],
        ["dialogs", "census", "-d", "FILE"],
    ],
    ids=" ".join,
)
def test_a_command_on_a_file_needs_no_daemons_parts(shop: Path, arguments: list[str]) -> None:
    words = [str(shop) if word == "FILE" else word for word in arguments]

    assert imported(*words, of=SLOW) in ([], ["msgspec"])


@pytest.mark.parametrize(
    "arguments",
    [
        ["config", "show"],
        ["token", "list"],
        ["check", "--offline"],
        ["explain", "--to", "//shop/Orders", "--incoming"],
    ],
    ids=" ".join,
)
def test_a_command_that_reads_a_configuration_needs_no_daemons_parts(tmp_path: Path, arguments: list[str]) -> None:
    """What certificates, logs and screens need is not imported where there are none."""
    config, script = tmp_path / "broker.toml", tmp_path / "routes.sql"
    config.write_text(
        '[instance]\nstate_dir = "."\n[endpoint]\nlisten = ["127.0.0.1:4022"]\n[routes]\nfiles = ["routes.sql"]\n'
        '[databases.orders]\npath = "orders.db"\n',
        encoding="utf-8",
    )
    script.write_text("CREATE ROUTE r WITH ADDRESS = 'LOCAL'; DROP ROUTE r", encoding="utf-8")

    assert imported(*arguments, "-c", str(config), of=SLOW) in ([], ["msgspec"])


@pytest.mark.parametrize("command", [["check"], ["explain", "--to", "//shop/Orders", "--incoming"]], ids=" ".join)
def test_scripts_are_played_without_what_carries_them_out(tmp_path: Path, command: list[str]) -> None:
    config = tmp_path / "broker.toml"
    config.write_text('instance = { name = "a", state_dir = "." }\n', encoding="utf-8")
    asking = ("email", "http.client", "pyexpat", "socket", "ssl", "tempfile")
    unasked = ("hashlib", "queue")  # OpenSSL, and what asks resolvers
    parts = (*asking, *unasked, "broker.application", "broker.control.config", "broker.forwarding.kernel_choice")

    assert ["broker.control.config"] == imported(*command, "--offline", "-c", str(config), of=parts)


def test_http_is_not_spoken_where_nobody_answers(tmp_path: Path) -> None:
    config = tmp_path / "broker.toml"
    config.write_text('instance = { name = "a", state_dir = "." }\n', encoding="utf-8")

    assert [] == imported("explain", "--to", "b", "--incoming", "-c", str(config), of=("email", "http.client", "ssl"))


@pytest.mark.parametrize(
    "words",
    [["stats"], ["tail"], ["tail", "--outcome", "dropped"], ["tail", "--conversation", "0" * 32]],
    ids=" ".join,
)
def test_journals_are_read_without_what_pyarrow_can_do_besides(tmp_path: Path, words: list[str]) -> None:
    """Of numpy, pandas and what asks data sets nothing is needed; either takes longer than all else."""
    visits = [visit(number, outcome="dropped", reason="no route", code=9798) for number in range(3)]
    write(tmp_path / "a.parquet", *visits)
    parts = ("numpy", "pandas", "pyarrow.acero", "pyarrow.compute", "pyarrow.dataset", "pyarrow.parquet")

    assert ["pyarrow.parquet"] == imported("flows", *words, str(tmp_path), of=parts)


def test_certificates_are_shown_without_what_makes_them_and_without_settings(tmp_path: Path) -> None:
    assert 0 == run("certs", "init", "--self-signed", "--name", "a", tmp_path).exit_code
    parts = ("broker.control.config", "broker.security.described", "broker.security.issue")

    assert ["broker.security.described"] == imported("certs", "show", str(tmp_path / "a.pem"), of=parts)


def test_a_database_is_kept_without_the_other_settings(tmp_path: Path, shop: Path) -> None:
    config = tmp_path / "broker.toml"
    config.write_text('instance = { name = "a", state_dir = "." }\n', encoding="utf-8")
    parts = (*SLOW, "broker.control.config", "broker.store.fence")

    assert ["broker.store.fence"] == imported("database", "keep", str(shop), "-c", str(config), "--dry-run", of=parts)


def test_top_as_text_needs_nothing_that_draws_a_screen(fake_admin: Any) -> None:
    fake_admin.answers[PULSES] = (200, stream(FULL, FULL))

    assert [] == imported("top", "--once", "--socket", str(fake_admin.path), of=SLOW)


def test_a_configuration_is_shown_without_what_reads_messages(tmp_path: Path) -> None:
    config = tmp_path / "broker.toml"
    config.write_text('instance = { name = "a", state_dir = "." }\n', encoding="utf-8")

    assert [] == imported("config", "show", "-c", str(config), of=(*SLOW, "socket", "sqlite3", "tempfile"))


def test_a_command_that_asks_a_daemon_does_not_check_its_configuration(tmp_path: Path) -> None:
    config = tmp_path / "broker.toml"
    config.write_text('instance = { name = "a", state_dir = "." }\n', encoding="utf-8")

    assert [] == imported("status", "-c", str(config), of=SLOW)


def test_what_is_loaded_before_a_command_is_left_out_of_collections() -> None:
    """A twentieth of the processor time of each; and nothing of a program that has commands run, as tests do."""
    told = "print(gc.get_freeze_count() > 10_000, gc.get_threshold()[0] == usual)"

    assert ["True False", "False True"] == [_collections(ask, told, "--version") for ask in ("", "['--version']")]


@pytest.mark.parametrize("word", sorted(LASTING))
def test_a_command_that_stays_has_its_garbage_collected_as_usual(word: str) -> None:
    assert "True" == _collections("", "print(gc.get_threshold()[0] == usual)", word, "--help")


def test_at_the_end_of_a_command_nothing_is_left_to_look_at() -> None:
    """Nothing that a cycle keeps is destroyed one by one; what others have registered for the end is done."""
    program = (
        "import atexit\nfrom broker.cli import main\natexit.register(print, 'registered')\n"
        "class Knot:\n    def __init__(self): self.me = self\n    def __del__(self): print('destroyed')\n"
        "try: main()\nexcept SystemExit: Knot()"
    )

    told = [
        subprocess.run([sys.executable, "-c", program, *words], capture_output=True, text=True, check=True)
        for words in (["--version"], ["serve", "--help"])
    ]

    assert [(True, False), (True, True)] == [("registered" in one.stdout, "destroyed" in one.stdout) for one in told]


def _collections(ask: str, told: str, *words: str) -> str:
    """What is told of the collector behind `main(ask)`."""
    program = (
        "import gc, sys\nfrom broker.cli import main\nusual = gc.get_threshold()[0]\n"
        f"try: main({ask})\nexcept SystemExit: pass\n"
        f"sys.stdout = sys.stderr\n{told}"
    )
    done = subprocess.run([sys.executable, "-c", program, *words], capture_output=True, text=True, check=True)
    return done.stderr.strip()


def test_the_package_itself_imports_nothing_until_a_name_is_asked_for() -> None:
    program = (
        "import sys, broker; before = {n for n in sys.modules if n.startswith('broker.')}\n"
        "from broker import begin_dialog, BrokerError; import broker.errors\n"
        "assert broker.errors.BrokerError is BrokerError and broker.aio and callable(broker.receive)\n"
        "assert set(broker.__all__) <= set(dir(broker))\n"
        "print(sorted(before), hasattr(broker, 'nothing'))"
    )

    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)

    assert "[] False\n" == done.stdout


def test_every_name_of_the_package_is_there() -> None:
    program = "import broker; print([name for name in broker.__all__ if getattr(broker, name, None) is None])"

    assert "[]\n" == subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout


def test_handlers_of_statements_name_their_type() -> None:
    """Else `singledispatch` works out every annotation of each, when its module is imported: 2 ms in all."""
    bare = re.compile(r"^@\w+\.register$", re.MULTILINE)

    assert [] == [path.name for path in PACKAGE.rglob("*.py") if bare.search(path.read_text(encoding="utf-8"))]
