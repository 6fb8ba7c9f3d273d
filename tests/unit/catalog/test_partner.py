"""Partner files: what they say, what is refused, and what an import changes."""

import sqlite3
from collections.abc import Sequence
from contextlib import AbstractContextManager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509 import BasicConstraints, CertificateBuilder, random_serial_number
from msgspec import structs

from broker.catalog.catalog import MSDB, Catalog, CatalogRows, Database
from broker.catalog.partner import (
    SIZE_MAX,
    BindingRow,
    Partner,
    Plan,
    Present,
    RouteRow,
    export,
    place_for,
    plan,
    read_partner,
)
from broker.catalog.unscripted import lost_imports
from broker.config.settings import Settings
from broker.errors import PartnerFileError, SettingError
from broker.security.certificate_files import Pair, read_certificates, read_pair, renewed, store_files
from broker.security.grants import Permission, PermissionRule, PermissionState, RemoteServiceBinding
from broker.security.issue import CertificateSubject, Validity, issue_endpoint, make_authority
from broker.security.principal import parse_principal
from tests.support.partners import dialog_pair, instance

NOW = datetime.now(UTC)
YEAR = Validity(NOW - timedelta(minutes=5), NOW + timedelta(days=365))
EMPTY = Present(services=[("orders", "//shop/orders")], routes=[], bindings=[], rules=[])
PREFIX = "partner:billing:"
ROUTE = "SERVICE_NAME = '//shop/billing', ADDRESS = 'tcp://billing.example:4022'"


def exported(settings: Settings, **changes: Any) -> str:
    """Of an instance that offers a service and sends to that of the other one."""
    name = settings.instance.name
    other = "billing" if name == "orders" else "orders"
    said = {
        "services": [f"//shop/{name}"],
        "sends_to": [f"//shop/{other}"],
        "addresses": [f"tcp://{name}.example:4022"],
    } | changes
    return export(settings, name, said["services"], said["sends_to"], said["addresses"])


@pytest.fixture
def orders(tmp_path: Path) -> Settings:
    return instance(tmp_path / "orders")


@pytest.fixture
def billing(tmp_path: Path) -> Settings:
    return instance(tmp_path / "billing")


def partner(settings: Settings, **changes: Any) -> Partner:
    return read_partner(exported(settings, **changes).encode())


def planned(settings: Settings, of: Partner, present: Present = EMPTY, *, now: datetime = NOW) -> Plan:
    return plan(settings, settings.instance.name, of, present, now=now)


def refused(settings: Settings, of: Partner, present: Present = EMPTY) -> str:
    with pytest.raises(PartnerFileError) as caught:
        planned(settings, of, present)
    assert caught.value.hint
    return caught.value.problem


def rule(
    permission: Permission, securable: str, principal: str, state: PermissionState = PermissionState.GRANT
) -> PermissionRule:
    return PermissionRule(permission, securable, parse_principal(principal), state)


def endpoint_pair(settings: Settings) -> Pair:
    assert settings.endpoint.certificate is not None
    assert settings.endpoint.private_key is not None
    return Pair(settings.endpoint.certificate, settings.endpoint.private_key)


# --- the file -----------------------------------------------------------------------------------------------


def test_file_says_what_the_other_side_has_to_know_and_no_secret(orders: Settings) -> None:
    text = exported(orders)
    found = read_partner(text.encode())

    assert "PRIVATE" not in text
    assert ("orders", ("tcp://orders.example:4022",)) == (found.file.instance, found.file.addresses)
    assert (("//shop/orders",), ("//shop/billing",)) == (found.file.services, found.file.sends_to)
    assert ("CN=orders", "CN=orders") == (found.who.name, found.identities[0].who.name)
    assert f"# Compare by phone: {found.fingerprint}\n" in text
    # layout, line ends and comments may change on the way
    other = "# forwarded\n" + text.replace("services = ", "services  =  ").replace("\n", "\r\n")
    assert found.file == read_partner(other.encode()).file


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("//shop/billing", "//shop/payroll"),
        ("//shop/orders", "//shop/payroll"),
        ("tcp://orders.example", "tcp://mallory.example"),
        ('instance = "orders"', 'instance = "other"'),
        ('signature = "', 'signature = "AAAA'),
        ('signature = "', 'signature = "?'),
    ],
)
def test_file_that_was_changed_is_refused(orders: Settings, old: str, new: str) -> None:
    assert r"the signature of [endpoint] does not fit" in unread(orders, old, new)


def unread(settings: Settings, old: str, new: str) -> str:
    """Why its file is refused with something changed in it."""
    text = exported(settings)
    assert old in text
    with pytest.raises(PartnerFileError) as caught:
        read_partner(text.replace(old, new).encode())
    return str(caught.value)


def test_certificates_of_somebody_else_are_refused(orders: Settings, billing: Settings) -> None:
    """The database's key signs as well, so nobody can offer a database that is not theirs."""
    own, other = exported(orders), exported(billing)
    for section in ("[endpoint]", "[database]"):
        mixed = own.replace(own.split(section)[1].split("\n[")[0], other.split(section)[1].split("\n[")[0])

        with pytest.raises(PartnerFileError, match="does not fit"):
            read_partner(mixed.encode())


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        ("version = 1", "version = 2", "the file is of version 2, and this release reads 1"),
        ("version = 1", "", "not a partner file: the file has no version"),
        ("version = 1", "version = ", "not a partner file: Invalid value"),
        ("version = 1", "version = 1\ncolour = 1", "unknown field `colour`"),
        ("[endpoint]", "[endpoint]\ncolour = 1", "unknown field `colour` - at `$.endpoint`"),
        ('services = ["//shop/orders"]', "", "missing required field `services`"),
        ('"//shop/billing"', '"//shop/*"', "at `$.sends_to[0]`"),
        ('"//shop/billing"', '"a\\u001bb"', "at `$.sends_to[0]`"),
        ('instance = "orders"', 'instance = "../orders"', "at `$.instance`"),
        ("tcp://orders.example:4022", "LOCAL", "no other machine could dial LOCAL"),
        ("tcp://orders.example:4022", "orders:1", "the file cannot be used: "),
        ("-----BEGIN", "-----BEGINN", "the file cannot be used: "),
    ],
)
def test_what_is_not_a_partner_file_is_refused_with_the_place(
    orders: Settings, old: str, new: str, problem: str
) -> None:
    assert problem in unread(orders, old, new)


def test_size_is_bounded(orders: Settings) -> None:
    with pytest.raises(PartnerFileError, match="at most 64 KiB"):
        read_partner(exported(orders).encode() + b"#" * SIZE_MAX)
    with pytest.raises(PartnerFileError, match="not a partner file"):
        read_partner(b"a = " + b"[" * 60_000)


def test_key_of_another_kind_signs_as_well(orders: Settings) -> None:
    pair = endpoint_pair(orders)
    key, old = rsa.generate_private_key(65537, 2048), read_certificates(pair.certificate)[0]
    builder = CertificateBuilder().subject_name(old.subject).issuer_name(old.subject).public_key(key.public_key())
    builder = builder.not_valid_before(YEAR.begins).not_valid_after(YEAR.ends).serial_number(random_serial_number())
    certificate = builder.add_extension(BasicConstraints(ca=True, path_length=None), critical=True).sign(key, SHA256())
    pair.certificate.write_bytes(certificate.public_bytes(Encoding.PEM))
    pair.private_key.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))

    found = partner(orders)

    assert "CN=orders" == found.who.name


@pytest.mark.parametrize(
    ("section", "change", "problem"),
    [
        ("endpoint", {"authentication": "none"}, "partners prove who they are by certificates"),
        ("endpoint", {"encryption": "disabled", "authentication": "none"}, "partners prove who they are"),
        ("endpoint", {"private_key": "tls/none.key"}, "No such file"),
        ("database", {"private_key": "tls/orders.key"}, "the private key of the first certificate is not among"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_instance_that_lacks_something_is_told_what(
    tmp_path: Path, section: str, change: dict[str, Any], problem: str
) -> None:
    settings = instance(tmp_path / "orders", **{section: change})

    with pytest.raises(SettingError) as caught:
        exported(settings)

    assert problem in str(caught.value)
    assert caught.value.hint


# --- what changes -------------------------------------------------------------------------------------------


def told(settings: Settings, change: Plan) -> tuple[list[str], list[str]]:
    """The files, and the lines of the script without line breaks."""
    files = [str(path.relative_to(settings.instance.state_dir)) for path in change.files]
    return files, [" ".join(line.split()) for line in change.script.splitlines()]


TO_BILLING = f"[{PREFIX}//shop/billing]"
BIND = f"CREATE REMOTE SERVICE BINDING {TO_BILLING} TO SERVICE '//shop/billing' WITH USER = [CN=billing];"


@pytest.mark.parametrize("by", ["billing", "gateway"])
def test_import_writes_certificates_and_says_the_least_that_is_needed(
    orders: Settings, billing: Settings, gateway: Settings, by: str
) -> None:
    """Through a gateway the gateway is trusted, and the database of the partner is sealed to."""
    via = gateway_file(gateway) if by == "gateway" else None

    change = plan(orders, "orders", partner(billing), EMPTY, now=NOW, via=via)

    files, script = told(orders, change)
    assert [f"tls/peers/partner-{by}.pem", "dialog/peers/partner-billing.dialog.pem"] == files
    assert [
        "USE [msdb];",
        f"GRANT CONNECT ON ENDPOINT::[*] TO [CN={by}];",
        f"GRANT SEND ON SERVICE::[//shop/orders] TO [CN={by}];",
        "USE [orders];",
        f"CREATE ROUTE {TO_BILLING} WITH {ROUTE.replace('billing.example', f'{by}.example')};",
        BIND,
        "GRANT SEND ON SERVICE::[//shop/orders] TO [CN=billing];",
    ] == script


@pytest.fixture
def gateway(tmp_path: Path) -> Settings:
    """It has no database."""
    return structs.replace(instance(tmp_path / "gateway"), databases={})


def gateway_file(gateway: Settings) -> Partner:
    return read_partner(export(gateway, None, [], [], ["tcp://gateway.example:4022"]).encode())


def test_a_gateway_lets_a_partner_send_to_the_services_that_it_names_and_routes_to_its_own(
    billing: Settings, gateway: Settings
) -> None:
    change = plan(gateway, None, partner(billing), Present([], [], [], []), now=NOW)

    files, script = told(gateway, change)
    assert ["partner-billing.pem"] == [Path(one).name for one in files]
    assert [
        "USE [msdb];",
        "GRANT CONNECT ON ENDPOINT::[*] TO [CN=billing];",
        "GRANT SEND ON SERVICE::[//shop/orders] TO [CN=billing];",
        f"CREATE ROUTE {TO_BILLING} WITH {ROUTE};",
    ] == script
    taken = RouteRow("msdb", "r", "//shop/billing", "tcp://other:1", None)
    with pytest.raises(PartnerFileError, match="leads to //shop/billing already"):
        plan(gateway, None, partner(billing), Present([], [taken], [], []), now=NOW)


def test_a_gateway_is_no_partner_and_only_a_gateway_leads_to_one(
    orders: Settings, billing: Settings, gateway: Settings
) -> None:
    assert "gateway is a gateway, which has no services" == refused(orders, gateway_file(gateway))
    with pytest.raises(PartnerFileError, match="billing has services, so nothing is reached through a gateway"):
        plan(orders, "orders", partner(billing), EMPTY, now=NOW, via=partner(billing))
    with pytest.raises(PartnerFileError, match="this instance has no database"):
        plan(gateway, None, partner(billing), EMPTY, now=NOW, via=gateway_file(gateway))
    with pytest.raises(PartnerFileError, match="names services of one side only"):
        partner(billing, sends_to=[])


def imported(settings: Settings, of: Partner) -> Present:
    """Import, and what the instance has then."""
    store_files(planned(settings, of).files, is_replacing=True)
    name, file = f"{PREFIX}//shop/billing", of.file
    return Present(
        services=EMPTY.services,
        routes=[RouteRow("orders", name, file.services[0], file.addresses[0], None)],
        bindings=[BindingRow(name, file.services[0], "CN=billing")],
        rules=[
            (MSDB, rule(Permission.CONNECT, "*", "CN=billing")),
            (MSDB, rule(Permission.SEND, "//shop/orders", "CN=billing")),
            ("orders", rule(Permission.SEND, "//shop/orders", "CN=billing")),
        ],
    )


def test_second_import_changes_nothing(orders: Settings, billing: Settings) -> None:
    present = imported(orders, partner(billing))

    assert Plan({}, ()) == planned(orders, partner(billing), present)


def test_routes_of_an_earlier_import_that_lead_elsewhere_are_a_warning(
    orders: Settings, billing: Settings, gateway: Settings
) -> None:
    partner_file, direct, through = partner(billing), "tcp://billing.example:4022", "tcp://gateway.example:4022"

    def warned(before: str, via: Partner | None) -> str:
        known = [RouteRow("orders", f"{PREFIX}//shop/billing", "//shop/billing", before, None)]
        return plan(orders, "orders", partner_file, EMPTY._replace(routes=known), now=NOW, via=via).warning

    to, then = "messages to billing go to", "now; with this import they go to"
    assert ("", "") == (warned(direct, None), warned(through, gateway_file(gateway)))
    by = f"{direct}, without a gateway: to keep one, import with --via"
    assert f"{to} {through} {then} {by}" == warned(through, None)
    by = f"{through}, through the gateway gateway"
    assert f"{to} {direct} {then} {by}" == warned(direct, gateway_file(gateway))


def test_newer_file_changes_the_difference(orders: Settings, billing: Settings) -> None:
    present, pair = imported(orders, partner(billing)), endpoint_pair(billing)
    store_files(pair.files(renewed(read_pair(pair), YEAR, None)), is_replacing=True)

    change = planned(orders, partner(billing), present)

    assert ["partner-billing.pem"] == [path.name for path in change.files]
    assert "" == change.script

    moved = partner(billing, addresses=["tcp://billing.example:4023", "tcp://b.example"], services=["//shop/new"])
    lines = planned(orders, moved, present).script.splitlines()

    assert [
        "USE [orders]",
        f"DROP ROUTE [{PREFIX}//shop/billing]",
        f"CREATE ROUTE [{PREFIX}//shop/new]",
        f"CREATE ROUTE [{PREFIX}//shop/new:1]",
        f"DROP REMOTE SERVICE BINDING [{PREFIX}//shop/billing]",
        f"CREATE REMOTE SERVICE BINDING [{PREFIX}//shop/new]",
    ] == [line[: line.index("]") + 1] for line in lines]
    other_port = partner(billing, addresses=["tcp://billing.example:4023"])
    assert "ALTER ROUTE" in planned(orders, other_port, present).script


def test_prepared_certificate_is_in_the_file_so_that_a_renewal_cuts_nobody_off(
    orders: Settings, billing: Settings
) -> None:
    present, pair = imported(orders, partner(billing)), endpoint_pair(billing)
    old, new = read_pair(pair), renewed(read_pair(pair), YEAR, None)
    store_files(pair.prepared.files(new), is_replacing=True)

    change = planned(orders, partner(billing), present)
    store_files(change.files, is_replacing=True)

    [path] = change.files
    assert [*old.certificates, *new.certificates] == read_certificates(path)
    store_files(pair.files(new), is_replacing=True)
    pair.prepared.certificate.unlink()
    [path] = planned(orders, partner(billing), present).files
    assert "partner-billing.pem" == path.name


def test_older_file_is_refused(orders: Settings, billing: Settings) -> None:
    older, pair = partner(billing), endpoint_pair(billing)
    later = Validity(NOW, NOW + timedelta(days=365))
    store_files(pair.files(renewed(read_pair(pair), later, None)), is_replacing=True)
    present = imported(orders, partner(billing))

    assert "has a newer certificate of CN=billing" in refused(orders, older, present)


def test_without_certificates_of_databases_nothing_is_bound(orders: Settings, tmp_path: Path) -> None:
    clear = instance(tmp_path / "billing", database={"certificate": "", "private_key": "", "peers": []})
    assert () == partner(clear).database

    change = planned(orders, partner(clear))

    assert ["partner-billing.pem"] == [path.name for path in change.files]
    assert (False, 1) == ("BINDING" in change.script, change.script.count("GRANT SEND"))


def test_certificate_that_a_trusted_authority_has_signed_needs_no_file(tmp_path: Path) -> None:
    authority = make_authority("CA", YEAR)
    orders = instance(tmp_path / "orders", endpoint={"trust": ["ca.pem"]})
    (tmp_path / "orders" / "ca.pem").write_bytes(authority.roots[0].public_bytes(Encoding.PEM))
    billing = instance(tmp_path / "billing")
    pair = endpoint_pair(billing)
    store_files(pair.files(issue_endpoint(CertificateSubject("billing"), YEAR, authority)), is_replacing=True)

    change = planned(orders, partner(billing))

    assert ["partner-billing.dialog.pem"] == [path.name for path in change.files]


def test_a_file_goes_where_a_pattern_has_room_for_it(tmp_path: Path) -> None:
    (tmp_path / "[odd]").mkdir()
    patterns = [
        f"{tmp_path}/{one}" for one in ("a.pem", "d/?.pem", "d/[ab]*.pem", "*/a.pem", "none/*.pem", "d/*a*.pem")
    ]
    (tmp_path / "d").mkdir()

    with pytest.raises(SettingError, match="no pattern here has room for one"):
        place_for(Settings(), ("endpoint", "peers"), patterns, "new")
    found = place_for(Settings(), ("endpoint", "peers"), [*patterns, f"{tmp_path}/[[]odd]/*.pem"], "new")

    assert tmp_path / "[odd]" / "new.pem" == found


# --- who is refused -----------------------------------------------------------------------------------------


def test_own_file_and_a_certificate_that_is_over_are_refused(orders: Settings, billing: Settings) -> None:
    assert "the file is this instance's own" == refused(orders, partner(orders))
    with pytest.raises(PartnerFileError, match="is not valid today"):
        planned(orders, partner(billing), now=NOW + timedelta(days=800))


@pytest.mark.parametrize("directory", ["tls/peers", "dialog/peers"])
def test_name_of_somebody_who_is_trusted_already_or_of_this_instance_is_refused(
    orders: Settings, billing: Settings, tmp_path: Path, directory: str
) -> None:
    other = instance(tmp_path / "elsewhere" / "billing")
    pair = endpoint_pair(other) if directory == "tls/peers" else dialog_pair("billing", tmp_path / "elsewhere/billing")
    known = orders.instance.state_dir / directory / "known.pem"
    known.write_bytes(pair.certificate.read_bytes())

    assert f"CN=billing is the name of another certificate, in {known}" == refused(orders, partner(billing))
    impostor = partner(instance(tmp_path / "impostor" / "orders"), services=["//shop/x"], sends_to=["//shop/orders"])
    assert "CN=orders is the name of another certificate" in refused(orders, impostor)


def unused() -> AbstractContextManager[sqlite3.Connection]:
    raise NotImplementedError


def test_a_database_that_was_made_anew_lacks_what_the_import_had_made(orders: Settings, billing: Settings) -> None:
    def lost(rules: Sequence[PermissionRule], *bindings: str) -> list[str]:
        bound = {name: RemoteServiceBinding(name, "//shop/billing", "CN=billing") for name in bindings}
        rows = {MSDB: CatalogRows(permissions=tuple(rules)), "orders": CatalogRows(bindings=bound)}
        made = {name: Database(name, bytes(16), None, unused, some) for name, some in rows.items()}
        return lost_imports(orders, Catalog(made, lambda: None))

    assert [] == lost([])
    imported(orders, partner(billing))
    assert [MSDB, "orders"] == lost([])
    assert ["orders"] == lost([CONNECTS])
    assert [] == lost([], PREFIX)  # its permissions may have been revoked


def test_instance_name_of_another_partner_is_refused(orders: Settings, billing: Settings) -> None:
    imported(orders, partner(billing))
    pair = endpoint_pair(billing)
    store_files(pair.files(issue_endpoint(CertificateSubject("mallory"), YEAR, None)), is_replacing=True)

    assert "has the certificate of CN=billing" in refused(orders, partner(billing))


CONNECTS, SENDS = rule(Permission.CONNECT, "*", "CN=billing"), rule(Permission.SEND, "//shop/orders", "billing")
REVOKES = "REVOKE CONNECT ON ENDPOINT::[*] FROM [CN=billing];"
REVOKES_SEND = "USE [orders]; REVOKE SEND ON SERVICE::[//shop/orders] FROM [billing];"


@pytest.mark.parametrize(
    ("has", "script"),
    [
        ({"rules": [(MSDB, CONNECTS), ("orders", SENDS)]}, f"USE [msdb]; {REVOKES} {REVOKES_SEND}"),
        (
            {"rules": [(MSDB, rule(Permission.SEND, "//shop/other", "CN=b*"))]},
            "USE [msdb]; REVOKE SEND ON SERVICE::[//shop/other] FROM [CN=b*];",
        ),
        ({"rules": [("orders", SENDS)]}, REVOKES_SEND),
        (
            {"bindings": [BindingRow("b", "//shop/other", "CN=billing")]},
            "USE [orders]; DROP REMOTE SERVICE BINDING [b];",
        ),
    ],
    ids=["connect and send", "pattern", "send", "binding"],
)
def test_name_that_has_permissions_already_is_refused_with_the_statements_that_take_them_back(
    orders: Settings, billing: Settings, has: dict[str, Any], script: str
) -> None:
    with pytest.raises(PartnerFileError) as caught:
        planned(orders, partner(billing), EMPTY._replace(**has))

    assert "CN=billing has permissions here already" in caught.value.problem
    assert f": {script} Then import the file again." in caught.value.hint


@pytest.mark.parametrize(
    ("where", "securable", "principal"),
    [(MSDB, "*", "CN=b*"), (MSDB, "//shop/*", "public"), ("orders", "//shop/orders", "billing")],
)
def test_no_deny_is_lifted(orders: Settings, billing: Settings, where: str, securable: str, principal: str) -> None:
    permission = Permission.CONNECT if securable == "*" else Permission.SEND
    denied = rule(permission, securable, principal, PermissionState.DENY)

    told = refused(orders, partner(billing), EMPTY._replace(rules=[(where, denied)]))

    assert f"in {where} is about CN=billing" in told


def test_certificate_for_the_hosts_of_others_is_refused(orders: Settings, billing: Settings) -> None:
    route = RouteRow(MSDB, "r", "//shop/other", "tcp://127.0.0.1:4022", None)

    told = refused(orders, partner(billing), EMPTY._replace(routes=[route]))

    assert "the certificate of CN=billing also covers 127.0.0.1, where a route leads" == told
    own = partner(billing, addresses=["tcp://127.0.0.1:4023"])
    assert planned(orders, own, EMPTY._replace(routes=[route])).statements


LEADS = "the route [r] leads to //shop/billing already"


@pytest.mark.parametrize(
    ("taken", "problem"),
    [
        ({"services": [("orders", "//shop/other")]}, "has no service //shop/orders, to which it wants to"),
        (
            {"services": [*EMPTY.services, ("more", "//shop/billing")]},
            "//shop/billing is a service of the database more here",
        ),
        ({"routes": [RouteRow("orders", "r", "//shop/billing", "tcp://b.example:4022", None)]}, LEADS),
        ({"routes": [RouteRow(MSDB, "r", "//shop/billing", "tcp://b.example:4022", None)]}, LEADS),
        (
            {"bindings": [BindingRow("b", "//shop/billing", "CN=other")]},
            "the binding [b] is for //shop/billing already",
        ),
    ],
)
def test_what_others_have_is_not_taken_over(
    orders: Settings, billing: Settings, taken: dict[str, Any], problem: str
) -> None:
    assert problem in refused(orders, partner(billing), EMPTY._replace(**taken))


@pytest.mark.parametrize(
    "has",
    [
        {"rules": [(MSDB, rule(Permission.SEND, "//shop/other", "public"))]},
        {"routes": [RouteRow(MSDB, "r", "//shop/billing", "tcp://billing.example:4022", None)]},
    ],
    ids=["a rule for all", "a route of msdb to the partner itself"],
)
def test_what_hinders_no_import(orders: Settings, billing: Settings, has: dict[str, Any]) -> None:
    assert planned(orders, partner(billing), EMPTY._replace(**has)).statements
