"""The order of a reload: everything that can fail comes first, what is swapped comes last, one at a time."""

import asyncio
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AsyncExitStack, nullcontext
from pathlib import Path
from typing import Any, cast

import pytest

from broker.catalog.catalog import MSDB, Catalog, Database
from broker.catalog.reload import CarryOut, ReloadRefusedError, Reloads, reload_part
from broker.config.load import load_settings
from broker.config.reload_diff import Difference
from broker.config.settings import Settings
from broker.errors import ListenFailedError, RequestError, SettingsError

TEXT = '[instance]\nstate_dir = "."\n[endpoint]\nlisten = ["127.0.0.1:0"]\nencryption = "disabled"\n'


class Book:
    """Where changes are written down; `refuses` everything when it is full."""

    def __init__(self, told: list[str]) -> None:
        self.told = told
        self.is_full = False

    def allow(self, changed: Sequence[Difference]) -> None:
        self.told.append("allowed")

    def permitted(self, statements: Iterable[Any]) -> Iterator[Any]:
        return iter(statements)

    def note(self, database: str, statement: Any) -> None:
        raise AssertionError((database, statement))

    def seal(self, statements: int) -> None:
        self.told.append("scripts")

    def seal_reload(self, keys: Sequence[str]) -> None:
        if self.is_full:
            raise RequestError("the book is full")
        self.told.append(f"written {sorted(keys)}")

    def end_badly(self, error: BaseException) -> None:
        self.told.append("ended badly")


class One:
    """Something that can be reloaded. Shape: `told` what happened to it, in order."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.stopping = asyncio.Event()
        self.told: list[str] = []
        self.admin = Book(self.told)
        self.catalog = Catalog({MSDB: Database(MSDB, bytes(16), None, cast("Any", nullcontext))}, lambda: None)
        self.fails: Exception | None = None

    async def prepare(self, settings: Settings, changed: Sequence[Difference], undo: AsyncExitStack) -> CarryOut:
        undo.callback(self.told.append, "taken back")
        if self.fails is not None:
            raise self.fails
        self.told.append("prepared")

        async def carry_out() -> None:
            self.settings = settings
            self.told.append("swapped")

        return carry_out

    def connections(self, before: float) -> int:
        return 3


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "broker.toml"
    path.write_text(TEXT)
    return path


def write(file: Path, text: str, *, listen: str = "127.0.0.1:0", base: str = TEXT) -> None:
    file.write_text(base.replace("127.0.0.1:0", listen) + text)


def made(file: Path) -> tuple[One, Reloads]:
    one = One(load_settings(file, environ={}))
    return one, Reloads(one)


async def test_it_is_made_ready_then_written_down_then_swapped(file: Path) -> None:
    """Connections that are older than a change for new ones are counted."""
    one, reloads = made(file)
    write(file, "max_hops = 3\nheartbeat = '3s'\n")

    done = await reloads.reload(one.admin)

    assert ["allowed", "prepared", "written ['endpoint.heartbeat', 'endpoint.max_hops']", "swapped"] == one.told
    assert (True, 3, 1) == (done.changed, one.settings.endpoint.max_hops, reloads.succeeded)
    assert (3, 3) == (done.connections, reloads.connections_as_before)


async def test_what_cannot_be_made_ready_is_taken_back_and_told_as_a_setting(file: Path) -> None:
    one, reloads = made(file)
    one.fails = ListenFailedError("127.0.0.1:4022", "in use; stop what listens there")
    write(file, "max_hops = 3\n", listen="127.0.0.1:4022")

    with pytest.raises(SettingsError) as caught:
        await reloads.reload(one.admin)

    expected = f'{file}:4:11: endpoint.listen[0]: cannot listen on "127.0.0.1:4022": in use; stop what listens there'
    assert [expected] == [str(error) for error in caught.value.errors]
    assert ["allowed", "taken back", "ended badly"] == one.told
    assert (16, 1, False) == (one.settings.endpoint.max_hops, reloads.failed, reloads.is_successful)
    assert "not reloaded: " in reload_part(reloads)["configuration"]


async def test_with_wrong_settings_the_scripts_are_not_looked_at_which_is_told(file: Path) -> None:
    one, reloads = made(file)
    write(file, "max_hops = 0\n")

    with pytest.raises(SettingsError) as caught:
        await reloads.reload(one.admin)

    assert ["endpoint.max_hops", "scripts"] == [error.key for error in caught.value.errors]


async def test_what_becomes_unwise_is_told_once(file: Path) -> None:
    """Whoever opens a port unencrypted, even by mistake, hears of it from the reload and not from a later check."""
    one, reloads = made(file)
    write(file, "max_hops = 20\n", listen="0.0.0.0:4023")
    first, second = await reloads.reload(one.admin, is_dry_run=True), await reloads.reload(one.admin)
    write(file, "max_hops = 21\n", listen="0.0.0.0:4023")
    third = await reloads.reload(one.admin)

    told = f'{file}:4:11: endpoint.listen[0]: "0.0.0.0:4023" accepts messages from every peer, unencrypted'
    assert [[told], [told]] == [[one.partition(";")[0] for one in done.warnings] for done in (first, second)]
    assert ([], 21) == (third.warnings, one.settings.endpoint.max_hops)


async def test_what_cannot_be_written_down_does_not_happen_and_says_nothing_about_the_file(file: Path) -> None:
    one, reloads = made(file)
    one.admin.is_full = True
    write(file, "max_hops = 3\n")

    with pytest.raises(RequestError, match="the book is full"):
        await reloads.reload(one.admin)

    assert ["allowed", "prepared", "taken back", "ended badly"] == one.told
    assert (16, 0, True) == (one.settings.endpoint.max_hops, reloads.failed, reloads.is_successful)


async def test_a_dry_run_takes_back_what_it_tried(file: Path) -> None:
    one, reloads = made(file)
    write(file, "max_hops = 3\nheartbeat = '3s'\n")

    done = await reloads.reload(one.admin, is_dry_run=True)

    assert ["allowed", "prepared", "taken back"] == one.told
    assert (True, 3, 0, 0) == (done.changed, done.connections, reloads.succeeded, reloads.connections_as_before)


async def test_a_success_clears_what_a_failure_has_told(file: Path) -> None:
    one, reloads = made(file)
    write(file, "max_hops = 0\n")
    with pytest.raises(SettingsError):
        await reloads.reload(one.admin)
    before = reloads.last_success_at

    write(file, "")
    done = await reloads.reload(one.admin)

    assert (False, True, "") == (done.changed, reloads.is_successful, reloads.problem)
    assert {"configuration": ""} == reload_part(reloads)
    assert before < reloads.last_success_at
    assert (1, 1) == (reloads.status()["succeeded"], reloads.status()["failed"])
    assert one.settings == load_settings(file, environ={})


async def test_what_waits_for_a_restart_is_told_until_the_file_says_the_old_again(file: Path) -> None:
    one, reloads = made(file)
    write(file, "reuse_port = true\n")

    first = await reloads.reload(one.admin)
    waiting, has_changed = reloads.waiting, first.changed
    again = (await reloads.reload(one.admin)).waiting
    write(file, "")
    await reloads.reload(one.admin)

    assert (["endpoint.reuse_port"], False, 1, []) == (waiting, has_changed, len(again), reloads.waiting)
    assert not one.settings.endpoint.reuse_port


async def test_whoever_stops_reads_nothing(file: Path) -> None:
    one, reloads = made(file)
    one.stopping.set()

    with pytest.raises(ReloadRefusedError, match="its successor reads the configuration when it starts"):
        await reloads.reload(one.admin)

    assert (["ended badly"], True) == (one.told, reloads.is_successful)
    one.stopping.clear()
    one.settings = Settings()
    with pytest.raises(ReloadRefusedError, match="a program has made its settings"):
        await reloads.reload(one.admin)


@pytest.mark.parametrize("text", ["", "# being written\n"])
async def test_a_file_that_was_emptied_is_refused_and_not_taken_for_the_defaults(file: Path, text: str) -> None:
    """An editor, or a copy, empties a file before it writes it."""
    one, reloads = made(file)
    write(file, text, base="")

    with pytest.raises(SettingsError) as caught:
        await reloads.reload(one.admin)

    hint = "write the settings into it, then reload again"
    assert [f"{file}: no longer has any settings; {hint}"] == [str(error) for error in caught.value.errors]
    assert ("127.0.0.1:0", ["ended badly"]) == (str(one.settings.endpoint.listen[0]), one.told)
