"""The command bench: which gateway and which files it accepts."""

from __future__ import annotations

import pytest

from tests.support.command import run


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (("forwarding",), "Missing option '--address'"),
        (("forwarding", "--address", "LOCAL"), "'LOCAL' is not the address of an instance: write tcp://host:port"),
        (("forwarding", "--address", "gateway:4022"), "gateway:4022"),
        (("dialogs", "/none/orders.db", "/none/billing.db"), "'/none/orders.db' does not exist"),
    ],
)
def test_what_cannot_be_measured_is_a_usage_error(arguments: tuple[str, ...], problem: str) -> None:
    result = run("bench", *arguments)

    assert 2 == result.exit_code
    assert problem in result.stderr
