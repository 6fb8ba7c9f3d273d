"""One instance leaves: nobody new is taken, peers and databases are told, and what is left is looked up."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from broker.config.settings import DrainSettings, Settings
from broker.daemon.instance import Instance, serve
from broker.daemon.reload import open_journal
from broker.dialog.endpoint import Endpoint
from broker.errors import SettingError
from broker.journal.writer import Journal
from broker.routing.decide import NOBODY

CONFIG = """
[instance]
state_dir = "."
[endpoint]
listen = ["127.0.0.1:0"]
[databases.orders]
path = "orders.db"
[observe]
listen = ""
"""


@pytest.fixture
async def instance(tmp_path: Path) -> AsyncIterator[Instance]:
    (tmp_path / "broker.toml").write_text(CONFIG)
    async with serve(tmp_path / "broker.toml") as served:
        yield served


async def test_ports_close_before_peers_are_told_and_partners_have_what_is_shared(
    instance: Instance, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[str] = []

    def note(part: object, call: str) -> None:
        real = getattr(part, call)

        def noted(*given: Any, **named: Any) -> Any:
            told.append(" ".join([call, *map(str, named.values())]))
            return real(*given, **named)

        monkeypatch.setattr(part, call, noted)

    note(instance.listeners[0], "finish")
    note(instance.peers.own_departure, "announce")
    note(instance.endpoints["orders"], "quiesce")
    note(instance.databases, "hand_over")

    await instance.leave(20.0)

    assert ["finish", "announce the instance drains 20.0", "quiesce", "hand_over"] == told


async def test_a_database_is_waited_for_while_it_is_busy_and_works(
    instance: Instance, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = []
    with monkeypatch.context() as patch:
        for is_quiet, problem in ((True, ""), (False, ""), (False, "disk full")):
            patch.setattr(Endpoint, "is_quiet", is_quiet)
            patch.setattr(instance.endpoints["orders"], "problem", problem)
            found.append((await instance.remainder()).busy)

    assert [(), ("orders",), ()] == found


async def test_instance_that_drains_is_not_ready_and_goes_by_the_settings_of_that_moment(instance: Instance) -> None:
    instance.settings = instance.settings.replace(drain=DrainSettings().replace(announce=0.0, timeout=7.0))
    instance.drain.probed()

    with capture_logs() as logs:
        await instance.drain.end("SIGTERM")

    assert (False, True, True) == (instance.is_ready, instance.stopping.is_set(), instance.drain.is_clean)
    assert [(0.0, 7.0)] == [
        (one["announce_s"], one["timeout_s"]) for one in logs if one["event"] == "instance draining"
    ]


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
