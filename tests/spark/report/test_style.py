"""The style sheet: whole, and asking for nothing."""

from __future__ import annotations

import re

from broker.pipeline.report.style import STYLE


def test_every_colour_is_told_for_light_and_dark() -> None:
    light, dark = (set(re.findall(r"(--[\w-]+):", block)) for block in re.findall(r":root\{([^}]*)\}", STYLE)[:2])

    assert light == dark
    assert light >= set(re.findall(r"var\((--[\w-]+)\)", STYLE))


def test_nothing_is_loaded() -> None:
    assert not re.search(r"url\(|@import|@font-face|expression|</style", STYLE)


def test_braces_match() -> None:
    assert STYLE.count("{") == STYLE.count("}")
