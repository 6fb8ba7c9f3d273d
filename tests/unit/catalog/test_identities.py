"""The certificate files of databases: what keeps them from being used, and that changed ones are."""

import asyncio
import os
import sqlite3
from pathlib import Path

import pytest

from broker.catalog import identities
from broker.catalog.identities import Identities, credentials_of, identity_errors
from broker.config.load import load_settings
from broker.config.settings import Settings
from broker.errors import SettingError
from broker.security.session import DialogCredentials
from tests.support.exhaustion import no_descriptors
from tests.support.identities import issued

TEXT = """
[instance]
name = "a"
[databases.orders]
path = "orders.db"
{}
"""
OWN = 'certificate = "orders.pem"\nprivate_key = "orders.key"\n'
PEERS = 'peers = ["peers/*.pem"]\n'


@pytest.fixture
def place(tmp_path: Path) -> Path:
    (tmp_path / "peers").mkdir()
    write(tmp_path, "orders")
    (tmp_path / "peers" / "billing.pem").write_bytes(issued("billing").certificate_pem)
    return tmp_path


def write(place: Path, who: str) -> None:
    (place / "orders.pem").write_bytes(issued(who).certificate_pem)
    (place / "orders.key").write_bytes(issued(who).key_pem)


def settings_of(place: Path, more: str) -> Settings:
    (place / "a.toml").write_text(TEXT.format(more), encoding="utf-8")
    return load_settings(place / "a.toml", environ={})


@pytest.mark.parametrize(("more", "name"), [("", "orders"), ("", "msdb"), ('peers = ["none/*.pem"]\n', "orders")])
def test_a_database_without_files_proves_nothing_and_knows_nobody(place: Path, more: str, name: str) -> None:
    settings = settings_of(place, more)

    found = credentials_of(settings, name)

    assert ([], None, {}) == (identity_errors(settings), found.own, found.peers.known)


@pytest.mark.parametrize(
    ("more", "spoil", "key", "problem"),
    [
        ('certificate = "orders.pem"\n', "", "databases.orders.private_key", "private_key is not"),
        ('private_key = "orders.key"\n', "", "databases.orders.certificate", "certificate is not"),
        (OWN, "orders.pem", "databases.orders.certificate", "No such file"),
        (OWN, "orders.key", "databases.orders.private_key", "No such file"),
        (OWN.replace("orders.key", "peers/billing.pem"), "", "databases.orders.certificate", "no private key"),
        ('peers = ["orders.key"]\n', "", "databases.orders.peers", "no certificate in PEM"),
        ('peers = ["nobody.pem"]\n', "", "databases.orders.peers", "No such file"),
    ],
)
def test_what_cannot_be_used_is_told_under_its_setting(
    place: Path, more: str, spoil: str, key: str, problem: str
) -> None:
    if spoil:
        (place / spoil).unlink()
    settings = settings_of(place, more)

    with pytest.raises(SettingError) as caught:
        credentials_of(settings, "orders")

    assert (key, True) == (caught.value.key, problem in caught.value.problem)
    assert caught.value.hint
    assert caught.value.span is not None
    assert [str(caught.value)] == [str(error) for error in identity_errors(settings)]


class Used:
    """Remembers what a database was given: its principal, and its peers."""

    def __init__(self) -> None:
        self.given: list[tuple[str | None, list[str]]] = []

    async def use(self, name: str, credentials: DialogCredentials) -> None:
        assert name == "orders"
        self.given.append((credentials.principal, sorted(one.who.name for one in credentials.peers.known.values())))


async def look(identities: Identities, times: int = 4) -> None:
    for _ in range(times):
        await identities.look("orders")


async def test_changed_files_are_used_when_two_looks_have_found_the_same(place: Path) -> None:
    used = Used()
    identities = Identities(settings_of(place, OWN + PEERS), used.use)
    await look(identities, 1)
    write(place, "shop")

    await look(identities, 1)
    assert [] == used.given
    await look(identities, 2)
    assert [("CN=shop", ["CN=billing"])] == used.given
    (place / "peers" / "shop.pem").write_bytes(issued("shop").certificate_pem)
    await look(identities, 2)

    assert ("CN=shop", ["CN=billing", "CN=shop"]) == used.given[-1]


async def test_what_a_database_could_not_take_over_is_tried_again(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(identities, "POLL_SECONDS", 0.001)
    tried: list[str | None] = []

    async def use(_: str, credentials: DialogCredentials) -> None:
        tried.append(credentials.principal)
        if len(tried) == 1:
            raise sqlite3.OperationalError("database is locked")

    watch = asyncio.create_task(Identities(settings_of(place, OWN + PEERS), use).watch())
    await asyncio.sleep(0)
    write(place, "shop")

    async with asyncio.timeout(20):
        while len(tried) < 2:  # noqa: ASYNC110 - it looks every millisecond
            await asyncio.sleep(0.001)

    assert not watch.done()
    watch.cancel()
    assert ["CN=shop", "CN=shop"] == tried


async def test_files_that_cannot_be_used_change_nothing(place: Path) -> None:
    used = Used()
    identities = Identities(settings_of(place, OWN), used.use)
    (place / "orders.pem").write_text("spoilt", encoding="utf-8")

    await look(identities)
    assert [] == used.given
    write(place, "orders")
    await look(identities)

    assert [("CN=orders", [])] == used.given


async def test_a_peer_that_is_in_no_file_is_unknown_whatever_else_is_broken(place: Path) -> None:
    for name in ("audit", "stock"):
        (place / "peers" / f"{name}.pem").write_bytes(issued(name).certificate_pem)
    used = Used()
    identities = Identities(settings_of(place, OWN + PEERS), used.use)
    (place / "peers" / "billing.pem").unlink()
    (place / "peers" / "stock.pem").write_text("half a certif")

    await look(identities)

    assert [("CN=orders", ["CN=audit", "CN=stock"])] == used.given


async def test_no_peer_is_withdrawn_because_directories_cannot_be_listed(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    used = Used()
    identities = Identities(settings_of(place, OWN + PEERS), used.use)
    (place / "orders.pem").write_text("spoilt", encoding="utf-8")
    monkeypatch.setattr(os, "scandir", no_descriptors)

    await look(identities)

    assert [] == used.given
