"""The bills of materials that are shipped are those of the present locks."""

import json
from pathlib import Path
from typing import Any

import pytest

from tools.licences import licence_of
from tools.lock import REQUIREMENTS, installed, normalise, read_lock

ROOT = Path(__file__).parents[3]
BILLS = {"runtime": "deploy/sbom.cdx.json", "pipeline": "deploy/spark/sbom.cdx.json"}


@pytest.fixture(params=BILLS)
def bill(request: pytest.FixtureRequest) -> tuple[str, dict[str, Any]]:
    """A lock and its bill."""
    return request.param, json.loads((ROOT / BILLS[request.param]).read_text(encoding="utf-8"))


def test_bill_has_every_package_of_the_lock_with_its_hashes(bill: tuple[str, dict[str, Any]]) -> None:
    lock, document = bill
    expected = {(one.name, one.version, frozenset(one.hashes)) for one in read_lock(REQUIREMENTS / f"{lock}.txt")}

    told = {
        (one["name"], one["version"], frozenset(each["content"] for each in one["hashes"]))
        for one in document["components"]
    }

    assert expected == told, "run make sbom"


def test_bill_has_a_licence_of_every_package(bill: tuple[str, dict[str, Any]]) -> None:
    lock, document = bill
    entries = read_lock(REQUIREMENTS / f"{lock}.txt")
    there = installed(one.name for one in entries)
    expected = {one.name: licence_of(one.name, there.get(normalise(one.name))) for one in entries}

    told = {
        one["name"]: "".join(each.get("expression") or each["license"]["id"] for each in one["licenses"])
        for one in document["components"]
    }

    assert expected == told, "run make sbom"
