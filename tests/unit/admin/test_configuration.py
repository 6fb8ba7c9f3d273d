"""What an instance runs by, as values."""

from __future__ import annotations

from pathlib import Path

import msgspec

from broker.admin.api import config_answer
from broker.config.load import in_force, load_settings


def test_every_key_is_told_with_its_origin(tmp_path: Path) -> None:
    path = tmp_path / "a.toml"
    path.write_text("[endpoint]\nmax_hops = 4\n[databases.a]\npath = 'a.db'\nrole_command = ['x', 'secret']\n")
    path.write_text(path.read_text() + "mirroring = 'command'\n")
    settings = load_settings(path, environ={"BROKER_LOG_LEVEL": "debug"})

    told = {one["key"]: one for one in msgspec.json.decode(msgspec.json.encode(config_answer(settings)))["settings"]}

    assert [one.key for one in in_force(settings)] == list(told)
    assert (4, f"{path}:2:12", "live") == tuple(told["endpoint.max_hops"][one] for one in ("value", "origin", "reload"))
    assert ("debug", "BROKER_LOG_LEVEL") == (told["observe.log_level"]["value"], told["observe.log_level"]["origin"])
    assert ["x", "***"] == told["databases.a.role_command"]["value"]
