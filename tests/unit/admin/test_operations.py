"""The description of the admin API is made of its operations."""

from __future__ import annotations

import json
import re

import pytest

from broker.admin.operations import OPERATIONS, describe

DOCUMENT = describe(OPERATIONS, version="1.2")


def test_every_operation_is_described() -> None:
    described = {(method.upper(), path) for path, methods in DOCUMENT["paths"].items() for method in methods}

    assert {(operation.method, operation.path) for operation in OPERATIONS} == described


def test_every_reference_leads_somewhere() -> None:
    named = set(re.findall(r'"#/components/schemas/(\w+)"', json.dumps(DOCUMENT)))

    assert named <= DOCUMENT["components"]["schemas"].keys()
    assert "Problem" in named


def test_part_of_a_path_is_told_from_the_query() -> None:
    parameters = DOCUMENT["paths"]["/v1/views/{name}"]["get"]["parameters"]

    assert [(parameter["name"], parameter["in"], parameter["required"]) for parameter in parameters] == [
        ("name", "path", True),
        ("limit", "query", False),
        ("after", "query", False),
        ("database", "query", False),
    ]


@pytest.mark.parametrize(("path", "has_body"), [("/v1/sql", True), ("/v1/check", False)])
def test_body_is_described_where_there_is_one(path: str, has_body: bool) -> None:  # noqa: FBT001
    assert has_body == ("requestBody" in DOCUMENT["paths"][path]["post"])


def test_special_refusals_are_described() -> None:
    always, of_bodies = {"200", "400", "401", "403", "500"}, {"408", "413", "415"}

    assert {"404", "409", "503"} | always | of_bodies == DOCUMENT["paths"]["/v1/sql"]["post"]["responses"].keys()
