from __future__ import annotations

from broker.admin.operations import OPERATIONS


def test_every_operation_is_there_once() -> None:
    assert sorted((operation.method, operation.path) for operation in OPERATIONS) == [
        ("GET", "/v1/census"),
        ("GET", "/v1/config"),
        ("GET", "/v1/drain"),
        ("GET", "/v1/events"),
        ("GET", "/v1/status"),
        ("GET", "/v1/views/{name}"),
        ("GET", "/v1/why/{id}"),
        ("POST", "/v1/check"),
        ("POST", "/v1/drain"),
        ("POST", "/v1/explain"),
        ("POST", "/v1/plan"),
        ("POST", "/v1/reload"),
        ("POST", "/v1/sql"),
    ]


def test_names_of_operations_differ() -> None:
    """A client that is generated from the description calls its functions by them."""
    assert len(OPERATIONS) == len({operation.call.__name__ for operation in OPERATIONS})
