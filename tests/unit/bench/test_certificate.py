"""The throw-away certificate of a benchmark is one that an endpoint takes."""

from __future__ import annotations

from pathlib import Path

from broker.bench.forwarding import make_pair, tls_environ
from broker.config.load import load_settings
from broker.net.certificates import certificate_warnings, security_of


def test_gateway_takes_the_pair_as_its_environment_says(tmp_path: Path) -> None:
    settings = load_settings(None, environ=tls_environ(make_pair(tmp_path)))

    assert "CN=bench" == security_of(settings).own.principal_name  # type: ignore[union-attr]
    assert [] == certificate_warnings(settings)
