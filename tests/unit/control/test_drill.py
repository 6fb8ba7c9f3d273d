"""A day in the calendar: what is not valid any more, what breaks by it, and what does not because it was renewed."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.hashes import SHA256

from broker.control.certificate_file import Content, store_files
from broker.control.config import Settings
from broker.control.drill import Break, Peer, connected_peers, drill
from broker.control.load import load_settings
from broker.control.renewal import with_new_sealing
from broker.errors import CertificateUnusableError
from broker.security.issue import (
    Authority,
    Holder,
    Issued,
    Validity,
    certificates_pem,
    issue_database,
    issue_endpoint,
    make_authority,
    renew_authority,
)
from broker.store.database import open_store
from broker.store.transaction import writing
from tests.support.certificates import make

NOW = datetime(2026, 3, 1, tzinfo=UTC)
DAY = timedelta(days=1)
YEAR, DECADE = Validity(NOW - DAY, NOW + 365 * DAY), Validity(NOW - DAY, NOW + 3650 * DAY)
LAST_YEAR = Validity(NOW - 400 * DAY, NOW - 35 * DAY)
SOON, LATER, NEVER = NOW + 10 * DAY, NOW + 366 * DAY, NOW + 3651 * DAY


def validity(days: int) -> Validity:
    return Validity(NOW - DAY, NOW + days * DAY)


class Site:
    """A configuration with its files."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.ca: Authority = make_authority("shop CA", DECADE)
        self.own = issue_endpoint(Holder("orders"), YEAR, self.ca)
        self.database = issue_database(Holder("orders"), YEAR, None)
        self.trust: list[Issued] = []
        self.peers: list[Issued] = []

    def settings(self, *, encryption: str = "required", authentication: str = "certificate") -> Settings:
        trust = certificates_pem(self.ca.roots) + b"".join(one.certificate_pem for one in self.trust)
        contents = {
            "own.pem": self.own.certificate_pem,
            "trust.pem": trust,
            "orders.dialog.pem": self.database.certificate_pem,
            **{f"peers/{number}.pem": one.certificate_pem for number, one in enumerate(self.peers)},
            "broker.toml": (
                f'[instance]\nstate_dir="."\n[endpoint]\nencryption="{encryption}"\nauthentication="{authentication}"\n'
                'certificate="own.pem"\nprivate_key="own.key"\ntrust=["trust.pem"]\n'
                '[databases.orders]\npath="orders.db"\ncertificate="orders.dialog.pem"\nprivate_key="o.key"\n'
                'peers=["peers/*.pem"]\n'
            ).encode(),
        }
        store_files({self.directory / name: Content(data) for name, data in contents.items()}, is_replacing=True)
        return load_settings(self.directory / "broker.toml", environ={})

    def breaks(self, at: datetime, *peers: Peer) -> list[Break]:
        return drill(self.settings(), peers, now=NOW, at=at)


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


def told(found: list[Break]) -> list[tuple[str, str, str]]:
    return [(one.setting, one.certificate.subject, one.what) for one in found]


def test_nothing_breaks_while_everything_is_valid(site: Site) -> None:
    assert [] == site.breaks(SOON)


def test_own_certificates_that_end_are_told_with_what_stops(site: Site) -> None:
    found = site.breaks(LATER)

    signing = "what this database begins under a binding that is not anonymous fails, and no peer believes it"
    assert [
        ("databases.orders.certificate", "CN=orders", signing),
        ("databases.orders.certificate", "CN=orders", "nobody can seal to this database: dialogs with it fail"),
        ("endpoint.certificate", "CN=orders", "every peer refuses this instance"),
    ] == told(found)
    assert str(site.directory / "own.pem") == found[2].path
    assert not any(one.is_old for one in found)


def test_admin_port_has_certificates_too(site: Site) -> None:
    site.settings()
    text = (site.directory / "broker.toml").read_text()
    text += '[admin]\nlisten="127.0.0.1:9422"\ncertificate="own.pem"\nprivate_key="own.key"\ntrust=["trust.pem"]\n'
    (site.directory / "broker.toml").write_text(text)
    settings = load_settings(site.directory / "broker.toml", environ={})

    ended = [(one.setting, one.certificate.subject) for one in drill(settings, (), now=NOW, at=NEVER)]

    assert [("admin.certificate", "CN=orders"), ("admin.trust", "CN=shop CA")] == [
        one for one in ended if one[0].startswith("admin.")
    ]


def test_authority_that_ends_takes_everybody_along(site: Site) -> None:
    found = site.breaks(NEVER)

    what = "every peer that it vouches for is refused, and refuses this instance"
    assert ("endpoint.trust", "CN=shop CA", what) in told(found)


def test_authority_that_was_renewed_breaks_nothing_but_who_has_the_old_one_only(site: Site) -> None:
    old = site.ca
    site.ca = renew_authority(old, Validity(NOW - DAY, NOW + 9999 * DAY), now=NOW)
    site.own = issue_endpoint(Holder("orders"), validity(4000), site.ca)
    site.database = issue_database(Holder("orders"), validity(4000), None)

    found = site.breaks(NEVER)

    what = "peers that trust only CN=shop CA refuse this instance"
    assert [("endpoint.certificate", "CN=shop CA", what)] == told(found)


def test_trusted_certificate_that_was_renewed_breaks_nothing(site: Site) -> None:
    site.trust = [issue_endpoint(Holder("billing"), validity(5), None)]
    assert [("endpoint.trust", "CN=billing", "the peer that shows it is refused")] == told(site.breaks(SOON))

    site.trust += [issue_endpoint(Holder("billing"), YEAR, None)]

    assert [] == site.breaks(SOON)


def test_certificate_in_peers_is_a_peers_own_whatever_it_says(site: Site) -> None:
    site.settings()
    (site.directory / "peer.pem").write_bytes(make("m", is_authority=True).pem)
    file = site.directory / "broker.toml"
    file.write_text(file.read_text().replace("trust=", 'peers=["peer.pem"]\ntrust=', 1))

    found = drill(load_settings(file, environ={}), (), now=NOW, at=NEVER)

    assert ("endpoint.peers", "CN=m", "the peer that shows it is refused") in told(found)


def test_forgotten_authority_in_the_bundle_is_told_and_marked(site: Site) -> None:
    site.trust = [Issued(make_authority("old", LAST_YEAR).roots, ())]

    [one] = site.breaks(SOON)

    assert ("endpoint.trust", "CN=old", True) == (one.setting, one.certificate.subject, one.is_old)


def test_certificate_that_begins_later_is_not_valid_on_the_day(site: Site) -> None:
    site.own = issue_endpoint(Holder("orders"), Validity(NOW + 20 * DAY, NOW + 40 * DAY), site.ca)

    assert ["endpoint.certificate"] == [one.setting for one in site.breaks(SOON)]
    assert [] == [one for one in site.breaks(NOW + 30 * DAY) if one.setting.startswith("endpoint")]


def test_key_to_seal_to_that_was_renewed_breaks_nothing(site: Site) -> None:
    short = issue_database(Holder("orders"), YEAR, None)
    site.database = with_new_sealing(short, validity(5), now=NOW)
    assert [] == site.breaks(SOON)  # the older one is valid for longer


@pytest.mark.parametrize(
    ("principal", "whom"), [("CN=billing", ("//shop/Billing",)), ("billing", ("//shop/Billing",)), ("other", ())]
)
def test_peer_that_ends_is_told_with_the_services_bound_to_it(
    site: Site, principal: str, whom: tuple[str, ...]
) -> None:
    site.peers = [issue_database(Holder("billing"), validity(5), None), issue_database(Holder("stock"), YEAR, None)]
    with closing(open_store(site.directory / "orders.db")) as db, writing(db):
        db.execute(
            "INSERT INTO broker_remote_service_binding (name, remote_service_name, remote_principal) VALUES (?, ?, ?)",
            ("b", "//shop/Billing", principal),
        )

    found = site.breaks(SOON)

    sentences = {"what it signs is not believed", "nothing can be sealed to it"}
    assert (sentences, {"CN=billing"}) == ({one.what for one in found}, {one.certificate.subject for one in found})
    assert {whom} == {one.whom for one in found}


def test_file_that_is_no_database_has_no_bindings(site: Site) -> None:
    site.peers = [issue_database(Holder("billing"), validity(5), None)]
    with closing(sqlite3.connect(site.directory / "orders.db")) as db, db:
        db.execute("CREATE TABLE other (a)")

    assert [(), ()] == [one.whom for one in site.breaks(SOON)]


def row(issued: Issued, name: str) -> dict[str, object]:
    one = issued.certificates[0]
    return {
        "peer_certificate_id": one.fingerprint(SHA256()).hex(),
        "peer_certificate_expiry_date": f"{one.not_valid_after_utc:%Y-%m-%d %H:%M:%S.%f}",
        "principal_name": one.subject.rfc4514_string(),
        "peer_name": name,
        "peer_address": "192.0.2.1:5",
    }


def test_connected_peer_is_named_where_its_certificate_is_told_or_on_its_own(site: Site) -> None:
    pinned, signed = issue_endpoint(Holder("b"), validity(5), None), issue_endpoint(Holder("c"), validity(6), site.ca)
    lasting = issue_endpoint(Holder("d"), YEAR, site.ca)
    site.trust = [pinned]
    nobody = {"peer_certificate_id": None}
    peers = connected_peers([row(pinned, "b"), row(pinned, "b"), row(signed, "c"), row(lasting, "d"), nobody])

    found = site.breaks(SOON, *peers)

    assert 3 == len(peers)
    assert [
        ("endpoint.trust", "CN=b", ("b (192.0.2.1:5)",)),
        ("connected now", "CN=c", ("c (192.0.2.1:5)",)),
    ] == [(one.setting, one.certificate.subject, one.whom) for one in found]


def test_plain_endpoint_and_one_that_asks_nobody_have_nothing_to_trust(site: Site) -> None:
    site.database = issue_database(Holder("orders"), DECADE, None)

    plain = drill(site.settings(encryption="disabled", authentication="none"), [], now=NOW, at=NEVER - 2 * DAY)
    blind = drill(site.settings(authentication="none"), [], now=NOW, at=NEVER - 2 * DAY)

    assert ([], ["endpoint.certificate"]) == (plain, [one.setting for one in blind])


def test_file_that_cannot_be_read_is_told(site: Site) -> None:
    settings = site.settings()
    (site.directory / "own.pem").unlink()

    with pytest.raises(CertificateUnusableError, match=r"own\.pem: cannot be read"):
        drill(settings, [], now=NOW, at=SOON)
