from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from broker.config.consistency import setting_warnings
from broker.config.settings import DatabaseSettings, DialogSettings, InstanceSettings, Settings, by_place
from broker.config.toml import KeyPositions, index_places
from broker.config.values import ListenAddress, SectionError, SettingFinding, keys_of, settings_of
from broker.conversation.frames import EARLY_WINDOW, Arrival, place
from broker.errors import SettingError, Span
from broker.protocol import layout

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
    assert Arrival.EARLY is place((7, 0), 7 + widest - 1, 0)
    assert Arrival.TOO_EARLY is place((7, 0), 7 + widest, 0)


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
