"""The directory of an authority."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from broker.errors import CertificateUnusableError
from broker.security.certificate_files import authority_files, read_authority, store_files
from broker.security.issue import (
    Authority,
    CertificateSubject,
    Validity,
    issue_database,
    make_authority,
    renew_authority,
)

NOW = datetime.now(UTC)
YEAR = Validity(NOW, NOW + timedelta(days=365))


def stored(directory: Path) -> Authority:
    made = make_authority("shop CA", YEAR)
    store_files(authority_files(made, directory), is_replacing=False)
    return made


def test_authority_is_read_as_it_was_stored(tmp_path: Path) -> None:
    made = stored(tmp_path)

    found = read_authority(tmp_path)

    assert (made.roots, made.cross_certificates) == (found.roots, found.cross_certificates)
    assert made.key.private_numbers() == found.key.private_numbers()
    assert {"ca.pem", "ca.key"} == {path.name for path in tmp_path.iterdir()}


def test_renewed_authority_is_read_as_it_was_stored(tmp_path: Path) -> None:
    renewed = renew_authority(stored(tmp_path), YEAR, now=NOW)
    store_files(authority_files(renewed, tmp_path), is_replacing=True)

    found = read_authority(tmp_path)

    assert (renewed.roots, renewed.cross_certificates) == (found.roots, found.cross_certificates)
    assert (2, 1) == (len(found.roots), len(found.cross_certificates))


def test_key_of_another_authority_is_refused(tmp_path: Path) -> None:
    stored(tmp_path)
    (tmp_path / "ca.key").write_bytes(issue_database(CertificateSubject("a"), YEAR, None).key_pem)

    with pytest.raises(CertificateUnusableError, match="is not the key of the first certificate in"):
        read_authority(tmp_path)


def test_directory_without_an_authority_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CertificateUnusableError, match="cannot be read: No such file"):
        read_authority(tmp_path)
