"""What pairing changes on one side: files, statements, and what is refused before anything is changed."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding

from broker.control.certificate_file import read_certificates
from broker.control.config import Settings
from broker.control.pairing import (
    Side,
    dropping,
    installation,
    names_for,
    own_offer,
    place_for,
    refuse_foreign_hosts,
    refuse_known_names,
    service_missing,
    trial_begins,
    trial_ends,
    trial_of,
)
from broker.control.rehearsal import rehearse
from broker.control.script import script_files
from broker.ddl.parser import parse_script
from broker.ddl.statements import GrantPermission
from broker.errors import SettingError
from broker.security.identity import parse_peers
from broker.security.issue import Holder, Validity, certificates_pem, issue_endpoint, make_authority
from broker.security.pairing import Partner, partner_of
from tests.support.paired import side_of

NOW = datetime.now(UTC)
YEAR = Validity(NOW, NOW + timedelta(days=365))


@pytest.fixture
def orders(tmp_path: Path) -> Side:
    return side_of(tmp_path / "orders")


@pytest.fixture
def billing(tmp_path: Path) -> Partner:
    return partner_of(own_offer(side_of(tmp_path / "billing")))


# --- the offer ----------------------------------------------------------------------------------------------


def test_offer_says_what_others_have_to_know_and_no_more(orders: Side) -> None:
    offer = own_offer(orders)

    assert ("orders", "tcp://orders.example:4022", "//shop/orders") == (offer.name, offer.address, offer.service)
    assert "PRIVATE" not in offer.certificate + offer.identity
    assert "CN=orders" == partner_of(offer).identity.who.name


@pytest.mark.parametrize(
    ("section", "change", "problem"),
    [
        ("endpoint", {"authentication": "none"}, "pairing is for endpoints that encrypt and ask for certificates"),
        ("endpoint", {"encryption": "disabled", "authentication": "none"}, "pairing is for endpoints that encrypt"),
        ("database", {"certificate": "", "private_key": ""}, "this database has no certificate"),
        ("database", {"private_key": "tls/orders.key"}, "the private key of the first certificate is not among"),
        ("database", {"certificate": "dialog/none.pem"}, "No such file or directory"),
        ("endpoint", {"trust": ["tls/peers/orders.pem"]}, "endpoint.trust: pairing adds a file, and no pattern here"),
        ("database", {"peers": []}, "databases.orders.peers: pairing adds a file, and no pattern here"),
        ("database", {"scripts": ["none.d/*.sql"]}, "databases.orders.scripts: pairing adds a file"),
        ("routes", {"files": ["routes.sql"]}, "routes.files: pairing adds a file, and no pattern here"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_side_that_lacks_something_is_told_what(
    tmp_path: Path, section: str, change: dict[str, Any], problem: str
) -> None:
    side = side_of(tmp_path / "orders", **{section: change})

    with pytest.raises(SettingError) as caught:
        own_offer(side)

    assert problem in str(caught.value)
    assert caught.value.hint


# --- places -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("pattern", "place"),
    [
        ("d/*.pem", "d/new.pem"),
        ("d/*", "d/new"),
        ("d/a*.sql", "d/a-new.sql"),
        ("d/a-*.sql", "d/a-new.sql"),
        ("**/*.sql", "new.sql"),
        ("d/**/*.sql", "d/new.sql"),
        ("[[]odd]/*.sql", "[odd]/new.sql"),
    ],
)
def test_pattern_gives_a_file_its_place_and_matches_it(tmp_path: Path, pattern: str, place: str) -> None:
    (tmp_path / "d").mkdir()
    (tmp_path / "[odd]").mkdir()

    found = place_for(Settings(), ("endpoint", "trust"), [f"{tmp_path}/none.pem", f"{tmp_path}/{pattern}"], "new")

    assert tmp_path / place == found
    found.touch()
    assert [found] == [one for one in script_files([f"{tmp_path}/{pattern}"]) if one.name == found.name]


@pytest.mark.parametrize("pattern", ["a.pem", "d/?.pem", "d/[ab]*.pem", "*/a.pem", "none/*.pem", "d/*a*.pem"])
def test_pattern_without_room_gives_none(tmp_path: Path, pattern: str) -> None:
    (tmp_path / "d").mkdir()

    with pytest.raises(SettingError, match="no pattern here has room for one"):
        place_for(Settings(), ("endpoint", "trust"), [f"{tmp_path}/{pattern}"], "new")


def test_names_are_those_of_the_far_service_and_differ_where_it_does() -> None:
    first, second = names_for("//shop/Billing"), names_for("//shop_Billing")

    assert first == names_for("//shop/Billing")
    assert first.route.startswith("pair-shop-Billing-")
    assert len({first.route, second.route}) == len({first.file, second.file}) == 2
    assert len(names_for("ä" * 256).file) < 100


# --- what changes -------------------------------------------------------------------------------------------


def test_installed_files_are_those_that_the_settings_read(orders: Side, billing: Partner) -> None:
    change = installation(orders, billing)

    for path, content in (change.certificates | change.scripts).items():
        path.write_bytes(content.data)
    settings = orders.settings
    trust, peers = change.certificates
    assert (settings.endpoint.certificate.parent / "peers") == trust.parent  # type: ignore[union-attr]
    [certificate] = read_certificates(trust)
    assert billing.endpoint.name == certificate.subject.rfc4514_string()
    assert [billing.identity] == parse_peers(peers.read_bytes())
    rehearsal = rehearse(settings, now=datetime.now(UTC))  # the scripts of a restart, in their order
    assert [] == rehearsal.errors
    played = rehearsal.databases["orders"]
    route = played.routes[names_for("//shop/billing").route]
    assert ("//shop/billing", "tcp://billing.example:4022") == (route.remote_service_name, str(route.address))


def test_statements_at_once_are_those_of_the_scripts(orders: Side, billing: Partner) -> None:
    change = installation(orders, billing)

    said = parse_script(change.script)

    kept = [statement for content in change.scripts.values() for statement in parse_script(content.data.decode())]
    assert sorted(map(str, kept)) == sorted(str(one) for one in said if type(one).__name__ != "UseDatabase")
    kinds = [type(one).__name__ for one in said]
    assert [
        "UseDatabase",
        "GrantPermission",
        "GrantPermission",
        "UseDatabase",
        "CreateRoute",
        "CreateRemoteServiceBinding",
        "GrantPermission",
    ] == kinds


@pytest.mark.parametrize("uri", ["public", "billing", "*:*", "CN=stock"])
def test_uri_of_the_other_side_that_would_be_read_as_more_than_itself_is_granted_nothing(
    orders: Side, billing: Partner, uri: str
) -> None:
    key, nobody = ec.generate_private_key(ec.SECP256R1()), x509.Name([])
    builder = x509.CertificateBuilder(nobody, nobody, key.public_key(), 1, YEAR.begins, YEAR.ends)
    builder = builder.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
    builder = builder.add_extension(x509.SubjectAlternativeName([x509.UniformResourceIdentifier(uri)]), critical=True)
    pem = builder.sign(key, SHA256()).public_bytes(Encoding.PEM).decode()
    partner = partner_of(msgspec.structs.replace(billing.offer, certificate=pem))

    change = installation(orders, partner)

    said = [
        *parse_script(change.script),
        *parse_script(trial_begins(orders, partner, trial_of("a", is_inviting=True), lifetime=9)),
    ]
    granted = {name for one in said if isinstance(one, GrantPermission) for name in one.principals}
    assert {f"sha256:{partner.certificate.hex()}", "CN=billing"} == granted


def test_name_of_the_other_side_cannot_leave_its_comment(orders: Side, tmp_path: Path) -> None:
    offer = own_offer(side_of(tmp_path / "billing"))
    partner = partner_of(msgspec.structs.replace(offer, name="a\nDROP ROUTE x; --", service="a'b]"))

    change = installation(orders, partner)

    for content in change.scripts.values():
        assert "DropRoute" not in [type(one).__name__ for one in parse_script(content.data.decode())]


def test_other_side_with_the_name_of_somebody_else_is_refused(orders: Side, billing: Partner, tmp_path: Path) -> None:
    older = side_of(tmp_path / "other" / "billing")
    for directory, certificate in (
        ("tls/peers", older.settings.endpoint.certificate),
        ("dialog/peers", older.settings.databases["billing"].certificate),
    ):
        assert certificate is not None
        place = tmp_path / "orders" / directory / "older.pem"
        place.write_bytes(certificate.read_bytes())

        with pytest.raises(
            SettingError, match=r"CN=billing is the name of another certificate already, in .*older\.pem"
        ):
            installation(orders, billing)

        place.unlink()
    installation(orders, billing)


def test_other_side_with_our_own_name_is_refused(orders: Side, tmp_path: Path) -> None:
    namesake = partner_of(own_offer(side_of(tmp_path / "other" / "orders")))

    with pytest.raises(SettingError, match="CN=orders is the name of another certificate already"):
        installation(orders, namesake)


@pytest.mark.parametrize(
    ("shared", "own"),
    [
        (["CN=billing"], []),
        (["public", "billing"], []),
        (["CN=*"], []),
        ([], ["CN=billing"]),
        ([], ["CN=other", "b*"]),
    ],
    ids=str,
)
def test_other_side_whose_name_has_permissions_is_refused(
    orders: Side, billing: Partner, shared: list[str], own: list[str]
) -> None:
    with pytest.raises(
        SettingError, match=r"CN=billing has permissions here already, as .* nothing shows that it is the"
    ):
        refuse_known_names(orders, billing, shared, own)

    refuse_known_names(orders, billing, ["public", "CN=stock"], ["public", "sha256:" + "0" * 64])


def test_other_side_that_was_paired_before_or_is_signed_by_whom_we_trust_is_who_it_says(
    orders: Side, billing: Partner, tmp_path: Path
) -> None:
    ca = make_authority("shop CA", YEAR)
    signed = issue_endpoint(Holder("billing"), YEAR, ca).certificate_pem.decode()
    (tmp_path / "orders" / "tls" / "peers" / "ca.pem").write_bytes(certificates_pem(ca.roots))

    refuse_known_names(
        orders, partner_of(msgspec.structs.replace(billing.offer, certificate=signed)), ["CN=billing"], []
    )

    for path, content in installation(orders, billing).certificates.items():
        path.write_bytes(content.data)
    refuse_known_names(orders, billing, ["CN=billing"], ["CN=billing"])
    another_service = partner_of(msgspec.structs.replace(billing.offer, service="//shop/Refunds"))
    refuse_known_names(orders, another_service, ["CN=billing"], ["CN=billing"])


def test_other_side_that_speaks_for_hosts_of_others_is_refused(orders: Side, billing: Partner, tmp_path: Path) -> None:
    hosts = Holder("billing", ("billing.example", "*.stock.example", "192.0.2.7"))
    pem = issue_endpoint(hosts, YEAR, None).certificate_pem.decode()
    partner = partner_of(msgspec.structs.replace(billing.offer, certificate=pem))
    harmless = ["LOCAL", "TRANSPORT", "tcp://billing.example:4023", "tcp://stock.example:4022", "tcp://192.0.2.8:4022"]

    refuse_foreign_hosts(orders, partner, harmless)
    for address in ("tcp://a.stock.example:4022", "tcp://192.0.2.7:4022"):
        with pytest.raises(SettingError, match="the certificate of CN=billing also speaks for "):
            refuse_foreign_hosts(orders, partner, [*harmless, address])

    ca = make_authority("shop CA", YEAR)
    (tmp_path / "orders" / "tls" / "peers" / "ca.pem").write_bytes(certificates_pem(ca.roots))
    signed = issue_endpoint(hosts, YEAR, ca).certificate_pem.decode()
    partner = partner_of(msgspec.structs.replace(billing.offer, certificate=signed))
    refuse_foreign_hosts(orders, partner, ["tcp://192.0.2.7:4022"])


def test_pairing_again_replaces_what_it_made(orders: Side, billing: Partner, tmp_path: Path) -> None:
    first = installation(orders, billing)
    for path, content in first.certificates.items():
        path.write_bytes(content.data)
    renewed = partner_of(own_offer(side_of(tmp_path / "renewed" / "billing")))

    second = installation(orders, partner_of(renewed.offer))

    assert "//shop/billing" == renewed.offer.service
    assert list(first.certificates) == list(second.certificates)
    assert list(first.certificates.values()) != list(second.certificates.values())


@pytest.mark.parametrize(
    ("has_route", "has_binding", "kinds"),
    [
        (False, False, ["UseDatabase"]),
        (True, False, ["UseDatabase", "DropRoute"]),
        (True, True, ["UseDatabase", "DropRemoteServiceBinding", "DropRoute"]),
    ],
)
def test_what_is_there_makes_room(orders: Side, kinds: list[str], *, has_route: bool, has_binding: bool) -> None:
    text = dropping(orders, names_for("//shop/billing"), has_route=has_route, has_binding=has_binding)

    assert kinds == [type(one).__name__ for one in parse_script(text)]


# --- the trial ----------------------------------------------------------------------------------------------


def test_sides_of_a_trial_name_the_same_services() -> None:
    one, other = trial_of("ab12", is_inviting=True), trial_of("ab12", is_inviting=False)

    assert (one.own, one.far, one.queue) == (other.far, other.own, other.queue)
    assert one.own != one.far
    assert one != trial_of("ab13", is_inviting=True)


def test_trial_takes_away_all_that_it_made(orders: Side, billing: Partner) -> None:
    trial = trial_of("ab12", is_inviting=True)

    begins = parse_script(trial_begins(orders, billing, trial, lifetime=60))
    ends = parse_script(trial_ends(orders, billing, trial))

    made = sorted(type(one).__name__.removeprefix("Create").removeprefix("Grant") for one in begins)
    gone = sorted(type(one).__name__.removeprefix("Drop").removeprefix("Revoke") for one in ends)
    assert made == gone
    assert 2 == made.count("Permission")


def test_service_that_is_not_there_is_told_with_those_that_are(orders: Side) -> None:
    assert "it has: a, b; name one of them with --service" in str(service_missing(orders, ["b", "a"]))
    assert "it has: none" in str(service_missing(orders, []))
