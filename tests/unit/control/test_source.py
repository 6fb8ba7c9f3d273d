"""Settings know where they can be read again."""

from pathlib import Path

from broker.config.load import load_settings
from broker.config.toml import SettingsSource


def test_settings_remember_file_variables_and_flags_and_nothing_of_others(tmp_path: Path) -> None:
    """Of the environment only what is about settings is kept, and the path does not depend on the directory."""
    path = tmp_path / "broker.toml"
    path.write_text("")
    environ = {"BROKER_LOG_LEVEL": "debug", "PASSWORD": "secret"}

    settings = load_settings(path, environ=environ, overrides={"endpoint.max_hops": "3"})

    source = settings.places.source
    assert SettingsSource(path, {"BROKER_LOG_LEVEL": "debug"}, {"endpoint.max_hops": "3"}) == source
    assert str(path) == source.name


def test_without_a_file_it_is_the_environment() -> None:
    assert "the environment" == SettingsSource(None).name
