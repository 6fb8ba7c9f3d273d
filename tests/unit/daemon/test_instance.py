"""One instance leaves: nobody new is taken, peers and databases are told, and what is left is looked up."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any, cast

import pytest
from structlog.testing import capture_logs

from broker.config.settings import DrainSettings, Settings
from broker.daemon.instance import InstanceLeaver, serve
from broker.daemon.reload import open_journal
from broker.errors import SettingError
from broker.journal.writer import Journal
from broker.net.drain import Drain, DrainRemainder
from broker.routing.decide import NOBODY


class Database:
    """As much of a database at work as this is about."""

    def __init__(self, told: list[str], *, is_quiet: bool = True, problem: str = "") -> None:
        self.is_quiet = is_quiet
        self.problem = problem
        self._told = told

    def quiesce(self) -> None:
        self._told.append("database rests")


class Instance:
    """Listener, peers and databases in one, which note what they are told, in order."""

    def __init__(self) -> None:
        self.told: list[str] = []
        self.settings = Settings()
        self.is_ready = True
        self.stopping = asyncio.Event()
        self.endpoints: dict[str, Database] = {}
        self.listeners = [self]
        self.peers = self.databases = self

    def finish(self) -> None:
        self.told.append("no new connections")

    def announce_departure(self, *, reason: str, seconds: float) -> None:
        self.told.append(f"GOAWAY {reason} in {seconds:g} s")

    def remainder(self) -> DrainRemainder:
        return DrainRemainder(held=3)

    async def hand_over(self) -> None:
        self.told.append("handed over")


async def test_ports_close_before_peers_are_told_and_partners_have_what_is_shared() -> None:
    instance = Instance()
    instance.endpoints |= {
        "resting": Database(instance.told),
        "busy": Database(instance.told, is_quiet=False),
        "broken": Database(instance.told, is_quiet=False, problem="disk full"),
    }
    leaver = InstanceLeaver(cast("Any", instance))

    assert DrainRemainder(held=3, busy=("busy",)) == await leaver.remainder()
    await leaver.leave(20.0)

    rest = ["database rests"] * 3
    assert ["no new connections", "GOAWAY the instance drains in 20 s", *rest, "handed over"] == instance.told


async def test_instance_that_drains_is_not_ready_and_goes_by_the_settings_of_that_moment() -> None:
    instance = Instance()
    drain = Drain(InstanceLeaver(cast("Any", instance)), lambda: instance.settings.drain)
    brief = DrainSettings().replace(announce=0.0, timeout=0.05)
    instance.settings = instance.settings.replace(drain=brief)

    await drain.end("SIGTERM")

    assert (False, True, False) == (instance.is_ready, instance.stopping.is_set(), drain.is_clean)


def settings(directory: Path | None, *, enabled: bool = False) -> Settings:
    journal = {} if directory is None else {"directory": str(directory)}
    return Settings.read({"journal": journal, "tracing": {"enabled": enabled}})


def opened(settings: Settings) -> Journal | None:
    return open_journal(settings, adjacent_of=lambda _: "", principals=lambda: NOBODY)


@pytest.mark.parametrize(("enabled", "disabled"), [(False, ""), (True, ""), (True, "true")])
async def test_what_follows_it_is_opened_and_closed_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, enabled: bool, disabled: str
) -> None:
    monkeypatch.setenv("OTEL_SDK_DISABLED", disabled)

    assert opened(settings(None)) is None
    journal = opened(settings(tmp_path, enabled=enabled))

    assert journal is not None
    assert (enabled and not disabled) == (journal._tracing is not None)
    assert (0, 0, 0) == tuple(journal.status()[name] for name in ("spans", "spans_pending", "spans_dropped"))
    await journal.close()


async def test_an_environment_that_is_refused_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_BSP_MAX_QUEUE_SIZE", "many")

    with pytest.raises(SettingError, match="OpenTelemetry refuses to begin") as caught:
        opened(settings(tmp_path, enabled=True))

    assert "OTEL_" in str(caught.value)


@pytest.mark.parametrize(("address", "warned"), [("LOCAL", []), ("tcp://127.0.0.1:1", ["endpoint.encryption"])])
async def test_plain_text_is_logged_only_where_something_listens_or_leads_out(
    tmp_path: Path, address: str, warned: list[str]
) -> None:
    (tmp_path / "routes.sql").write_text(f"CREATE ROUTE r WITH ADDRESS = '{address}';")
    path = tmp_path / "broker.toml"
    path.write_text(
        '[instance]\nstate_dir = "."\n[endpoint]\nlisten = []\nmessage_forwarding = true\n'
        '[routes]\nfiles = ["routes.sql"]\n[observe]\nlisten = ""\n[drain]\nannounce = "0s"\n'
    )

    with capture_logs() as logs:
        async with serve(path):
            pass

    assert warned == [one["setting"] for one in logs if one["event"] == "setting is unwise"]
