"""
The software bill of materials of a lock, as CycloneDX JSON: every package with its version, the hashes of its files,
its licence and what it needs.

    python -m tools.sbom requirements/runtime.txt deploy/sbom.cdx.json --site .venv/lib/python3.11/site-packages

Two runs over one lock give the same bytes: there is no time and no random number in it. It is checked against the
schema of CycloneDX 1.6 before it is written. Needs `requirements/supply.txt` (`make sbom` installs it beside `.venv`).

Source: CycloneDX 1.6; PyPA and package-url specifications for the names.
"""

from __future__ import annotations

import argparse
import json
import sys
import tomllib
from collections.abc import Mapping
from importlib.metadata import Distribution
from pathlib import Path

from cyclonedx.contrib.license.factories import LicenseFactory
from cyclonedx.model import HashAlgorithm, HashType
from cyclonedx.model.bom import Bom
from cyclonedx.model.component import Component, ComponentType
from cyclonedx.output.json import JsonV1Dot6
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
from packageurl import PackageURL

from tools.licences import licence_of
from tools.lock import ROOT, Locked, installed, normalise, read_lock, required_by


def component(locked: Locked, licence: str) -> Component:
    """One package; its hashes are those of every file of it that the lock lets in."""
    purl = PackageURL(type="pypi", name=normalise(locked.name), version=locked.version)
    return Component(
        name=locked.name,
        version=locked.version,
        type=ComponentType.LIBRARY,
        purl=purl,
        bom_ref=str(purl),
        licenses=[LicenseFactory().make_from_string(licence)] if licence else [],
        hashes=[HashType(alg=HashAlgorithm.SHA_256, content=digest) for digest in locked.hashes],
        description=f"only where {locked.marker}" if locked.marker else None,
    )


def bill(lock: list[Locked], there: Mapping[str, Distribution]) -> Bom:
    """
    The bill of a lock.

    Args:
        lock: Its entries.
        there: What is installed of it, by normalised name; it tells licences and dependencies.
    """
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    purl = PackageURL(type="pypi", name=project["name"], version=project["version"])
    root = Component(
        name=project["name"],
        version=project["version"],
        type=ComponentType.APPLICATION,
        purl=purl,
        bom_ref=str(purl),
        licenses=[LicenseFactory().make_from_string(project["license"])],
        description=project["description"],
    )
    bom = Bom(components=[component(one, licence_of(one.name, there.get(normalise(one.name)))) for one in lock])
    bom.metadata.component = root
    by_name: dict[str, list[Component]] = {}
    for made in bom.components:
        by_name.setdefault(normalise(made.name), []).append(made)
    needed: set[str] = set()
    for name, distribution in there.items():
        below = [one for required in required_by(distribution) for one in by_name.get(required, ())]
        needed.update(normalise(one.name) for one in below)
        for made in by_name.get(name, ()):
            bom.register_dependency(made, below)
    bom.register_dependency(root, [one for name, made in by_name.items() if name not in needed for one in made])
    return bom


def render(bom: Bom) -> str:
    """
    JSON in a fixed order, without time and serial number.

    Raises:
        ValueError: the schema does not allow it.
    """
    made = json.loads(JsonV1Dot6(bom).output_as_string())
    del made["serialNumber"], made["metadata"]["timestamp"]
    text = json.dumps(made, indent=1, sort_keys=True) + "\n"
    problem = JsonStrictValidator(SchemaVersion.V1_6).validate_str(text)
    if problem is not None:
        raise ValueError(f"the bill is no CycloneDX 1.6: {problem}")
    return text


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("lock", type=Path)
    parser.add_argument("target", type=Path)
    parser.add_argument("--site", type=Path, required=True, help="where the lock is installed")
    arguments = parser.parse_args()
    lock = read_lock(arguments.lock)
    text = render(bill(lock, installed((one.name for one in lock), arguments.site)))
    arguments.target.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
