"""What comes by files is written down as well."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from broker.admin import files
from broker.admin.audit import CHANGES_MAX, Audit
from broker.admin.audit_file import AuditFile
from broker.admin.files import audit_file_of, script_seen, write_certificates
from broker.control.definition import Change
from broker.control.load import load_settings
from broker.daemon import serve
from broker.ddl.parser import parse_script
from broker.errors import StoreUnavailableError


@pytest.fixture
def scripted(configuration: Path) -> Path:
    """An instance with a script; its directory."""
    text = configuration.read_text()
    configuration.write_text(text.replace('path = "orders.db"', 'path = "orders.db"\nscripts = ["a.sql"]'))
    (configuration.parent / "a.sql").write_text("CREATE QUEUE q; CREATE SERVICE s ON QUEUE q;")
    return configuration


def lines(directory: Path) -> list[dict[str, Any]]:
    path = directory / "audit.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


async def start(configuration: Path) -> list[dict[str, Any]]:
    """Start and stop; the audit then."""
    async with serve(configuration):
        pass
    return lines(configuration.parent)


async def test_a_start_writes_down_what_its_scripts_change_and_the_next_one_nothing(scripted: Path) -> None:
    first = await start(scripted)
    second = await start(scripted)

    told = [(one["who"], one["from"], one["operation"], one["database"], one["target"]) for one in first]
    who, origin = "configuration", f"script {scripted.parent / 'a.sql'}"
    assert [
        (who, origin, "CREATE QUEUE", "orders", "q"),
        (who, origin, "CREATE SERVICE", "orders", "s"),
    ] == told
    assert {"QUEUE": "q", "CONTRACTS": []} == first[1]["after"]
    assert first == second


async def test_a_script_that_was_edited_while_nobody_ran_is_told_before_and_after(scripted: Path) -> None:
    await start(scripted)
    (scripted.parent / "a.sql").write_text("CREATE QUEUE q WITH STATUS = OFF; CREATE SERVICE s ON QUEUE q;")

    [*_, last] = told = await start(scripted)

    assert (3, "CREATE QUEUE", "ON", "OFF") == (
        len(told),
        last["operation"],
        last["before"]["STATUS"],
        last["after"]["STATUS"],
    )


async def test_an_instance_that_cannot_write_down_what_its_scripts_change_does_not_start(scripted: Path) -> None:
    (scripted.parent / "audit.jsonl").mkdir()

    with pytest.raises(StoreUnavailableError, match=r"audit.jsonl: what script .*a.sql changes cannot be written down"):
        await start(scripted)


def test_of_a_huge_script_what_was_not_looked_at_is_counted(
    configuration: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "LOOKED_AT_MAX", 2)
    seen = script_seen(load_settings(configuration, environ={}), Path("/a.sql"))
    [statement] = parse_script("DROP ROUTE a")

    seen.note(Change("orders", statement, {"ADDRESS": "LOCAL"}, None))
    seen.note(Change("orders", statement, None, None))
    seen.seal(50)

    assert (0, ["a", "48 more statements"]) == (seen.room, [one["target"] for one in lines(configuration.parent)])


def test_it_looks_on_where_nothing_is_changed(configuration: Path) -> None:
    """Else a script that begins with a thousand routes that are there would hide what follows."""
    seen = script_seen(load_settings(configuration, environ={}), Path("/a.sql"))
    [statement] = parse_script("DROP ROUTE a")
    for _ in range(CHANGES_MAX + 1):
        seen.note(Change("orders", statement, None, None))

    seen.seal(CHANGES_MAX + 1)

    assert (CHANGES_MAX, []) == (seen.room, lines(configuration.parent))


def test_certificates_are_told_as_those_that_count_no_more_and_those_that_do(tmp_path: Path) -> None:
    audit = Audit(AuditFile(tmp_path / "audit.jsonl", 1 << 20, 2))

    write_certificates(audit, "endpoint", {"trust": ["CN=old sha256:aa"]}, {})

    [line] = lines(tmp_path)
    assert ("certificate files", "certificates", "endpoint", {"trust": ["CN=old sha256:aa"]}, None, "done") == (
        *(line[key] for key in ("who", "operation", "target", "before")),
        line.get("after"),
        line["outcome"],
    )


def test_the_file_is_that_of_the_settings(configuration: Path) -> None:
    settings = load_settings(configuration, environ={})

    assert AuditFile(configuration.parent / "audit.jsonl", 16 << 20, 9) == audit_file_of(settings)
