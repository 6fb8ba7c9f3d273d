"""
The locked packages (`requirements/*.txt`, by `make lock`), and the metadata of those that are installed.

A lock has no licences and dependencies; they are read from an installation. Packages of other platforms are listed too.
"""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from importlib.metadata import Distribution, distributions
from pathlib import Path

ROOT = Path(__file__).parents[1]
REQUIREMENTS = ROOT / "requirements"
_ENTRY = re.compile(r"([A-Za-z0-9._-]+)==([^\s;\\]+)(?: ; ([^\\\n]+?))?(?: \\)?$")
_HASH = re.compile(r"--hash=sha256:([0-9a-f]{64})")
_REQUIRED = re.compile(r"[A-Za-z0-9._-]+")


@dataclass(frozen=True)
class Locked:
    """One entry of a lock: `marker` names its platforms, empty for all; `hashes` are SHA-256 of its files."""

    name: str
    version: str
    marker: str = ""
    hashes: tuple[str, ...] = field(default=(), repr=False)


class LockError(Exception):
    """A malformed line of a lock, or an entry without hashes."""


def read_lock(path: Path) -> list[Locked]:
    """
    The entries of a lock, in its order.

    Raises:
        LockError: a line that pins no version, or an entry without a hash.
    """
    found: list[Locked] = []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        entry, digest = _ENTRY.fullmatch(line), _HASH.search(line)
        if entry is not None:
            found.append(Locked(entry[1], entry[2], entry[3] or ""))
        elif digest is not None and found:
            last = found[-1]
            found[-1] = Locked(last.name, last.version, last.marker, (*last.hashes, digest[1]))
        elif line.strip():
            raise LockError(f"{path.name}:{number}: no pinned version and no hash: {line.strip()}; run make lock")
    bare = [one.name for one in found if not one.hashes]
    if bare:
        raise LockError(f"{path.name}: no hash for {', '.join(bare)}; run make lock")
    return found


def installed(names: Iterable[str], site: Path | None = None) -> dict[str, Distribution]:
    """Return the installations of these packages, by normalised name; here, or in another folder of packages."""
    wanted = {normalise(name) for name in names}
    there = distributions() if site is None else distributions(path=[str(site)])
    found: dict[str, Distribution] = {}
    for one in there:
        name = normalise(one.metadata["Name"] or "")
        if name in wanted:
            found.setdefault(name, one)
    return found


def required_by(one: Distribution) -> Iterator[str]:
    """Normalised names of what a package needs, whatever the platform; not what only its extras need."""
    for line in one.requires or ():
        requirement, _, marker = line.partition(";")
        name = _REQUIRED.match(requirement)
        if name is not None and "extra ==" not in marker:
            yield normalise(name[0])


def normalise(name: str) -> str:
    """A name as the index compares names. Source: PyPA specifications, "Names and normalization"."""
    return re.sub(r"[-_.]+", "-", name).lower()
