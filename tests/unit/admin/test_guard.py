from __future__ import annotations

import pytest

from broker.admin.guard import refusal


@pytest.mark.parametrize(
    "host", ["localhost", "LOCALHOST:9422", "127.0.0.1", "127.0.0.1:9422", "127.3.2.1:80", "[::1]:9422"]
)
def test_loopback_host_is_answered(host: str) -> None:
    assert refusal(host, None) is None


@pytest.mark.parametrize(
    "host",
    [None, "", "broker.example:9422", "10.0.0.1", "localhost.evil.example", "127.0.0.1.evil.example", "[::1", "[::2]"],
)
def test_any_other_host_is_refused(host: str | None) -> None:
    """A name that somebody points at 127.0.0.1 is not one of ours."""
    refused = refusal(host, None)

    assert refused == f"Host is {host!r}; only loopback addresses and localhost are answered"


def test_page_of_this_very_server_is_answered() -> None:
    assert refusal("127.0.0.1:9422", "http://127.0.0.1:9422") is None


@pytest.mark.parametrize(
    "origin",
    ["null", "", "http://evil.example", "https://127.0.0.1:9422", "http://127.0.0.1:3000", "http://localhost:9422"],
)
def test_page_of_another_origin_is_refused(origin: str) -> None:
    """Another server on this machine is another origin too."""
    refused = refusal("127.0.0.1:9422", origin)

    assert refused == f"Origin is {origin!r}; pages of other sites may not use this interface"
