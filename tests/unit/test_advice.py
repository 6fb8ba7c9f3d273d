"""The name that was probably meant, and the statement to copy."""

import pytest

from broker.advice import create_route, near_name, to_run


@pytest.mark.parametrize(
    ("name", "known", "expected"),
    [
        ("//shop/Biling", ["//shop/Billing", "//shop/Shipping"], "//shop/Billing"),
        ("//shop/billing", ["//shop/Billings", " //shop/Billing "], " //shop/Billing "),  # but for case and blanks
        ("//shop/Billing", ["//shop/Billing", "//shop/Shipping"], ""),
        ("Billing", [], ""),
    ],
)
def test_nearest_name_is_another_one_that_is_spelt_alike(name: str, known: list[str], expected: str) -> None:
    assert expected == near_name(name, known)


def test_statement_to_run_has_its_place_its_command_and_its_names_quoted() -> None:
    """Peers choose the names of services."""
    hostile = "x]'; DROP ROUTE r; --"
    statement = "CREATE ROUTE [x]]'; DROP ROUTE r; --] WITH SERVICE_NAME = 'x]''; DROP ROUTE r; --', ADDRESS ="

    assert f"{statement} 'tcp://HOST:PORT';" == create_route(hostile)
    assert "at a, with broker sql, and in its script if it has one: USE [d]]]; DROP;" == to_run(
        "DROP;", database="d]", instance="a"
    )
    assert "with broker sql: USE [d]; DROP;" == to_run("DROP;", database="d", is_scripted=False)
