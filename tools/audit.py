"""
Whether a known vulnerability concerns a locked package, as far as a database of them can be reached.

    python -m tools.audit requirements/runtime.txt

Exit codes: 0 every package was looked up and nothing is known of any; 1 something is known; 2 not every package could
be looked up, so nothing has been proven. pip-audit by itself reports "no known vulnerabilities" when it was told
nothing about any package, so its report is read here package by package.

Asked are the index's own interface and, where that knows nothing, OSV. Needs `requirements/supply.txt` (`make audit`).
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

SERVICES = ("pypi", "osv")
SECONDS = 600


@dataclass(frozen=True)
class Findings:
    """Shape: `known` a line for each vulnerability; `unknown` packages that nobody knew; `checked` packages."""

    checked: tuple[str, ...] = ()
    known: tuple[str, ...] = ()
    unknown: tuple[str, ...] = field(default=())

    @property
    def exit_code(self) -> int:
        """0 proven, 1 vulnerable, 2 unproven."""
        if self.known:
            return 1
        return 2 if self.unknown or not self.checked else 0

    def lines(self) -> Iterable[str]:
        """What to tell."""
        yield from self.known
        if self.unknown or not self.checked:
            names = ", ".join(self.unknown) or "any package"
            yield (
                f"NOT AUDITED: neither the package index nor OSV told anything about {names}; this proves nothing:"
                " run it where they can be reached"
            )
        yield f"{len(self.checked)} packages looked up, {len(self.known)} vulnerabilities known"


def judge(report: Mapping[str, Any] | None) -> Findings:
    """What a report of pip-audit says; None where there is none."""
    if report is None:
        return Findings()
    checked, known, unknown = [], [], []
    for package in report["dependencies"]:
        if "vulns" not in package:
            unknown.append(package["name"])
            continue
        checked.append(package["name"])
        for found in package["vulns"]:
            fixed = ", ".join(found["fix_versions"]) or "no version"
            known.append(f"{package['name']} {package['version']}: {found['id']}; mended in {fixed}")
    return Findings(tuple(checked), tuple(known), tuple(unknown))


def ask(lock: Path, service: str) -> Findings:
    """The report of one service about a lock; nothing when it cannot be reached."""
    options = ["--require-hashes", "--disable-pip", "--progress-spinner", "off", "--format", "json"]
    command = [sys.executable, "-m", "pip_audit", "--requirement", str(lock), "--vulnerability-service", service]
    try:
        done = subprocess.run([*command, *options], capture_output=True, timeout=SECONDS, check=False)  # noqa: S603
        return judge(json.loads(done.stdout))
    except (json.JSONDecodeError, subprocess.TimeoutExpired):
        return judge(None)


def audit(lock: Path) -> Findings:
    """The best that any service could tell about a lock: a vulnerability first, then a whole look-up."""
    found = [ask(lock, service) for service in SERVICES]
    return min(found, key=lambda one: ((1, 0, 2).index(one.exit_code), len(one.unknown)))


def main(arguments: list[str]) -> int:
    """The command."""
    worst = 0
    for name in arguments:
        findings = audit(Path(name))
        sys.stdout.writelines(f"{name}: {line}\n" for line in findings.lines())
        worst = 1 if 1 in {worst, findings.exit_code} else max(worst, findings.exit_code)
    return worst


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
