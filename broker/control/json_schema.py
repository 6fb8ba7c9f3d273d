"""
The configuration as a JSON Schema, so that editors complete keys and mark mistakes while one writes.

It is made from the models, as the reference is, and takes every file that the program takes. The program refuses more:
ranges of times and of sizes written as text, what keys say together, and what the machine has to say. `broker check`
tells all of it.

    python -m broker.control.json_schema config/broker.schema.json

writes the file that the samples name in their first line. A test fails when the committed one differs.

Source: JSON Schema, draft 2020-12; the directive `#:schema` is that of Taplo and of what is built on it.
"""

from __future__ import annotations

import json
import sys
import tomllib
from collections.abc import Iterable
from itertools import groupby
from pathlib import Path
from typing import Any

from broker.control.config import Settings
from broker.control.setting import ANY_NAME, Reload, Setting, settings_of

DIALECT = "https://json-schema.org/draft/2020-12/schema"
_WHEN = {
    Reload.LIVE: "A reload applies it at once.",
    Reload.RECONNECT: "A reload applies it to connections made from then on.",
    Reload.RESTART: "A change takes a restart.",
}


def json_schema() -> dict[str, Any]:
    """The schema, as plain values."""
    root: dict[str, Any] = {
        "$schema": DIALECT,
        "title": "broker configuration",
        "description": "One instance of broker: what broker serve -c FILE reads.",
        "type": "object",
        "additionalProperties": False,
        "properties": {},
    }
    for path, settings in groupby(settings_of(Settings), key=lambda one: one.path[:-1]):
        section = _section(settings)
        if path[-1] == ANY_NAME:
            section = {"type": "object", "additionalProperties": section}
        root["properties"][path[0]] = section
    return root


def render_schema() -> str:
    """The text of the file."""
    return json.dumps(json_schema(), indent=2, ensure_ascii=False) + "\n"


def _section(settings: Iterable[Setting]) -> dict[str, Any]:
    settings = list(settings)
    section: dict[str, Any] = {
        "type": "object",
        "additionalProperties": False,
        "properties": {str(one.path[-1]): _key(one) for one in settings},
    }
    required = [str(one.path[-1]) for one in settings if not one.default]
    return section | ({"required": required} if required else {})


def _key(one: Setting) -> dict[str, Any]:
    told = f"{one.description}\n\nAllowed: {one.kind.allowed}. {one.reason} {_WHEN[one.reload]}"
    described = one.kind.json_schema | {"description": told}
    if one.default and not one.default_is_said:
        described |= {"default": tomllib.loads(f"value = {one.default}")["value"]}
    return described


def main(arguments: list[str]) -> None:
    """Write the files named."""
    for argument in arguments:
        Path(argument).write_text(render_schema(), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
