"""An audit that was told nothing proves nothing, and says so."""

from __future__ import annotations

from typing import Any

import pytest

from tools.audit import Findings, judge

GOOD = {"name": "a", "version": "1", "vulns": []}
BAD = {
    "name": "b",
    "version": "2",
    "vulns": [{"id": "PYSEC-1", "fix_versions": ["3"]}, {"id": "X", "fix_versions": []}],
}
SKIPPED = {"name": "c", "skip_reason": "not found"}


@pytest.mark.parametrize(
    ("packages", "code"),
    [([GOOD], 0), ([GOOD, SKIPPED], 2), ([SKIPPED], 2), ([], 2), ([GOOD, BAD], 1), ([BAD, SKIPPED], 1)],
)
def test_exit_code_is_0_only_when_every_package_was_looked_up(packages: list[dict[str, Any]], code: int) -> None:
    assert code == judge({"dependencies": packages}).exit_code


def test_no_report_is_no_proof() -> None:
    assert Findings() == judge(None)
    assert 2 == judge(None).exit_code
    assert "NOT AUDITED" in "\n".join(judge(None).lines())


def test_vulnerability_is_told_with_what_mends_it() -> None:
    lines = list(judge({"dependencies": [BAD]}).lines())

    assert "b 2: PYSEC-1; mended in 3" == lines[0]
    assert "b 2: X; mended in no version" == lines[1]


def test_packages_that_nobody_knew_are_named() -> None:
    assert "NOT AUDITED" in next(iter(judge({"dependencies": [SKIPPED]}).lines()))
    assert "about c;" in next(iter(judge({"dependencies": [SKIPPED]}).lines()))
