"""Files of certificates and keys: who may read them, what replaces what, and what is told of a bad one."""

from __future__ import annotations

import os
import stat
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.serialization import BestAvailableEncryption, Encoding, NoEncryption, PrivateFormat

from broker.errors import CertificateUnusableError
from broker.security.certificate_files import Content, read_certificates, read_keys, store_files
from broker.security.issue import CertificateSubject, Validity, issue_database

NOW = datetime.now(UTC)
BILLING = issue_database(CertificateSubject("billing"), Validity(NOW, NOW + timedelta(days=1)), None)
SECRET, OPEN = Content(BILLING.key_pem, is_secret=True), Content(BILLING.certificate_pem)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_what_is_stored_is_read(tmp_path: Path) -> None:
    store_files({tmp_path / "a" / "b.key": SECRET, tmp_path / "a" / "b.pem": OPEN}, is_replacing=False)

    assert list(BILLING.certificates) == read_certificates(tmp_path / "a" / "b.pem")
    assert BILLING.key_pem == b"".join(
        key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        for key in read_keys(tmp_path / "a" / "b.key")
    )
    assert {"b.key", "b.pem"} == {path.name for path in (tmp_path / "a").iterdir()}


def test_key_is_its_owners_alone_from_the_first_byte(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    modes: list[int] = []
    usual = os.fsync

    def watch(handle: int) -> None:
        modes.append(stat.S_IMODE(os.fstat(handle).st_mode))
        usual(handle)

    monkeypatch.setattr(os, "fsync", watch)
    before = os.umask(0)
    try:
        store_files({tmp_path / "a.key": SECRET, tmp_path / "a.pem": OPEN}, is_replacing=False)
    finally:
        os.umask(before)

    assert [0o600, 0o644] == modes[:2]
    assert (0o600, 0o644) == (mode(tmp_path / "a.key"), mode(tmp_path / "a.pem"))


def test_file_that_is_there_is_kept_and_the_others_are_not_made(tmp_path: Path) -> None:
    (tmp_path / "a.pem").write_text("mine")

    with pytest.raises(FileExistsError):
        store_files({tmp_path / "a.key": SECRET, tmp_path / "a.pem": OPEN}, is_replacing=False)

    assert "mine" == (tmp_path / "a.pem").read_text()
    assert ["a.pem"] == [path.name for path in tmp_path.iterdir()]


def test_file_that_appears_meanwhile_is_kept_and_the_others_are_taken_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usual = os.link

    def race(source: Path, target: Path) -> None:
        if target.name == "a.pem":
            target.write_text("mine")
        usual(source, target)

    monkeypatch.setattr(os, "link", race)

    with pytest.raises(FileExistsError):
        store_files({tmp_path / "a.key": SECRET, tmp_path / "a.pem": OPEN}, is_replacing=False)

    assert "mine" == (tmp_path / "a.pem").read_text()
    assert ["a.pem"] == [path.name for path in tmp_path.iterdir()]


def test_link_to_nowhere_counts_as_there(tmp_path: Path) -> None:
    (tmp_path / "a.pem").symlink_to(tmp_path / "none")

    with pytest.raises(FileExistsError):
        store_files({tmp_path / "a.pem": OPEN}, is_replacing=False)


def test_what_replaces_a_file_keeps_its_mode(tmp_path: Path) -> None:
    path = tmp_path / "a.key"
    path.write_text("old")
    path.chmod(0o640)

    store_files({path: SECRET}, is_replacing=True)

    assert (0o640, SECRET.data) == (mode(path), path.read_bytes())


def test_left_over_of_a_killed_process_is_in_nobodys_way(tmp_path: Path) -> None:
    (tmp_path / f".a.key.{os.getpid()}.part").write_text("half")

    store_files({tmp_path / "a.key": SECRET}, is_replacing=False)

    assert ["a.key"] == [path.name for path in tmp_path.iterdir()]


def test_directory_that_cannot_be_made_is_an_error_of_the_system(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("a file")

    with pytest.raises(OSError, match=r"exists|Not a directory"):
        store_files({tmp_path / "a" / "b.pem": OPEN}, is_replacing=True)


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (None, "cannot be read: No such file or directory"),
        (b"", "holds no certificate in PEM form"),
        (BILLING.key_pem, "holds a private key and no certificate"),
        (b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n", "holds no certificate in PEM form"),
        (b"x" * (4 * 1024 * 1024 + 1), "is above 4 MiB"),
    ],
    ids=["missing", "empty", "key", "garbage", "large"],
)
def test_file_without_certificates_says_what_it_is(tmp_path: Path, content: bytes | None, problem: str) -> None:
    path = tmp_path / "a.pem"
    if content is not None:
        path.write_bytes(content)

    with pytest.raises(CertificateUnusableError) as caught:
        read_certificates(path)

    assert caught.value.problem.startswith(problem)
    assert str(path) == caught.value.path


def pkcs8(password: str = "") -> bytes:
    encryption = BestAvailableEncryption(password.encode()) if password else NoEncryption()
    return rsa.generate_private_key(65537, 2048).private_bytes(Encoding.PEM, PrivateFormat.PKCS8, encryption)


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"", "holds no private key in PEM form without a password"),
        (BILLING.certificate_pem, "holds no private key in PEM form without a password"),
        (pkcs8("secret"), "holds a private key that cannot be read (Password was not given"),
        (pkcs8(), "holds a key of another kind than those made here (RSAPrivateKey)"),
        (b"-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n", "holds a private key that cannot be read"),
    ],
    ids=["empty", "certificate", "password", "RSA", "garbage"],
)
def test_file_without_keys_says_what_it_is(tmp_path: Path, content: bytes, problem: str) -> None:
    path = tmp_path / "a.key"
    path.write_bytes(content)

    with pytest.raises(CertificateUnusableError) as caught:
        read_keys(path)

    assert caught.value.problem.startswith(problem)
