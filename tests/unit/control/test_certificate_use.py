"""Which settings name which certificate files."""

from __future__ import annotations

from pathlib import Path

from broker.config.load import load_settings
from broker.net.certificates import certificate_uses, trusted_files


def test_each_file_is_listed_with_every_setting_that_names_it(tmp_path: Path) -> None:
    (tmp_path / "tls").mkdir()
    for name in ("a.pem", "b.pem", "c.dialog.pem"):
        (tmp_path / "tls" / name).write_text("")
    (tmp_path / "broker.toml").write_text(
        '[endpoint]\nencryption="required"\nauthentication="certificate"\n'
        'certificate="tls/a.pem"\nprivate_key="a.key"\ntrust=["tls/?.pem", "none.pem"]\npeers=["tls/b.pem"]\n'
        '[databases.orders]\npath="o.db"\ncertificate="tls/c.dialog.pem"\nprivate_key="c.key"\npeers=["tls/*.dialog.pem"]\n'
    )

    uses = certificate_uses(load_settings(tmp_path / "broker.toml", environ={}))

    assert {
        tmp_path / "tls" / "a.pem": ("endpoint.certificate", "endpoint.trust"),
        tmp_path / "tls" / "b.pem": ("endpoint.trust", "endpoint.peers"),
        tmp_path / "none.pem": ("endpoint.trust",),
        tmp_path / "tls" / "c.dialog.pem": ("databases.orders.certificate", "databases.orders.peers"),
    } == uses


def test_pattern_that_matches_nothing_has_no_file_and_a_plain_path_always_has_one(tmp_path: Path) -> None:
    assert [tmp_path / "a"] == trusted_files((f"{tmp_path}/*.pem", f"{tmp_path}/a", f"{tmp_path}/a"))


def test_configuration_without_certificates_uses_none(tmp_path: Path) -> None:
    (tmp_path / "broker.toml").write_text('[databases.orders]\npath="o.db"\n')

    assert {} == certificate_uses(load_settings(tmp_path / "broker.toml", environ={}))
