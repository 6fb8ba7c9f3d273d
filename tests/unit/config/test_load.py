"""From file, environment and flags to settings, with every mistake at its place; and every key in force."""

from pathlib import Path
from typing import Any

import pytest

from broker.config.load import in_force, load_settings, without_dots
from broker.config.toml import render_value

# ruff: noqa: E501  # reports are pinned to the letter, and a table has one case a line  # noqa: RUF100


LISTEN_HINT = (
    'write "host:port" with a port up to 65535, like "127.0.0.1:4022", "[::1]:4022" or, for all interfaces,'
    ' "0.0.0.0:4022"'
)
SIZE_HINT = 'write bytes as a plain number, or a text like "512KiB", "64MiB" or "10MB"'
GUID = "5b0f3c1e-5d5e-4f0b-8a55-0e9b0b9c2f11"

# A wrong text, and its report to the letter.
BAD: list[tuple[str, list[str]]] = [
    ("[endpiont]\n", ['broker.toml:1:1: endpiont: unknown key; did you mean "endpoint"?']),
    ("[instance]\nmax_hops = 3\n", ['broker.toml:2:1: instance.max_hops: unknown key; did you mean "endpoint.max_hops"?']),
    ("[routes]\nxyz = 1\n", ["broker.toml:2:1: routes.xyz: unknown key; known here: files"]),
    (
        "[endpoint]\nworkers = 2\n",
        [
            "broker.toml:2:1: endpoint.workers: unknown key; remove it: an instance is one process. For more throughput run more instances; endpoint.reuse_port lets them share a port"
        ],
    ),
    (
        "[databases.a]\npth = 'x'\n",
        [
            "broker.toml:1:1: databases.a: lacks path, which is required; add it to [databases.a]",
            'broker.toml:2:1: databases.a.pth: unknown key; did you mean "path"?',
        ],
    ),
    (
        '[endpoint]\nlisten = [\n  "a:1",\n  "nope", 7\n]\n',
        [
            f'broker.toml:4:3: endpoint.listen[1]: "nope" is not an address to listen on; {LISTEN_HINT}',
            f"broker.toml:4:11: endpoint.listen[2]: 7 is not an address to listen on; {LISTEN_HINT}",
        ],
    ),
    (
        f'[databases.a]\npath = "a"\nbroker_instance = "{GUID}"\n[databases.b]\npath = "./a"\nbroker_instance = "{GUID.upper()}"\n',
        [
            'broker.toml:5:8: databases.b.path: "/var/lib/broker/a" is also the file of databases.a; give each database its own file',
            "broker.toml:6:19: databases.b.broker_instance: error 9772: databases.a has the same broker_instance; give one of them another GUID; a copied database must not keep the one of its original",
        ],
    ),
    (  # every wrong value in one run; contradictions once each value by itself is good
        '[endpoint]\nmax_frame = "x"\n[dialog]\nwindow = 0\nresend_first = "2m"\n',
        [
            f'broker.toml:2:13: endpoint.max_frame: "x" is not a size from 4KiB to 16MiB; {SIZE_HINT}',
            "broker.toml:4:10: dialog.window: 0 is out of range; allowed is 1 to 4096",
        ],
    ),
]  # fmt: skip


@pytest.mark.parametrize(("text", "lines"), BAD)
def test_wrong_text_is_reported_to_the_letter(report: Any, text: str, lines: list[str]) -> None:
    assert lines == report(text)


def test_paths_are_relative_to_the_directory_of_the_file_which_is_no_pattern_or_to_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = tmp_path / "a[b]"
    directory.mkdir()
    (directory / "c.toml").write_text("[routes]\nfiles = ['*.sql']")

    settings = load_settings(directory / "c.toml", environ={})
    monkeypatch.chdir(tmp_path)
    without = load_settings(None, environ={}, overrides={"instance.state_dir": "here"})

    assert (f"{tmp_path}/a[[]b]/*.sql",) == settings.routes.files
    assert tmp_path / "here/admin.sock" == without.admin.socket


def test_environment_wins_over_the_file_and_flags_over_both(load: Any) -> None:
    text = "[endpoint]\nmax_hops = 1\n[dialog]\nwindow = 1\nhop_limit = 1\n"
    environ = {"BROKER_DIALOG__WINDOW": "2", "BROKER_DIALOG__HOP_LIMIT": "2"}
    levels = {"BROKER_OBSERVE__LOG_LEVEL": "error", "BROKER_LOG_LEVEL": "debug"}  # the long name wins
    others = {"BROKER_LOG_FORMAT": "json", "BROKER_OBSERVE__LISTEN": "", "BROKER_INSTANCE__NAME": "7"}

    settings = load(text, environ | levels | others, {"dialog.hop_limit": 3})

    observe = settings.observe
    assert (settings.endpoint.max_hops, settings.dialog.window, settings.dialog.hop_limit) == (1, 2, 3)
    assert ("error", "json", None, "7") == (
        observe.log_level,
        observe.log_format,
        observe.listen,
        settings.instance.name,
    )


def test_variable_reaches_a_database_whatever_the_case_of_its_name(load: Any) -> None:
    text = "[databases.Orders]\npath = '/a'\n"

    settings = load(text, {"BROKER_DATABASES__ORDERS__PATH": "/b", "BROKER_DATABASES__NEW__PATH": "/c"})

    assert {"Orders": Path("/b"), "new": Path("/c")} == {name: one.path for name, one in settings.databases.items()}


@pytest.mark.parametrize("name", ["BROKER_CONFIG", "BROKER_PORT_4022_TCP", "HOME", "MY_BROKER__X__Y", "broker_a__b"])
def test_variable_that_is_not_ours_is_not_read(load: Any, name: str) -> None:
    assert load("") == load("", {name: "tcp://10.0.0.1:4022"})


ELSEWHERE: list[tuple[str, dict[str, str], dict[str, object], list[str]]] = [
    (
        "",
        {"BROKER_ENDPOINT__MAX_HOPS": "0", "BROKER_ENDPOINT__LISTEN": '["x"]'},
        {"dialog.window": "many"},
        [
            'dialog.window (flag): "many" is not a whole number from 1 to 4096; write it without quotes',
            f'endpoint.listen[0] (BROKER_ENDPOINT__LISTEN): "x" is not an address to listen on; {LISTEN_HINT}',
            "endpoint.max_hops (BROKER_ENDPOINT__MAX_HOPS): 0 is out of range; allowed is 1 to 255",
        ],
    ),
    (
        "[endpoint]\nlisten = []\n",
        {"BROKER_ENDPOINT__LISTEN__0": "a:1"},
        {},
        ["endpoint.listen.0 (BROKER_ENDPOINT__LISTEN__0): is below something that is not a table; set the key above it as a whole, a list in JSON"],
    ),
    (
        "",
        {"BROKER_\udcc4NDPOINT__MAX_HOPS": "1", "BROKER_ENDPOINT__A\nB": "1"},
        {},
        [
            r""""\udcc4ndpoint".max_hops (BROKER_\udcc4NDPOINT__MAX_HOPS): has a character in its name that cannot be printed; remove it""",
            r"""endpoint."a\nb" (BROKER_ENDPOINT__A\nB): has a character in its name that cannot be printed; remove it""",
        ],
    ),
]  # fmt: skip


@pytest.mark.parametrize(("text", "environ", "flags", "lines"), ELSEWHERE)
def test_what_is_wrong_elsewhere_is_reported_by_its_origin(
    report: Any, text: str, environ: dict[str, str], flags: dict[str, object], lines: list[str]
) -> None:
    assert lines == report(text, environ, flags)


def test_links_are_followed_before_two_dots_only(tmp_path: Path) -> None:
    """Where a link leads may be changed before a reload, so it stays in the path."""
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "link").symlink_to(tmp_path / "a" / "b")
    (tmp_path / "a" / "current").symlink_to("b")

    assert tmp_path / "link" / "x" == without_dots(tmp_path / "link" / "x")
    assert tmp_path / "a" / "current" / "x" == without_dots(tmp_path / "link" / ".." / "current" / "x")


TEXT = """\
[instance]
name = "é"
[endpoint]
max_hops = 4
listen = []
[databases."Orders 1"]
path = "orders.db"
role_command = ["/bin/role", "--password", "geheim"]
mirroring = "command"
[admin.roles]
"user:0" = "viewer"
"""
ENVIRON = {"BROKER_ENDPOINT__HEARTBEAT": "90s", "BROKER_LOG_LEVEL": "debug"}


def test_keys_are_shown_as_one_writes_them_with_absolute_paths_and_arguments_masked(load: Any, tmp_path: Path) -> None:
    keys = {
        "endpoint.max_hops": ("4", "broker.toml:4:12"),
        "endpoint.heartbeat": ('"90s"', "BROKER_ENDPOINT__HEARTBEAT"),
        "endpoint.max_frame": ('"128KiB"', "flag"),
        "instance.name": ('"é"', "broker.toml:2:8"),
        "admin.roles": ('{"user:0" = "viewer"}', "broker.toml:10:1"),
        'databases."Orders 1".broker_instance': ("", "default"),
        'databases."Orders 1".mirroring': ('"command"', "broker.toml:9:13"),
        'databases."Orders 1".path': ('"/var/lib/broker/orders.db"', "broker.toml:7:8"),
        'databases."Orders 1".role_command': ('["/bin/role", "***", "***"]', "broker.toml:8:16"),
    }

    shown = in_force(load(TEXT, ENVIRON, {"endpoint.max_frame": "131072"}))

    assert "geheim" not in str(shown)
    assert keys == {
        one.key: ("" if one.value is None else render_value(one.value), one.origin.replace(f"{tmp_path}/", ""))
        for one in shown
        if one.key in keys
    }


def test_what_is_shown_can_be_written_into_a_file_and_means_the_same(load: Any) -> None:
    text = f'{TEXT}socket_group = "root"\n'.replace('"--password", "geheim"', "").replace("[admin.roles]", "[admin]")
    first = load(text.replace('"user:0" = "viewer"', 'roles = {"user:0" = "viewer"}'), ENVIRON)

    lines = [f"{one.key} = {render_value(one.value)}" for one in in_force(first) if one.value is not None]

    assert first == load("\n".join(lines))
