"""The package as applications import it."""

import subprocess
import sys
from pathlib import Path

import broker
import broker.errors
from tests.support.shop import Shop

FIRST_CALLS = """
import sqlite3, sys
import broker

db = sqlite3.connect(sys.argv[1])
dialog = broker.begin_dialog(db, from_service="Orders", to_service="Billing")
broker.get_dialog(db, dialog.conversation_handle).send(b"body", headers={"name": "text"})
[message] = broker.receive(db, queue="OrdersQueue")
db.commit()
print(*sys.modules)
"""
HEAVY = {
    *("asyncio", "concurrent.futures", "dataclasses", "email", "hashlib", "html", "inspect", "logging", "pathlib"),
    *("random", "secrets", "shutil", "subprocess", "tempfile", "xml.parsers.expat"),
}


def test_every_name_of_the_package_is_there() -> None:
    assert [] == [name for name in broker.__all__ if getattr(broker, name, None) is None]
    assert set(broker.__all__) <= set(dir(broker))
    assert broker.errors.BrokerError is broker.BrokerError
    assert not hasattr(broker, "nothing")


def test_sending_and_receiving_need_no_other_package_and_nothing_heavy(tmp_path: Path) -> None:
    shop = Shop(tmp_path / "shop.db")
    shop.arrive(shop.begin(shop.connect(isolation_level=None)), b"hello")
    shop.close()
    root = str(Path(broker.__file__).parents[1])

    command = [sys.executable, "-S", "-c", FIRST_CALLS, str(shop.path)]  # -S: without site-packages
    output = subprocess.run(command, env={"PYTHONPATH": root}, check=True, capture_output=True, text=True).stdout

    assert set() == HEAVY & set(output.split())


def test_a_daemon_parses_no_query_before_it_is_asked_one() -> None:
    program = "import sys, broker.cli.serve, broker.daemon.instance; print(*sys.modules)"
    output = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True).stdout

    assert not {"sqlglot", "pyarrow", "opentelemetry.sdk"} & set(output.split())


def test_questions_of_an_operator_start_without_what_a_daemon_is_made_of() -> None:
    program = "import sys, broker.cli.status, broker.cli.sql, broker.cli.health; print(*sys.modules)"
    output = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True).stdout

    of_a_daemon = ("broker.net", "broker.dialog", "broker.client", "broker.catalog", "broker.observe.health", "aiohttp")
    assert [] == [name for name in output.split() if name.startswith(of_a_daemon)]
