"""
`python -m tools.sbom LOCK TARGET SITE`: the software bill of materials of a lock, as CycloneDX JSON.

It has every package with its version, the hashes of its files, its licence and its dependencies, read from the
installation in SITE. It has no time and no random number, and is checked against the schema of CycloneDX 1.6. Needs
`requirements/supply.txt` (`make sbom`).

Source: CycloneDX 1.6; PyPA and package-url specifications for the names.
"""

import json
import sys
import tomllib
from collections.abc import Mapping
from importlib.metadata import Distribution
from pathlib import Path
from typing import Any

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


def component(name: str, version: str, licence: str, **more: Any) -> Component:
    """Return one package, a library unless `more` has another type."""
    purl = PackageURL(type="pypi", name=normalise(name), version=version)
    licences = [LicenseFactory().make_from_string(licence)] if licence else []
    form = {"type": ComponentType.LIBRARY} | more
    return Component(name=name, version=version, purl=purl, bom_ref=str(purl), licenses=licences, **form)


def locked_component(locked: Locked, there: Mapping[str, Distribution]) -> Component:
    """Return a package of a lock, with the hashes of every file that the lock allows."""
    return component(
        locked.name,
        locked.version,
        licence_of(locked.name, there.get(normalise(locked.name))),
        hashes=[HashType(alg=HashAlgorithm.SHA_256, content=digest) for digest in locked.hashes],
        description=f"only where {locked.marker}" if locked.marker else None,
    )


def bill(lock: list[Locked], there: Mapping[str, Distribution]) -> Bom:
    """
    Return the bill of a lock.

    Args:
        lock: Its entries.
        there: Installed packages by normalised name, for licences and dependencies.
    """
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    about = {"type": ComponentType.APPLICATION, "description": project["description"]}
    root = component(project["name"], project["version"], project["license"], **about)
    bom = Bom(components=[locked_component(one, there) for one in lock])
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
    """Return JSON in a fixed order, without time and serial number. Raises ValueError: it breaks the schema."""
    made = json.loads(JsonV1Dot6(bom).output_as_string())
    del made["serialNumber"], made["metadata"]["timestamp"]
    text = json.dumps(made, indent=1, sort_keys=True) + "\n"
    problem = JsonStrictValidator(SchemaVersion.V1_6).validate_str(text)
    if problem is not None:
        raise ValueError(f"the bill is not valid CycloneDX 1.6: {problem}")
    return text


def main(lock_path: str, target: str, site: str) -> None:
    """Write the bill of a lock that is installed in `site`."""
    lock = read_lock(Path(lock_path))
    Path(target).write_text(render(bill(lock, installed((one.name for one in lock), Path(site)))), encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
