"""`broker partner`: what is refused before anything is changed, and what is printed."""

import json
from pathlib import Path
from typing import Any

import pytest

from broker.admin.client import AdminClient
from broker.catalog.partner import export, read_partner
from tests.support.command import run
from tests.support.partners import configured, instance, settings_of

ORDERS, BILLING = "//shop/Orders", "//shop/Billing"
SERVICES = {"columns": ["name"], "rows": [[ORDERS]], "messages": []}
EXPORT = ("partner", "export", "--service", ORDERS, "--to", BILLING)


def config_of(directory: Path, socket: Path, **endpoint: Any) -> Path:
    """Of the instance orders, with an admin socket."""
    sections = settings_of("orders", directory) | {"admin": {"socket": str(socket)}}
    sections["endpoint"] |= endpoint
    configured(directory, sections)
    return directory / "broker.toml"


@pytest.fixture
def config(tmp_path: Path, fake_admin: Any) -> Path:
    """Of an instance with the service //shop/Orders, whose daemon answers."""
    fake_admin.answers["/v1/sql"] = (200, SERVICES)
    return config_of(tmp_path / "orders", fake_admin.path, advertise=["tcp://orders.example:4022"])


@pytest.fixture
def billing(tmp_path: Path) -> Path:
    """The file of a partner."""
    settings = instance(tmp_path / "billing")
    path = tmp_path / "billing.partner"
    path.write_text(export(settings, "billing", [BILLING], [ORDERS], ["tcp://billing.example"]), encoding="utf-8")
    return path


def test_file_is_printed_and_its_fingerprint_beside_it(config: Path) -> None:
    result = run(*EXPORT, "-c", config)

    assert 0 == result.exit_code, result.output
    found = read_partner(result.stdout.encode())
    assert ("tcp://orders.example:4022",) == found.file.addresses
    assert f"compare by phone: {found.fingerprint}\n" == result.stderr


@pytest.mark.parametrize(
    ("arguments", "code", "problem"),
    [
        ("export --to x", 2, "name the services: --service of this side"),
        ("export --service x --to y -d other", 2, "name the --database of the services: orders"),
        ("export --service //shop/Order --to x", 1, "orders has no service //shop/Order; it has: //shop/Orders"),
        (f"export --service {ORDERS} --to x --address LOCAL", 1, "no other machine could dial LOCAL"),
        ("import -", 1, "not a partner file: the file has no version"),
    ],
)
def test_what_is_refused(config: Path, arguments: str, code: int, problem: str) -> None:
    result = run("partner", *arguments.split(), "-c", config, stdin="colour = 1")

    assert code == result.exit_code
    assert problem in " ".join(result.stderr.split())


def test_address_has_to_be_known(tmp_path: Path, fake_admin: Any) -> None:
    result = run(*EXPORT, "-c", config_of(tmp_path, fake_admin.path))

    assert 2 == result.exit_code
    assert "give --address tcp://HOST:PORT, or set endpoint.advertise" in " ".join(result.stderr.split())


@pytest.fixture
def scripts(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What the daemon, which has the service and nothing else, is asked to carry out."""
    found: list[str] = []

    def sql(_client: AdminClient, statement: str, _database: str | None = None) -> dict[str, Any]:
        if not statement.startswith("SELECT"):
            found.append(statement)
        return {"rows": [[ORDERS]] if "sys.services" in statement else []}

    monkeypatch.setattr(AdminClient, "sql", sql)
    return found


def test_import_shows_what_it_would_change_and_asks(config: Path, billing: Path, scripts: list[str]) -> None:
    peers = config.parent / "tls" / "peers" / "partner-billing.pem"

    asked = run("partner", "import", billing, "-c", config)
    dry = run("partner", "import", billing, "-c", config, "--dry-run", "-o", "json")

    assert (2, False) == (asked.exit_code, peers.exists())
    assert "compare by phone: sha256:" in asked.stdout
    assert f"write {peers}" in asked.stdout
    assert "GRANT CONNECT ON ENDPOINT::[*] TO [CN=billing];" in asked.stdout
    assert "confirm it with --yes" in " ".join(asked.stderr.split())
    told = json.loads(dry.stdout)
    assert (0, False, 2, 7) == (dry.exit_code, told["is_changed"], len(told["files"]), len(told["statements"]))
    assert not scripts

    done = run("partner", "import", billing, "-c", config, "--yes")

    assert (0, True) == (done.exit_code, peers.exists())
    assert done.stdout.endswith("done\n")
    assert [told["statements"]] == [script.splitlines() for script in scripts]
