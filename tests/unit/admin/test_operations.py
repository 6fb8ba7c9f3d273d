"""The description of the admin API is made of its operations."""

import json
import re

from broker.admin.operations import OPERATIONS, describe

DOCUMENT = describe(version="1.2")


def test_every_operation_is_described_with_body_and_refusals() -> None:
    described = {(method.upper(), path) for path, methods in DOCUMENT["paths"].items() for method in methods}
    always, of_bodies = {"200", "400", "401", "403", "500"}, {"408", "413", "415"}

    assert {(operation.method, operation.path) for operation in OPERATIONS} == described
    assert {"404", "409", "503"} | always | of_bodies == DOCUMENT["paths"]["/v1/sql"]["post"]["responses"].keys()
    assert [True, False] == ["requestBody" in DOCUMENT["paths"][path]["post"] for path in ("/v1/sql", "/v1/check")]


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
