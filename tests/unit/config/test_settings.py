""""""

from __future__ import annotations

import os
import pwd
import subprocess
import sys
import tomllib
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from broker.catalog import check
from broker.catalog.check import admin_errors, check_ways_in, journal_errors, tracing_errors
from broker.config.admin_access import holders_of, is_owner, new_token, socket_group_of, user_name
from broker.config.consistency import contradictions, drain_oddities, setting_warnings
from broker.config.load import load_settings
from broker.config.settings import (
    DatabaseSettings,
    DialogSettings,
    DrainSettings,
    InstanceSettings,
    Settings,
    by_place,
    json_schema,
    main,
    render_schema,
    with_pool_share,
)
from broker.config.toml import KeyPositions, dotted, index_places
from broker.config.values import AdminRole, ListenAddress, SectionError, SettingFinding, keys_of, settings_of
from broker.conversation.frames import EARLY_WINDOW, FragmentArrival, classify
from broker.daemon.reload import journal_plan, peer_limits, timeouts_of
from broker.errors import SettingError, SettingsError, Span
from broker.net.certificates import admin_security_of
from broker.net.quotas import PeerLimits, Timeouts
from broker.protocol import layout
from tests.support.certificates import authority, make

NOW = datetime(2026, 11, 22, tzinfo=UTC)


@pytest.fixture
def base(tmp_path: Path) -> Path:
    ca = authority()
    make("gateway", "127.0.0.1", by=ca).store(tmp_path, "gateway")
    (tmp_path / "ca.pem").write_bytes(ca.pem)
    return tmp_path


def _load(base: Path, admin: str) -> Settings:
    file = base / "broker.toml"
    file.write_text(f'[instance]\nname = "one"\nstate_dir = "."\n[admin]\n{admin}')
    return load_settings(file, environ={})


TLS = 'certificate = "gateway.pem"\nprivate_key = "gateway.key"\n'


def _refused(base: Path, admin: str) -> str:
    with pytest.raises(SettingsError) as caught:
        _load(base, admin)
    return str(caught.value)


@pytest.mark.parametrize(
    ("admin", "problem"),
    [
        ('listen = "0.0.0.0:9422"', "can be reached from other machines, and there is no TLS"),
        ('listen = "gateway.example:9422"', "can be reached from other machines, and there is no TLS"),
        ('certificate = "gateway.pem"', "admin.certificate: is set, and there is no private_key"),
        ('private_key = "gateway.key"', "admin.private_key: is set, and there is no certificate"),
        ('trust = ["ca.pem"]', "clients show certificates over TLS only"),
        ('loopback_role = "root"', 'allowed is "none", "viewer", "operator", "admin"'),
        ('roles = "admin"', "is no table of roles"),
        ('[admin.roles]\n"user:alice" = "none"', 'allowed is "viewer", "operator", "admin"'),
        ('[admin.roles]\n"user:alice" = 1', "is no role for"),
        ('[admin.roles]\nalice = "viewer"', "names nobody"),
        ('[admin.roles]\n"token:a b" = "viewer"', "no name of a token"),
    ],
)
def test_what_cannot_be_meant_is_refused(base: Path, admin: str, problem: str) -> None:
    assert problem in _refused(base, admin)


def test_a_holder_that_is_none_is_shown_at_its_line(base: Path) -> None:
    assert "broker.toml:6:9" in _refused(base, '[admin.roles]\nalice = "viewer"')


def test_roles_come_from_the_environment_as_json() -> None:
    settings = load_settings(None, environ={"BROKER_ADMIN__ROLES": '{"token:ci": "operator"}'})

    assert {"token:ci": "operator"} == settings.admin.roles


@pytest.mark.parametrize(
    ("admin", "problem"),
    [
        ('[admin.roles]\n"user:root" = "viewer"', "cannot open the socket, which has mode 0600"),
        ('[admin.roles]\n"certificate:CN=a" = "viewer"', "no certificate of a client is asked for"),
        (TLS, "is not used without listen"),
        ('listen = "127.0.0.1:0"', "every user of this machine has the role admin on 127.0.0.1:0"),
    ],
)
def test_what_is_probably_not_meant_is_a_warning(base: Path, admin: str, problem: str) -> None:
    warnings = [str(warning) for warning in setting_warnings(_load(base, admin))]

    assert any(problem in warning for warning in warnings)


@pytest.mark.parametrize("admin", ["", f'{TLS}listen = "0.0.0.0:0"', 'listen = "127.0.0.1:0"\nloopback_role = "admin"'])
def test_a_role_of_everybody_that_is_spelled_out_or_on_no_port_is_no_warning(base: Path, admin: str) -> None:
    assert "every user" not in " ".join(str(warning) for warning in setting_warnings(_load(base, admin)))


def test_paths_are_relative_to_where_they_are_written(base: Path) -> None:
    admin = _load(base, f'{TLS}listen = "127.0.0.1:0"\ntrust = ["ca.pem"]').admin

    assert [base / "gateway.pem", base / "gateway.key", base / "tokens", base / "audit.jsonl"] == [
        admin.certificate,
        admin.private_key,
        admin.tokens,
        admin.audit,
    ]
    assert (f"{base}/ca.pem",) == admin.trust


def test_holders_are_told_by_number_and_the_highest_role_counts(base: Path) -> None:
    roles = '"user:root" = "viewer"\n"user:0" = "operator"\n"group:0" = "viewer"\n"token:ci" = "admin"\n'
    holders = holders_of(_load(base, f'[admin.roles]\n{roles}"certificate:CN=ops" = "operator"'))

    assert {0: AdminRole.OPERATOR} == holders.users
    assert {0: AdminRole.VIEWER} == holders.groups
    assert {"ci": AdminRole.ADMIN} == holders.tokens
    assert [("CN=ops", AdminRole.OPERATOR)] == [(holder.name, role) for holder, role in holders.certificates]


@pytest.mark.parametrize(
    ("admin", "problem"),
    [
        ('[admin.roles]\n"user:no-such-user" = "viewer"', "there is no user 'no-such-user' on this machine"),
        ('[admin.roles]\n"group:no-such-group" = "viewer"', "there is no group 'no-such-group' on this machine"),
        ('socket_group = "no-such-group"', "there is no group 'no-such-group' on this machine"),
        ('listen = "127.0.0.1:0"\nloopback_role = "none"', "nobody could ask on"),
        (f'{TLS}listen = "0.0.0.0:0"', "nobody could ask on"),
        (
            'listen = "127.0.0.1:0"\ncertificate = "none.pem"\nprivate_key = "broker.toml"',
            "cannot be read: No such file",
        ),
        (f'{TLS}listen = "127.0.0.1:0"\ntrust = ["none*.pem"]', "no such file"),
        ('tokens = "/proc/tokens"', "cannot be written"),
        ('audit = "/proc/audit"', "cannot be written"),
    ],
)
def test_what_the_machine_does_not_have_is_told_by_a_check(base: Path, admin: str, problem: str) -> None:
    errors = [str(error) for error in admin_errors(_load(base, admin))]

    assert 1 == len(errors)
    assert problem in errors[0]


def test_tokens_that_others_may_read_are_told_by_a_check(base: Path) -> None:
    new_token(base / "tokens", "ci", AdminRole.VIEWER, now=NOW, expires_at=None)
    (base / "tokens").chmod(0o644)

    [error] = admin_errors(_load(base, 'listen = "127.0.0.1:0"'))

    assert "may be used by others" in str(error)


@pytest.mark.parametrize(
    "admin", ["", 'listen = "127.0.0.1:0"', f'{TLS}listen = "0.0.0.0:0"\ntrust = ["ca.pem"]', 'socket_group = "0"']
)
def test_good_settings_are_good(base: Path, admin: str) -> None:
    assert [] == admin_errors(_load(base, admin))


def test_a_token_is_a_way_in(base: Path) -> None:
    new_token(base / "tokens", "ci", AdminRole.VIEWER, now=NOW, expires_at=None)

    check_ways_in(_load(base, f'{TLS}listen = "0.0.0.0:0"'))


def test_plain_text_brings_nothing_to_tls(base: Path) -> None:
    assert admin_security_of(_load(base, 'listen = "127.0.0.1:0"')) is None


def test_a_group_is_told_by_number(base: Path) -> None:
    groups = [socket_group_of(_load(base, admin)) for admin in ('socket_group = "0"', "")]

    assert [0, None] == groups


def test_who_runs_the_instance_and_root_own_it() -> None:
    assert [True, True, False] == [is_owner(number) for number in (0, os.geteuid(), 2**31 - 2)]


def test_a_user_without_a_name_is_called_by_number() -> None:
    assert [pwd.getpwuid(0).pw_name, "2147483646"] == [user_name(0), user_name(2**31 - 2)]


def test_a_check_raises_what_it_reports(base: Path) -> None:
    with pytest.raises(SettingError, match="there is no user"):
        holders_of(_load(base, '[admin.roles]\n"user:no-such-user" = "viewer"'))


SETTINGS = list(settings_of(Settings))
TEXT = "[endpoint]\nlisten = ['0.0.0.0:1']\nadvertise = []\n"


def test_defaults_are_those_of_the_reference() -> None:
    endpoint, dialog = Settings().endpoint, Settings().dialog

    assert (
        (ListenAddress("0.0.0.0", 4022),),
        False,
        64 << 20,
        layout.HOP_LIMIT,
        layout.MAX_FRAME,
        layout.HEARTBEAT_MS / 1000,
        layout.HANDSHAKE_TIMEOUT,
        10.0,
    ) == (
        endpoint.listen,
        endpoint.message_forwarding,
        endpoint.message_forward_size,
        endpoint.max_hops,
        endpoint.max_frame,
        endpoint.heartbeat,
        endpoint.handshake_timeout,
        endpoint.connect_timeout,
    )
    assert (
        dialog.resend_first,
        dialog.resend_cap,
        dialog.time_to_live,
        dialog.hop_limit,
        dialog.fragment_size,
        dialog.window,
    ) == (1.0, 64.0, layout.TIME_TO_LIVE_MS / 1000, layout.HOP_LIMIT, layout.FRAGMENT_BYTES, 1024)


@pytest.mark.parametrize("one", SETTINGS, ids=lambda one: "-".join(map(str, one.path)))
def test_every_setting_tells_what_it_is_and_why(one: object) -> None:
    texts = [getattr(one, name) for name in ("description", "reason")]

    assert [len(text) > 10 and text.endswith(".") for text in texts] == [True, True]


@pytest.mark.parametrize(
    ("host_name", "name"), [("web-1", "web-1"), ("", "broker"), ("a\nb", "ab"), ("x" * 200, "x" * 128)]
)
def test_host_name_becomes_a_valid_name(monkeypatch: pytest.MonkeyPatch, host_name: str, name: str) -> None:
    monkeypatch.setattr(os, "uname", lambda: SimpleNamespace(nodename=host_name))

    assert name == InstanceSettings().name


def test_equal_settings_are_equal_wherever_their_values_stood() -> None:
    one = Settings().placed(index_places("[endpoint]", source="a"))
    other = Settings().placed(index_places("# comment\n[endpoint]", source="b"))

    assert one == other


def test_settings_without_places_stay_without() -> None:
    settings = Settings()

    settings.placed(index_places(TEXT, source="f"))

    assert settings.error(("endpoint", "listen"), "p").span is None


def test_database_needs_a_path() -> None:
    assert keys_of(DatabaseSettings)["path"].is_required


def test_error_points_at_value_or_key() -> None:
    settings = Settings().placed(index_places(TEXT, source="f"))

    errors = [
        settings.error(("endpoint", "listen", 0), "p", "h"),
        settings.error(("endpoint", "listen"), "p", of_key=True),
    ]

    assert [str(error) for error in errors] == ["f:2:11: endpoint.listen[0]: p; h", "f:2:1: endpoint.listen: p"]


def test_the_far_side_takes_all_that_the_widest_window_lets_be_under_way() -> None:
    widest = EARLY_WINDOW

    assert widest == DialogSettings(window=widest).window
    with pytest.raises(SectionError):
        DialogSettings(window=widest + 1)
    assert FragmentArrival.EARLY is classify((7, 0), (7 + widest - 1, 0))
    assert FragmentArrival.TOO_EARLY is classify((7, 0), (7 + widest, 0))


def test_places_do_not_count_when_settings_are_compared() -> None:
    assert Settings().placed(index_places("a = 1", source="f")) == Settings().placed(
        index_places("\nb = 2", source="g")
    )


def test_error_names_the_variable_that_set_the_value() -> None:
    settings = Settings().placed(KeyPositions({}, {}, {("dialog", "window"): "BROKER_DIALOG__WINDOW"}, []))

    assert str(settings.error(("dialog", "window"), "p")) == "dialog.window (BROKER_DIALOG__WINDOW): p"


def test_report_is_sorted_by_place() -> None:
    settings = Settings().placed(index_places(TEXT, source="f"))
    paths = [("dialog", "window"), ("endpoint", "advertise"), ("endpoint", "listen")]

    report = settings.report([SettingFinding(path, "p", "h") for path in paths])

    assert [error.key for error in report] == ["endpoint.listen", "endpoint.advertise", "dialog.window"]


def test_warnings_carry_their_place() -> None:
    warnings = setting_warnings(Settings().placed(index_places(TEXT, source="f")))

    assert (Span("f", 2, 11, 11), "endpoint.listen[0]") in [(one.span, one.key) for one in warnings]


def test_place_orders_by_line_then_column_and_what_has_none_last() -> None:
    places = [None, Span("f", 10, 1), Span("f", 9, 2), Span("f", 9, 1), Span("e", 99, 1)]

    ordered = sorted((SettingError("k", "p", span) for span in places), key=by_place)

    assert [places[4], places[3], places[2], places[1], None] == [error.span for error in ordered]


def test_state_directory_is_a_path() -> None:
    assert Path("/var/lib/broker") == Settings().instance.state_dir


# --- test_draining ---
# The settings of a drain, and those that are probably not meant.


def settings(announce: float, timeout: float) -> Settings:
    return Settings().with_values({"drain": DrainSettings().with_values({"announce": announce, "timeout": timeout})})


def test_drain_ends_before_kubernetes_kills() -> None:
    assert (5.0, 25.0) == (Settings().drain.announce, Settings().drain.timeout)


@pytest.mark.parametrize(
    ("announce", "timeout", "expected"),
    [(5.0, 25.0, []), (0.0, 0.0, []), (5.0, 0.0, []), (5.0, 5.0, ["announce"]), (30.0, 25.0, ["announce"])],
)
def test_announcement_that_takes_all_of_the_time_is_unwise(
    announce: float, timeout: float, expected: list[str]
) -> None:
    found = list(drain_oddities(settings(announce, timeout)))

    assert expected == [finding.path[1] for finding in found]


def test_unwise_drain_is_among_the_warnings() -> None:
    warned = [warning.key for warning in setting_warnings(settings(30.0, 25.0))]

    assert "drain.announce" in warned


# --- test_journal ---
# A journal is kept where the settings name a directory that can be written, and only with its library.


def settings_of_journal(tmp_path: Path, text: str = '[journal]\ndirectory = "flows"\nsample = 0.25\n') -> Settings:
    path = tmp_path / "broker.toml"
    path.write_text(f'[instance]\nname = "gw"\nstate_dir = "state"\n{text}')
    return load_settings(path, environ={})


def test_plan_is_what_the_settings_say_and_the_directory_is_made(tmp_path: Path) -> None:
    plan = journal_plan(settings_of_journal(tmp_path))

    assert plan is not None
    assert tmp_path / "state" / "flows" == plan.directory
    assert plan.directory.is_dir()
    assert ("gw", 0.25, 32 << 20, 64 << 20, 900.0) == (
        plan.instance,
        plan.sample,
        plan.buffer_bytes,
        plan.file_bytes,
        plan.file_seconds,
    )
    assert (10 << 30, 30 * 86_400.0) == (plan.keep_bytes, plan.keep_seconds)


def test_without_a_directory_there_is_none(tmp_path: Path) -> None:
    one = settings_of_journal(tmp_path, "")

    assert journal_plan(one) is None
    assert [] == list(journal_errors(one))


def test_library_that_is_missing_is_told_with_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(check, "find_spec", lambda name: None)

    with pytest.raises(SettingError) as caught:
        journal_plan(settings_of_journal(tmp_path))

    assert "a journal needs pyarrow, which is not installed" in str(caught.value)
    assert "pip install broker[journal]" in str(caught.value)
    assert "broker.toml:5:" in str(caught.value)


def test_directory_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    (tmp_path / "state").mkdir()
    (tmp_path / "state" / "flows").write_text("a file")

    (error,) = journal_errors(settings_of_journal(tmp_path))

    assert "journal.directory" in str(error)
    assert "is no directory" in str(error)


def test_directory_that_cannot_be_made_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(30, "Read-only file system")

    one = settings_of_journal(tmp_path)
    monkeypatch.setattr(Path, "mkdir", refuse)

    with pytest.raises(SettingError, match="Read-only file system"):
        journal_plan(one)


# --- test_json_schema ---
# The schema that editors are given, and that it agrees with what the program takes.


CONFIG = Path(__file__).parents[3] / "config"
SCHEMA = Draft202012Validator(json_schema())
GUID = "5b0f3c1e-5d5e-4f0b-8a55-0e9b0b9c2f11"


def is_valid(data: dict[str, Any]) -> bool:
    """What an editor says."""
    return bool(SCHEMA.is_valid(data))


def test_the_schema_is_one_of_its_dialect() -> None:
    Draft202012Validator.check_schema(json_schema())


def test_committed_file_is_what_the_models_say() -> None:
    assert render_schema() == (CONFIG / "broker.schema.json").read_text(encoding="utf-8")


def test_command_writes_the_file(tmp_path: Path) -> None:
    main([str(tmp_path / "a.json")])

    assert render_schema() == (tmp_path / "a.json").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", ["gateway.toml", "endpoint.toml"])
def test_samples_name_the_schema_and_keep_to_it(name: str) -> None:
    text = (CONFIG / name).read_text(encoding="utf-8")

    assert "#:schema ./broker.schema.json" == text.splitlines()[0]
    assert [] == list(SCHEMA.iter_errors(tomllib.loads(text)))


def test_every_key_has_its_description_and_says_when_a_change_counts() -> None:
    endpoint = json_schema()["properties"]["endpoint"]["properties"]

    assert endpoint["max_hops"]["description"].startswith("Hops after which this instance drops a message")
    assert {1, 255, 16} == {endpoint["max_hops"][key] for key in ("minimum", "maximum", "default")}
    assert endpoint["max_hops"]["description"].endswith("A reload applies it at once.")


def test_every_setting_is_in_the_schema() -> None:
    schema = json_schema()["properties"]
    below = {name: one.get("properties") or one["additionalProperties"]["properties"] for name, one in schema.items()}

    found = {(name, key) for name, keys in below.items() for key in keys}

    assert {(one.path[0], one.path[-1]) for one in settings_of(Settings)} == found


# --- the schema and the loader agree ---

# A value, and whether program and editor take it. Where they differ the program says more than a schema can.
VALUES: list[tuple[str, str, bool, bool]] = [
    ("endpoint.max_hops", "16", True, True),
    ("endpoint.max_hops", "0", False, False),
    ("endpoint.max_hops", "256", False, False),
    ("endpoint.max_hops", '"16"', False, False),
    ("endpoint.max_hops", "true", False, False),
    ("endpoint.max_hop", "16", False, False),
    ("endpoint.message_forwarding", "true", True, True),
    ("endpoint.message_forwarding", "1", False, False),
    ("endpoint.encryption", '"required"', True, True),
    ("endpoint.encryption", '"Required"', False, False),
    ("endpoint.heartbeat", '"1.5s"', True, True),
    ("endpoint.heartbeat", '"15 s"', False, False),
    ("endpoint.heartbeat", "15", False, False),
    ("endpoint.heartbeat", '"99ms"', False, True),
    ("endpoint.max_frame", '"64KiB"', True, True),
    ("endpoint.max_frame", "65536", True, True),
    ("endpoint.max_frame", "1", False, False),
    ("endpoint.max_frame", '"64kb"', False, False),
    ("endpoint.max_frame", '"1KiB"', False, True),
    ("endpoint.listen", '["127.0.0.1:0"]', True, True),
    ("endpoint.listen", '"127.0.0.1:0"', False, False),
    ("endpoint.listen", '["127.0.0.1"]', False, False),
    ("endpoint.listen", '["127.0.0.1:65536"]', False, True),
    ("endpoint.listen", '[""]', False, False),
    ("endpoint.advertise", '["tcp://a:1"]', True, True),
    ("endpoint.advertise", '["TCP://a"]', True, True),
    ("endpoint.advertise", '["a:1"]', False, False),
    ("endpoint.certificate", '""', True, True),
    ("instance.state_dir", '""', False, False),
    ("instance.name", f'"{"x" * 128}"', True, True),
    ("instance.name", f'"{"x" * 129}"', False, False),
    ("instance.name", '"a\\tb"', False, True),
    ("observe.listen", '""', True, True),
    ("observe.listen", "false", False, False),
    ("journal.sample", "0.5", True, True),
    ("journal.sample", "1", True, True),
    ("journal.sample", "1.5", False, False),
    ("admin.roles", '{"user:0" = "viewer"}', True, True),
    ("admin.roles", '{"user:0" = "root"}', False, False),
    ("admin.roles", "[]", False, False),
    ("databases.a", "{}", False, False),
    ("databases.a", '{path = "a.db"}', True, True),
    ("databases.a", f'{{path = "a.db", broker_instance = "{GUID}"}}', True, True),
    ("databases.a", f'{{path = "a.db", broker_instance = "{{{GUID.upper()}}}"}}', True, True),
    ("databases.a", '{path = "a.db", broker_instance = "5b0f"}', False, False),
    ("databases.a", '{path = "a.db", peer = []}', False, False),
    ("databases", "[]", False, False),
    ("endpoints", "{}", False, False),
]


def takes(data: dict[str, Any]) -> bool:
    """Whether the program takes every value of it; what only several together say is not asked."""
    try:
        Settings.read(data)
    except SectionError:
        return False
    return True


@pytest.mark.parametrize(("key", "value", "is_taken", "is_marked_good"), VALUES)
def test_program_and_editor_judge_a_value(key: str, value: str, *, is_taken: bool, is_marked_good: bool) -> None:
    data = tomllib.loads(f"{key} = {value}\n")

    assert (is_taken, is_marked_good) == (takes(data), is_valid(data))


def test_editor_never_marks_what_the_program_takes() -> None:
    assert [] == [case for case in VALUES if case[2] and not case[3]]


KEYS = [".".join("a" if step == "NAME" else str(step) for step in one.path) for one in settings_of(Settings)]
SCALARS = st.one_of(
    st.integers(-2, 70_000).map(str),
    st.floats(0, 2).map(lambda number: f"{number:f}"),
    st.sampled_from(["true", "false"]),
    st.from_regex(r'"[0-9]{1,3}(\.[0-9])?(ms|s|m|h|d|KiB|MiB|GiB|KB|)"', fullmatch=True),
    st.from_regex(r'"(127\.0\.0\.1|\[::1\]|a|tcp://a)(:[0-9]{1,5})?"', fullmatch=True),
    st.from_regex(r'"\{?[0-9a-fA-F]{8}(-?[0-9a-f]{4}){3}-?[0-9a-fA-F]{12}\}?"', fullmatch=True),
    st.sampled_from(['""', '"a"', '"none"', '"viewer"', '"lock"', '"json"', '"é"', '"a/*.pem"', '"supported"']),
)
ANY = st.one_of(SCALARS, st.lists(SCALARS, max_size=2).map(lambda inner: f"[{', '.join(inner)}]"))


@given(st.sampled_from(KEYS), ANY)
@example("databases.a.broker_instance", '"{5b0f3c1e5d5e-4f0b-8a550e9b0b9c2f11"')
def test_whatever_the_program_takes_the_editor_does(key: str, value: str) -> None:
    text = f"{key} = {value}\n" + ("" if key == "databases.a.path" else 'databases.a.path = "a"\n')
    data = tomllib.loads(text)

    assert is_valid(data) or not takes(data)


# --- test_limits ---
# What peers may take: as the links are told, and what leaves next to nothing.


def settings_with(limits: dict[str, Any], **endpoint: Any) -> Settings:
    return Settings.read({"limits": limits, "endpoint": endpoint})


def test_defaults_bound_connections_and_handshakes_and_nothing_else() -> None:
    expected = PeerLimits(connections=10_000, connections_per_peer=1000, reserved_connections=100, handshakes=256)

    assert expected == peer_limits(Settings())
    assert not peer_limits(Settings()).are_metered


@pytest.mark.parametrize(
    ("limits", "authentication", "share"),
    [
        ({}, "certificate", 50),
        ({}, "none", 0),
        ({"pool_share": 0}, "certificate", 0),
        ({"pool_share": 20}, "certificate", 20),
        ({"pool_share": 20}, "none", 20),
    ],
)
def test_peer_that_proves_who_it_is_has_half_of_the_pool_unless_another_share_is_configured(
    limits: dict[str, Any], authentication: str, share: int
) -> None:
    settings = with_pool_share(settings_with(limits, authentication=authentication))

    assert share == peer_limits(settings).pool_share


def test_every_limit_reaches_the_links() -> None:
    told = {
        "connections": 50,
        "connections_per_peer": 2,
        "reserved_connections": 10,
        "handshakes": 16,
        "bytes_per_second": 1 << 20,
        "messages_per_second": 1000,
        "pool_share": 30,
    }

    assert PeerLimits(**told) == peer_limits(settings_with({**told, "bytes_per_second": "1MiB"}))


def test_loaded_settings_have_the_share_that_goes_with_their_authentication(tmp_path: Path) -> None:
    file = tmp_path / "broker.toml"
    file.write_text(
        '[endpoint]\nencryption = "required"\nauthentication = "certificate"\n'
        'certificate = "a"\nprivate_key = "b"\ntrust = ["c"]\n'
    )

    assert 50 == load_settings(file, environ={}).limits.pool_share
    assert 0 == load_settings(None, environ={}).limits.pool_share


def test_times_are_those_of_the_endpoint() -> None:
    settings = settings_with({}, handshake_timeout="3s", connect_timeout="4s", backpressure="1s")

    assert Timeouts(handshake=3.0, connect=4.0, backpressure=1.0) == timeouts_of(settings)


@pytest.mark.parametrize(
    ("limits", "endpoint", "expected"),
    [
        ({"connections": 100}, {}, ["limits.reserved_connections"]),
        ({"connections": 101}, {}, []),
        ({"connections": 0}, {}, []),
        ({"bytes_per_second": "63KiB"}, {}, ["limits.bytes_per_second"]),
        ({"bytes_per_second": "64KiB"}, {}, []),
        ({"messages_per_second": 99}, {}, ["limits.messages_per_second"]),
        ({"messages_per_second": 100}, {}, []),
        ({"pool_share": 1}, {"message_forward_size": "64MiB"}, ["limits.pool_share"]),
        ({"pool_share": 2}, {"message_forward_size": "64MiB"}, []),
        ({}, {"message_forward_size": "1MiB", "authentication": "certificate"}, []),
    ],
)
def test_limit_that_leaves_next_to_nothing_is_a_contradiction(
    limits: dict[str, Any], endpoint: dict[str, Any], expected: list[str]
) -> None:
    found = contradictions(with_pool_share(settings_with(limits, **endpoint)))

    assert expected == [dotted(one.path) for one in found if one.path[0] == "limits"]


# --- test_tracing ---
# Tracing needs its library and a journal, and says so.


JOURNAL = {"directory": "/flows"}


def settings_of_tracing(*, journal: bool = True, enabled: bool = True) -> Settings:
    return Settings.read({"journal": JOURNAL if journal else {}, "tracing": {"enabled": enabled}})


def test_without_a_journal_there_is_nothing_to_trace() -> None:
    (found,) = contradictions(settings_of_tracing(journal=False))

    assert "tracing.enabled" == dotted(found.path)
    assert "needs a journal" in found.problem
    assert "journal.sample = 0" in found.hint


@pytest.mark.parametrize("journal", [True, False])
def test_what_is_off_needs_nothing(monkeypatch: pytest.MonkeyPatch, *, journal: bool) -> None:
    monkeypatch.setattr(check, "find_spec", lambda _: None)

    one = settings_of_tracing(journal=journal, enabled=False)

    assert ([], []) == (contradictions(one), list(tracing_errors(one)))


def without(*, parent: bool) -> Callable[[str], object]:
    """`find_spec` where OpenTelemetry is not installed; without its parent package it raises."""

    def find(name: str) -> object:
        if "opentelemetry" not in name:
            return name
        if parent:
            raise ModuleNotFoundError
        return None

    return find


@pytest.mark.parametrize("find", [without(parent=False), without(parent=True)])
def test_library_that_is_missing_is_told_with_what_to_do_of_tracing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, find: Callable[[str], object]
) -> None:
    monkeypatch.setattr(check, "find_spec", find)
    one = Settings.read({"journal": {"directory": str(tmp_path)}, "tracing": {"enabled": True}})

    with pytest.raises(SettingError, match="OpenTelemetry, which is not installed") as caught:
        journal_plan(one)

    assert "pip install broker[otel]" in str(caught.value)


def test_library_that_is_there_is_found_and_not_imported() -> None:
    code = (
        "import sys; from broker.config.settings import Settings; from broker.catalog.check import tracing_errors;"
        " assert not list(tracing_errors(Settings.read({'tracing': {'enabled': True}})));"
        " assert 'opentelemetry.sdk' not in sys.modules and 'requests' not in sys.modules"
    )

    done = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True, timeout=60)

    assert (0, "") == (done.returncode, done.stderr)
