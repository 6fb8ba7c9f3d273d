"""The settings as a whole: defaults, names, places in reports."""

import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from broker.config.consistency import setting_warnings
from broker.config.load import load_settings
from broker.config.schema import SectionError, SettingFinding, settings_of
from broker.config.settings import InstanceSettings, Settings, by_place
from broker.config.toml import index_places
from broker.conversation.frames import FragmentArrival, classify
from broker.errors import SettingError, Span
from broker.protocol import layout

TEXT = "[endpoint]\nlisten = ['0.0.0.0:1']\nadvertise = []\n"


def test_every_setting_says_what_it_is_and_why() -> None:
    texts = {one.path: (one.description, one.why) for one in settings_of(Settings)}

    assert [] == [path for path, both in texts.items() if any(len(one) <= 10 or one[-1] != "." for one in both)]


@pytest.mark.parametrize(
    ("host_name", "name"), [("web-1", "web-1"), ("", "broker"), ("a\nb", "ab"), ("x" * 200, "x" * 128)]
)
def test_host_name_becomes_a_valid_name(monkeypatch: pytest.MonkeyPatch, host_name: str, name: str) -> None:
    monkeypatch.setattr(os, "uname", lambda: SimpleNamespace(nodename=host_name))

    assert name == InstanceSettings().name


def test_errors_point_at_value_key_or_variable_and_do_not_make_settings_differ() -> None:
    places = index_places(TEXT, source="f")
    places.elsewhere["dialog", "window"] = "BROKER_DIALOG__WINDOW"
    settings = Settings().placed(places)

    errors = [
        settings.error(("endpoint", "listen", 0), "p", "h"),
        settings.error(("endpoint", "listen"), "p", of_key=True),
        settings.error(("dialog", "window"), "p"),
    ]

    assert [
        "f:2:11: endpoint.listen[0]: p; h",
        "f:2:1: endpoint.listen: p",
        "dialog.window (BROKER_DIALOG__WINDOW): p",
    ] == [str(error) for error in errors]
    assert Settings() == settings


def test_receiver_accepts_all_that_the_widest_window_lets_be_in_flight() -> None:
    widest = layout.EARLY_WINDOW

    assert widest == Settings.read({"dialog": {"window": widest}}).dialog.window
    with pytest.raises(SectionError):
        Settings.read({"dialog": {"window": widest + 1}})
    assert FragmentArrival.EARLY is classify((7, 0), (7 + widest - 1, 0))
    assert FragmentArrival.TOO_EARLY is classify((7, 0), (7 + widest, 0))


def test_report_is_sorted_by_line_then_column_and_what_has_no_place_is_last() -> None:
    settings = Settings().placed(index_places(TEXT, source="f"))
    paths = [("dialog", "window"), ("endpoint", "advertise"), ("endpoint", "listen")]
    places = [None, Span("f", 10, 1), Span("f", 9, 2), Span("f", 9, 1), Span("e", 99, 1)]

    report = settings.report([SettingFinding(path, "p", "h") for path in paths])
    ordered = sorted((SettingError("k", "p", span) for span in places), key=by_place)

    assert ["endpoint.listen", "endpoint.advertise", "dialog.window"] == [error.key for error in report]
    assert [places[4], places[3], places[2], places[1], None] == [error.span for error in ordered]
    assert "endpoint.listen[0]" == setting_warnings(settings)[1].key


def test_loaded_settings_have_the_share_that_goes_with_their_authentication(tmp_path: Path) -> None:
    file = tmp_path / "broker.toml"
    file.write_text(
        '[endpoint]\nencryption = "required"\nauthentication = "certificate"\n'
        'certificate = "a"\nprivate_key = "b"\ntrust = ["c"]\n'
    )

    settings = [load_settings(one, environ={}) for one in (file, None)]
    given = load_settings(file, environ={}, overrides={"limits.pool_share": 20})
    assert [50, 0, 20] == [one.limits.pool_share for one in (*settings, given)]
