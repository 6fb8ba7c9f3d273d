"""What differs between two configurations, and what holds after a reload."""

from pathlib import Path
from typing import Any

import pytest

from broker.config.reload_diff import differences, in_force, mixed_contradictions
from broker.config.schema import Reload
from broker.config.settings import Settings


def effects(old: Settings, new: Settings) -> dict[str, Reload]:
    return {one.key: one.effect for one in differences(old, new)}


def test_a_difference_has_both_values_and_the_place_of_the_new_one(load: Any, tmp_path: Path) -> None:
    old = load("[endpoint]\nlisten = ['127.0.0.1:1']\n")
    listening = "[endpoint]\nlisten = ['127.0.0.1:1', '127.0.0.1:2']\n"
    new = load(f"{listening}heartbeat = \"15000ms\"\ncertificate = 'a.pem'\n", {"BROKER_LOG_LEVEL": "debug"})

    listen, certificate, level = differences(old, new)

    assert ('["127.0.0.1:1"]', '["127.0.0.1:1", "127.0.0.1:2"]') == (listen.before, listen.after)
    assert ('""', f'"{tmp_path}/a.pem"') == (certificate.before, certificate.after)
    assert (f"{tmp_path}/broker.toml:2:10", "BROKER_LOG_LEVEL") == (listen.place, level.place)
    assert "" == differences(new, old)[1].place


def test_what_waits_for_a_restart_keeps_its_old_value(load: Any) -> None:
    old = load("[dialog]\nfragment_size = '64KiB'\n[databases.a]\npath = 'a.db'\n[databases.b]\npath = 'b.db'\n")
    new = load(
        "[dialog]\nfragment_size = '32KiB'\nwindow = 3\n[databases.a]\npath = 'z.db'\n[databases.c]\npath = 'c.db'"
    )

    changed = differences(old, new)
    settings = in_force(old, new, changed)

    assert {
        "dialog.fragment_size": Reload.RESTART,
        "dialog.window": Reload.LIVE,
        "databases.a.path": Reload.RESTART,
        "databases.b": Reload.RESTART,
        "databases.c": Reload.RESTART,
    } == {one.key: one.effect for one in changed}
    assert (64 << 10, 3) == (settings.dialog.fragment_size, settings.dialog.window)
    assert old.databases == settings.databases


def test_what_is_relative_to_the_state_directory_waits_with_it(load: Any, tmp_path: Path) -> None:
    old, new = load(""), load("[instance]\nstate_dir = 'else'\n")

    assert {Reload.RESTART} == set(effects(old, new).values())
    assert old == in_force(old, new, differences(old, new))


@pytest.mark.parametrize(
    ("before", "after", "effect"), [("", "a", Reload.RESTART), ("a", "", Reload.RESTART), ("a", "b", Reload.LIVE)]
)
def test_a_journal_moves_but_is_not_begun_or_ended(load: Any, before: str, after: str, effect: Reload) -> None:
    """The pass is built with one or without."""
    old, new = (load(f"[journal]\ndirectory = '{one}'\n") for one in (before, after))

    assert {"journal.directory": effect} == effects(old, new)


def test_half_of_a_change_that_contradicts_the_rest_is_told_with_what_it_waits_for(load: Any) -> None:
    old = load("[dialog]\nfragment_size = '512KiB'\n")
    new = load("[dialog]\nfragment_size = '16KiB'\n[endpoint]\nmax_frame = '64KiB'\n")

    changed = differences(old, new)
    [error] = mixed_contradictions(in_force(old, new, changed), changed)

    assert "dialog.fragment_size" == error.key
    assert "restart the instance: until then dialog.fragment_size has its old value" == error.hint
