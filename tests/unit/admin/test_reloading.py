"""Reloading on command: what the answer tells, who may, and what is written down."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from broker.admin.api import ReloadRequest, reload_now
from broker.admin.auth import Caller
from broker.config.values import AdminRole
from broker.daemon.instance import Instance
from broker.errors import RequestError
from tests.unit.admin.conftest import CONFIGURATION, Ask

OPERATOR = Caller("user:otto", "a test", AdminRole.OPERATOR)


def write(path: Path, text: str) -> None:
    path.write_text(text)


def audited(instance: Instance) -> list[Mapping[str, Any]]:
    path = instance.settings.admin.audit
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


async def test_the_answer_tells_each_setting_and_what_became_of_it(
    ask: Ask, configuration: Path, instance: Instance
) -> None:
    write(configuration, CONFIGURATION + "[dialog]\nwindow = 3\nfragment_size = '32KiB'\n")

    status, answer = await ask("POST", "/v1/reload", {})

    told = {one["key"]: (one["effect"], one["before"], one["after"]) for one in answer["settings"]}
    assert (200, True, ["dialog.fragment_size"]) == (status, answer["changed"], answer["waiting"])
    assert {
        "dialog.window": ("live", "1024", "3"),
        "dialog.fragment_size": ("restart", '"64KiB"', '"32KiB"'),
    } == told
    assert 3 == instance.settings.dialog.window


async def test_what_changes_is_written_down_and_what_waits_is_not(
    ask: Ask, configuration: Path, instance: Instance
) -> None:
    write(configuration, CONFIGURATION + "[dialog]\nwindow = 3\nfragment_size = '32KiB'\n")

    await ask("POST", "/v1/reload", {})

    [line] = audited(instance)
    assert ("configuration: dialog.window", "done") == (line["target"], line["outcome"])


async def test_a_dry_run_changes_nothing_and_writes_nothing(ask: Ask, configuration: Path, instance: Instance) -> None:
    write(configuration, CONFIGURATION + "[dialog]\nwindow = 3\n")

    status, answer = await ask("POST", "/v1/reload", {"dry_run": True})

    assert (200, True, True, 1024) == (status, answer["changed"], answer["dry_run"], instance.settings.dialog.window)
    assert [] == audited(instance)


async def test_a_wrong_configuration_is_a_problem_with_every_place(ask: Ask, configuration: Path) -> None:
    write(configuration, CONFIGURATION + "[dialog]\nwindow = 0\nhop_limit = 0\n")

    status, problem = await ask("POST", "/v1/reload", {})

    lines = CONFIGURATION.count("\n")
    assert (422, "urn:broker:problem:configuration", 0) == (status, problem["type"], problem["more_errors"])
    assert [("dialog.window", lines + 2, 10), ("dialog.hop_limit", lines + 3, 13)] == [
        (one["key"], one["line"], one["column"]) for one in problem["errors"]
    ]
    assert all(str(configuration) in one["text"] and one["hint"] for one in problem["errors"])


async def test_a_reload_that_failed_is_shown_until_one_succeeds(ask: Ask, configuration: Path) -> None:
    write(configuration, "[endpoint\n")
    await ask("POST", "/v1/reload", {})
    _, failed = await ask("GET", "/v1/status")

    write(configuration, CONFIGURATION)
    await ask("POST", "/v1/reload", {})
    _, good = await ask("GET", "/v1/status")

    assert (False, True, 1) == (
        failed["reload"]["successful"],
        bool(failed["reload"]["problem"]),
        failed["reload"]["failed"],
    )
    assert (True, "", 1) == (good["reload"]["successful"], good["reload"]["problem"], good["reload"]["succeeded"])


async def test_metrics_and_health_tell_it_too_and_the_instance_stays_ready(
    ask: Ask, configuration: Path, instance: Instance
) -> None:
    write(configuration, "[endpoint\n")
    await ask("POST", "/v1/reload", {})

    async with aiohttp.ClientSession(f"http://{instance.admin.observe_address}") as session:
        metrics = await (await session.get("/metrics")).text()
        response = await session.get("/readyz?verbose")
        health = await response.text()

    assert "broker_config_last_reload_successful 0.0" in metrics
    assert 'broker_config_reloads_total{result="failed"} 1.0' in metrics
    assert (200, True) == (response.status, "[!] configuration: not reloaded" in health)


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("[admin.roles]\n'user:1' = 'admin'\n", "admin.roles"),
        ("[databases.orders]\npath = 'orders.db'\npeers = []\ncertificate = ''\n", ""),
    ],
)
async def test_what_decides_who_is_believed_takes_an_admin(
    configuration: Path, instance: Instance, text: str, named: str
) -> None:
    base = (
        CONFIGURATION.replace('[databases.orders]\npath = "orders.db"\n', "") if "databases" in text else CONFIGURATION
    )
    write(configuration, base + text)
    reloading = reload_now(instance.reloads, instance.admin.audit, ReloadRequest(), OPERATOR)

    if named:
        with pytest.raises(RequestError, match=r"admin\.roles takes the role admin"):
            await reloading
        assert (True, {}) == (instance.reloads.is_successful, dict(instance.settings.admin.roles))
    else:
        assert not (await reloading).changed


async def test_an_operator_has_no_permission_given_by_a_script(configuration: Path, instance: Instance) -> None:
    write(configuration.parent / "grant.sql", "GRANT CONNECT ON ENDPOINT::[*] TO [CN=a];")
    write(configuration, CONFIGURATION + "[routes]\nfiles = ['grant.sql']\n")

    with pytest.raises(RequestError, match="takes the role admin"):
        await reload_now(instance.reloads, instance.admin.audit, ReloadRequest(), OPERATOR)

    assert () == tuple(instance.catalog.msdb.rows.permissions)


async def test_a_reload_by_signal_is_written_down_as_one(configuration: Path, instance: Instance) -> None:
    write(configuration, CONFIGURATION + "[dialog]\nwindow = 3\n")

    await instance.reloads.reload()

    [line] = audited(instance)
    assert ("signal SIGHUP", "SIGHUP") == (line["who"], line["operation"])


async def test_the_port_that_is_asked_may_itself_be_moved(ask: Ask, configuration: Path, instance: Instance) -> None:
    """The answer comes by the old one, which accepts nobody any more; the new one serves."""
    write(configuration, CONFIGURATION.replace("[admin]\n", "[admin]\nsocket = 'new.sock'\n"))

    status, _ = await ask("POST", "/v1/reload", {})

    connector = aiohttp.UnixConnector(str(configuration.parent / "new.sock"))
    async with aiohttp.ClientSession(connector=connector) as session:
        response = await session.get("http://localhost/v1/status")
        assert (200, 200) == (status, response.status)
    assert not (configuration.parent / "admin.sock").exists()
    await asyncio.sleep(0)
    assert configuration.parent / "new.sock" == instance.settings.admin.socket
