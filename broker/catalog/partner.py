"""
Partner files: how two instances of different owners get to know each other.

Each side exports one signed text file and imports that of the other. The file says who the instance is, where it is
reached, which services it offers and to which services of the other side it wants to send. It holds no secret. Each
certificate in it signs the whole file, so that a file that was changed on its way is refused; that it is the right
partner's is shown by the fingerprint, which two people compare.

Reading, checking and planning are done here. Nothing is changed: the command writes the files and has the daemon carry
out the statements.
"""

from __future__ import annotations

import json
import tomllib
from base64 import b64decode, b64encode
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import msgspec
from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, padding, rsa
from cryptography.hazmat.primitives.asymmetric.types import PrivateKeyTypes
from cryptography.hazmat.primitives.hashes import SHA256
from msgspec import Meta

from broker.advice import render_name
from broker.catalog.catalog import MSDB
from broker.catalog.scripts import is_pattern, unescaped
from broker.catalog.unscripted import PARTNER_FILE, PARTNER_NAME
from broker.config.settings import Settings
from broker.config.toml import KeyPath
from broker.ddl.render import render_statement
from broker.ddl.statements import (
    AlterRemoteServiceBinding,
    AlterRoute,
    CreateRemoteServiceBinding,
    CreateRoute,
    DropRemoteServiceBinding,
    DropRoute,
    GrantPermission,
    RevokePermission,
    Statement,
    UseDatabase,
)
from broker.errors import PartnerFileError
from broker.net.certificates import trusted_files
from broker.net.tls import identify
from broker.routing.address import Keyword, NetworkAddress, parse_address
from broker.routing.route import RouteProperties
from broker.security.certificate_files import Content, Pair, read_certificates
from broker.security.grants import Permission, PermissionRule, PermissionState, render_rule
from broker.security.identity import (
    Signing,
    Use,
    is_signed_by,
    load_keys,
    load_pem,
    may_issue,
    parse_own,
    parse_peers,
    public_key,
    reading,
    use_of,
    who_of,
)
from broker.security.issue import certificates_pem
from broker.security.principal import ANY, Principal, PrincipalKind, Who, parse_principal

VERSION = 1
SIZE_MAX = 64 * 1024  # bytes; a file with both certificates has some 3 KiB
_NAME_MAX = 120  # characters; a number of an address may follow, and a route has 128
_LABEL = b"broker partner file\0"
_SCHEMES: dict[tuple[type, type], tuple[Any, ...]] = {
    (ec.EllipticCurvePrivateKey, ec.EllipticCurvePublicKey): (ec.ECDSA(SHA256()),),
    (rsa.RSAPrivateKey, rsa.RSAPublicKey): (padding.PSS(padding.MGF1(SHA256()), padding.PSS.DIGEST_LENGTH), SHA256()),
    (ed25519.Ed25519PrivateKey, ed25519.Ed25519PublicKey): (),
}
_MAKE = "make one with broker certs; see docs/how-to/certificates.md"

# In statements `*` is a pattern, so a name with it would be granted more than it says.
_Name = Annotated[str, Meta(pattern=r"^[^*\x00-\x1f\x7f]{1,256}\Z")]
_Instance = Annotated[str, Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}\Z")]
_Names = Annotated[tuple[_Name, ...], Meta(max_length=64)]
_Granted = tuple[Principal, str, Statement]  # to whom, in which database, and what takes it back
_Held = tuple[Who, Principal, str, Statement]  # the same, with the partner
_Addresses = Annotated[tuple[_Name, ...], Meta(min_length=1, max_length=4)]


class SignedCertificates(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Certificates in PEM form, that of the signer first, and its signature in base64."""

    certificate: str
    signature: str


class PartnerFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """
    A partner file as it is written.

    Attributes:
        instance: Name of the instance; it also names the files and routes that the import makes.
        addresses: Addresses of its endpoint, as routes write them.
        services: The services to which others may send; empty for a gateway.
        sends_to: Services of the other side to which it wants to send, answers included; empty for a gateway.
        database: None where dialogs are not sealed.
    """

    version: int
    instance: _Instance
    addresses: _Addresses
    services: _Names
    sends_to: _Names
    endpoint: SignedCertificates
    database: SignedCertificates | None = None


@dataclass(frozen=True, slots=True)
class Partner:
    """
    A partner file whose signatures are good.

    Attributes:
        endpoint: Certificates of the endpoint: the one in use, and the next one where a renewal is prepared.
        database: Certificates of the database, those that are sealed to included; empty where dialogs are not sealed.
        identities: What `database` holds, as dialogs use it.
    """

    file: PartnerFile
    endpoint: tuple[x509.Certificate, ...]
    database: tuple[x509.Certificate, ...]
    identities: tuple[Signing, ...]

    @property
    def is_gateway(self) -> bool:
        """Whether it has no services, so that it only forwards."""
        return not self.file.services

    @property
    def who(self) -> Who:
        """The endpoint."""
        return who_of(self.endpoint[0])

    @property
    def fingerprint(self) -> str:
        """The fingerprint that two people compare: of the endpoint's certificate, as `broker certs show` prints it."""
        return f"sha256:{self.who.fingerprint}"


class RouteRow(NamedTuple):
    """A row of `sys.routes`, with its database."""

    database: str
    name: str
    service: str | None
    address: str
    mirror_address: str | None


class BindingRow(NamedTuple):
    """A row of `sys.remote_service_bindings`."""

    name: str
    service: str
    principal: str


class Present(NamedTuple):
    """
    Definitions of the importing instance that a plan depends on.

    Attributes:
        services: Database and service, of all databases.
        routes: Of all databases, msdb included.
        bindings: Of the database that the import is for.
        rules: Of msdb and of the database that the import is for, each with its database.
    """

    services: Sequence[tuple[str, str]]
    routes: Sequence[RouteRow]
    bindings: Sequence[BindingRow]
    rules: Sequence[tuple[str, PermissionRule]]


class Plan(NamedTuple):
    """The changes of an import. `files` are new, or hold something else now; `warning` is about routes that move."""

    files: dict[Path, Content]
    statements: tuple[Statement, ...]
    warning: str = ""

    @property
    def script(self) -> str:
        """The statements, one a line."""
        return "".join(f"{render_statement(one)}\n" for one in self.statements)


# --- make ---------------------------------------------------------------------------------------------------


def export(
    settings: Settings, database: str | None, services: Iterable[str], sends_to: Iterable[str], addresses: Iterable[str]
) -> str:
    """
    The partner file of this instance; that of a gateway without a database and services.

    Raises:
        SettingError: the instance lacks a certificate, or its key cannot be used.
        CertificateUnusableError: a file cannot be read.
        PartnerFileError: a name or an address cannot be in such a file.
    """
    _refuse_unproved(settings)
    endpoint, own = settings.endpoint, None if database is None else settings.databases[database]
    assert endpoint.certificate is not None
    assert endpoint.private_key is not None
    shown = tuple(chain[0] for chain in _own_chains(endpoint.certificate, endpoint.private_key))
    try:
        key, *_ = load_keys(endpoint.private_key.read_bytes())
    except (ValueError, OSError) as error:
        raise settings.error(("endpoint", "private_key"), str(error), _MAKE) from error
    holders: list[tuple[str, tuple[x509.Certificate, ...], PrivateKeyTypes]] = [("endpoint", shown, key)]
    if database is not None and own is not None and own.certificate is not None and own.private_key is not None:
        try:
            identity = parse_own(own.certificate.read_bytes(), own.private_key.read_bytes())
        except (ValueError, OSError) as error:
            raise settings.error(("databases", database, "certificate"), str(error), _MAKE) from error
        dialog = b"".join(map(certificates_pem, _own_chains(own.certificate, own.private_key)))
        holders.append(("database", _dialog_certificates(dialog), identity.signing_key))
    empty = SignedCertificates("", "")
    file = PartnerFile(
        VERSION, settings.instance.name, tuple(addresses), tuple(services), tuple(sends_to), endpoint=empty
    )
    content = _content(file, *(certificates for _, certificates, _ in holders))
    text = (
        f"# Partner file of the broker instance {json.dumps(file.instance)}. It holds no secret.\n"
        f"# Import it with: broker partner import FILE\n"
        f"# Compare by phone: sha256:{who_of(shown[0]).fingerprint}\n"
        f"version = {VERSION}\ninstance = {_quoted(file.instance)}\n"
        f"addresses = {_quoted(file.addresses)}\n"
        f"services = {_quoted(file.services)}  # others may send to them\n"
        f"sends_to = {_quoted(file.sends_to)}  # it wants to send to these services of yours\n"
    )
    for name, certificates, private_key in holders:
        pem = certificates_pem(certificates).decode()
        text += f'\n[{name}]\nsignature = "{_sign(private_key, content)}"\ncertificate = """\n{pem}"""\n'
    read_partner(text.encode())  # whatever the other side would refuse is refused here
    return text


def _own_chains(certificate: Path, private_key: Path) -> list[tuple[x509.Certificate, ...]]:
    """The certificates in use, and those that `broker certs renew --prepare` has made."""
    prepared = Pair(certificate, private_key).prepared.certificate
    return [tuple(read_certificates(path)) for path in (certificate, prepared) if path == certificate or path.exists()]


def _refuse_unproved(settings: Settings) -> None:
    endpoint = settings.endpoint
    if endpoint.encryption == "disabled" or endpoint.authentication != "certificate" or endpoint.certificate is None:
        hint = f'set encryption = "required" and authentication = "certificate"; {_MAKE}'
        raise settings.error(("endpoint", "authentication"), "partners prove who they are by certificates", hint)


def _quoted(value: str | tuple[str, ...]) -> str:
    """A text or a list of texts in TOML, which writes both as JSON does."""
    return json.dumps(value, ensure_ascii=False)


def _content(file: PartnerFile, *holders: Sequence[x509.Certificate]) -> bytes:
    """The signed bytes: everything in the file except the signatures, independent of layout and line ends."""
    certificates = [[one.fingerprint(SHA256()).hex() for one in holder] for holder in holders]
    parts = (file.version, file.instance, file.addresses, file.services, file.sends_to, certificates)
    return _LABEL + msgspec.json.encode(parts)


def _scheme(key: object) -> tuple[Any, ...] | None:
    """The arguments with which such a key signs or verifies a content; None for a kind of key that cannot."""
    return next((scheme for kinds, scheme in _SCHEMES.items() if isinstance(key, kinds)), None)


def _sign(key: Any, content: bytes) -> str:
    scheme = _scheme(key)
    if scheme is None:
        raise PartnerFileError("the private key is neither EC, RSA nor Ed25519", _MAKE)
    return b64encode(key.sign(content, *scheme)).decode()


# --- read and verify ----------------------------------------------------------------------------------------


def read_partner(data: bytes) -> Partner:
    """
    Read a partner file and verify its signatures.

    Raises:
        PartnerFileError: it is not one, it is not whole, or a signature is not that of its certificate.
    """
    if len(data) > SIZE_MAX:
        raise PartnerFileError(f"a partner file has at most {SIZE_MAX // 1024} KiB", "")
    try:
        table = tomllib.loads(data.decode())
    except (ValueError, RecursionError) as error:
        raise PartnerFileError(f"not a partner file: {error}", "name what broker partner export has printed") from None
    if "version" not in table:
        problem = "the file has no version" if table else "the file is empty"
        raise PartnerFileError(f"not a partner file: {problem}", "name what broker partner export has printed")
    if table["version"] != VERSION:
        problem = f"the file is of version {table['version']!r}, and this release reads {VERSION}"
        raise PartnerFileError(problem, "export it with the same release")
    try:
        file = msgspec.convert(table, PartnerFile)
        keywords = [text for text in file.addresses if isinstance(parse_address(text), Keyword)]
        endpoint = tuple(load_pem(file.endpoint.certificate.encode()))
        identities = [] if file.database is None else parse_peers(file.database.certificate.encode())
        database = () if file.database is None else _dialog_certificates(file.database.certificate.encode())
        with reading():
            for one in (*endpoint, *database):
                identify(one), use_of(one)
        holders = [[who_of(one) for one in endpoint], [one.who for one in identities]]
        is_mixed = any(len({(who.subject, who.uris) for who in one}) > 1 for one in holders)
    except ValueError as error:
        raise PartnerFileError(f"the file cannot be used: {error}", "ask for a new one") from None
    if keywords:
        raise PartnerFileError(f"no other machine could dial {keywords[0]}", "export it with --address tcp://HOST:PORT")
    if bool(file.services) != bool(file.sends_to):
        raise PartnerFileError("the file names services of one side only", "export it with --service and --to")
    if is_mixed:
        raise PartnerFileError("the file has certificates of several holders", "ask for a new one")
    content = _content(file, endpoint, *([database] if database else []))
    _verify("endpoint", endpoint[0], file.endpoint.signature, content)
    if file.database is not None:
        _verify("database", database[0], file.database.signature, content)
    return Partner(file, endpoint, database, tuple(identities))


def _dialog_certificates(pem: bytes) -> tuple[x509.Certificate, ...]:
    """Those that sign for a database, and those that are sealed to, in their order; none of CAs and no older ones."""
    identities = parse_peers(pem)
    own = {one.fingerprint for one in identities} | {one.fingerprint for each in identities for one in each.sealing}
    return tuple(one for one in load_pem(pem) if one.fingerprint(SHA256()) in own)


def _verify(name: str, certificate: x509.Certificate, text: str, content: bytes) -> None:
    key: Any = public_key(certificate)
    scheme = _scheme(key)
    if scheme is None:
        raise PartnerFileError(f"[{name}] has a certificate that cannot sign", _MAKE)
    try:
        key.verify(b64decode(text, validate=True), content, *scheme)
    except (ValueError, InvalidSignature):
        problem = f"the signature of [{name}] does not fit: the file was changed, or is not whole"
        raise PartnerFileError(problem, "ask for it again") from None


# --- plan ---------------------------------------------------------------------------------------------------


def plan(
    settings: Settings,
    database: str | None,
    partner: Partner,
    present: Present,
    *,
    now: datetime,
    via: Partner | None = None,
) -> Plan:
    """
    Return what an import changes at this instance; nothing where it was imported already.

    Args:
        settings: Of this instance.
        database: The database that the import is for; None at a gateway, which has none.
        partner: The file that is imported.
        present: What is defined here.
        now: UTC.
        via: The gateway through which the partner is reached; None where it is reached itself.

    Permissions and bindings go by the names in certificates. So a partner is refused if its name belongs to another
    principal here, or if it would receive what is meant for others.

    Raises:
        SettingError: certificates are not asked for here, or no pattern has room for the partner's.
        PartnerFileError: the partner is refused.
        CertificateUnusableError: a file of this instance cannot be read.
    """
    _refuse_unproved(settings)
    endpoint, hop = settings.endpoint, via or partner
    own = None if database is None else settings.databases[database]
    if partner.is_gateway:
        hint = "import the file of the partner on its other side, with --via and this one"
        raise PartnerFileError(f"{partner.file.instance} is a gateway, which has no services", hint)
    if via is not None and (own is None or not via.is_gateway):
        problem = "this instance has no database" if own is None else f"{via.file.instance} has services"
        raise PartnerFileError(f"{problem}, so nothing is reached through a gateway", "leave --via out")
    if not hop.endpoint[0].not_valid_before_utc <= now < hop.endpoint[0].not_valid_after_utc:
        raise PartnerFileError(f"the certificate of {hop.who.name} is not valid today", "ask for a new file")
    for path in filter(None, (endpoint.certificate, None if own is None else own.certificate)):
        if {*read_certificates(path)} & {*hop.endpoint, *partner.endpoint, *partner.database}:
            raise PartnerFileError("the file is this instance's own", "import that of the partner")
    _refuse_taken_services(database, partner, hop, present)
    _refuse_denied(database, partner, hop, present)
    files: dict[Path, Content] = {}
    held: list[_Held] = []
    trusted = [one for path in trusted_files(endpoint.trust) for one in read_certificates(path)]
    if not any(may_issue(one) and is_signed_by(hop.endpoint[0], one) for one in trusted):
        place = place_for(settings, ("endpoint", "peers"), endpoint.peers, f"{PARTNER_FILE}{hop.file.instance}")
        known = [*trusted_files((*endpoint.trust, *endpoint.peers)), endpoint.certificate]
        held += _refuse_namesakes(hop.endpoint, place, known, _granted(present, MSDB))
        _refuse_hosts(hop, present.routes)
        files[place] = Content(certificates_pem(hop.endpoint))
    if database is not None and own is not None and is_sealed(settings, database, partner):
        place = place_for(
            settings, ("databases", database, "peers"), own.peers, f"{PARTNER_FILE}{partner.file.instance}.dialog"
        )
        granted = [
            *_granted(present, database),
            *(
                (parse_principal(one.principal), database, DropRemoteServiceBinding(one.name))
                for one in present.bindings
            ),
        ]
        held += _refuse_namesakes(partner.database, place, [*trusted_files(own.peers), own.certificate], granted)
        files[place] = Content(certificates_pem(partner.database))
    _refuse_held(settings, held)
    return Plan(
        {path: new for path, new in files.items() if not path.exists() or path.read_bytes() != new.data},
        tuple(_statements(database, partner, hop, present, is_sealed=is_sealed(settings, database, partner))),
        _rerouted(database, partner, present, via),
    )


def _rerouted(database: str | None, partner: Partner, present: Present, via: Partner | None) -> str:
    """A sentence where the routes of an earlier import lead elsewhere; empty where they do not."""
    name, hop = partner.file.instance, via or partner
    routes = [one for one in present.routes if one.database == (database or MSDB)]
    before = {one.address for one in routes if one.name.startswith(f"{PARTNER_NAME}{name}:")}
    if before <= set(hop.file.addresses):
        return ""
    how = f"through the gateway {via.file.instance}" if via else "without a gateway: to keep one, import with --via"
    after = ", ".join(hop.file.addresses)
    return f"messages to {name} go to {', '.join(sorted(before))} now; with this import they go to {after}, {how}"


def is_sealed(settings: Settings, database: str | None, partner: Partner) -> bool:
    """Whether dialogs with the partner are sealed: both databases have certificates."""
    return bool(partner.database) and database is not None and settings.databases[database].certificate is not None


def place_for(settings: Settings, key: KeyPath, patterns: Iterable[str], name: str) -> Path:
    """
    A file of this name that one of the patterns of a setting matches, such as "peers/*.pem".

    Raises:
        SettingError: no pattern has that form, or the directory is not there.
    """
    for pattern in patterns:
        directory, _, last = pattern.rpartition("/")
        plain = Path(unescaped(directory))
        if last.startswith("*") and not is_pattern(directory + last[1:]) and plain.is_dir():
            return plain / f"{name}{last[1:]}"
    hint = 'name a directory that exists, and all files in it, such as "peers/*.pem"'
    raise settings.error(key, "a partner's certificates need a file, and no pattern here has room for one", hint)


def _statements(
    home: str | None, partner: Partner, hop: Partner, present: Present, *, is_sealed: bool
) -> Iterator[Statement]:
    """Statements for msdb, then for the database; none for what holds already."""
    database = home or MSDB
    file, prefix = partner.file, f"{PARTNER_NAME}{partner.file.instance}:"
    names = {service: f"{prefix}{service}"[:_NAME_MAX] for service in file.services}
    grants = [(MSDB, Permission.CONNECT, ANY, hop.who)]
    grants += [(MSDB, Permission.SEND, service, hop.who) for service in file.sends_to]
    if is_sealed:
        grants += [(database, Permission.SEND, service, partner.identities[0].who) for service in file.sends_to]
    granted = {(where, *rule.about) for where, rule in present.rules if rule.state is PermissionState.GRANT}
    missing = {
        place: [
            GrantPermission(permission, securable, (who.name,))
            for where, permission, securable, who in grants
            if where == place and (where, permission, securable, parse_principal(who.name)) not in granted
        ]
        for place in (MSDB, database)
    }
    routes = {one.name: (one.service, one.address) for one in present.routes if one.database == database}
    wanted = {
        f"{name}:{number}" if number else name: (service, address)
        for service, name in names.items()
        for number, address in enumerate(hop.file.addresses)
    }
    own: list[Statement] = [DropRoute(one) for one in routes if one.startswith(prefix) and one not in wanted]
    for name, (service, address) in wanted.items():
        if routes.get(name) != (service, address):
            make = AlterRoute if name in routes else CreateRoute
            own.append(make(name, RouteProperties(service_name=service, address=address)))
    if is_sealed:
        user, bindings = partner.identities[0].who.name, {one.name: one.principal for one in present.bindings}
        own += [
            DropRemoteServiceBinding(one) for one in bindings if one.startswith(prefix) and one not in names.values()
        ]
        for service, name in names.items():
            if name not in bindings:
                own.append(CreateRemoteServiceBinding(name, service, user))
            elif bindings[name] != parse_principal(user).text:
                own.append(AlterRemoteServiceBinding(name, user))
    own = [*missing[MSDB], *own] if database == MSDB else [*own, *missing[database]]
    first: list[Statement] = [] if database == MSDB else [*missing[MSDB]]
    for place, statements in ((MSDB, first), (database, own)):
        if statements:
            yield UseDatabase(place)
            yield from statements


def _refuse_taken_services(database: str | None, partner: Partner, hop: Partner, present: Present) -> None:
    """A partner does not take over what is sent to others."""
    file, prefix = partner.file, f"{PARTNER_NAME}{partner.file.instance}:"
    own = [service for where, service in present.services if where == database]
    for service in () if database is None else file.sends_to:
        if service not in own:
            hint = f"it has: {', '.join(sorted(own)) or 'none'}"
            raise PartnerFileError(f"the database {database} has no service {service}, to which it wants to send", hint)
    for service in file.services:
        for where, name in present.services:
            if name == service:
                hint = "let the partner offer another one"
                raise PartnerFileError(f"{service} is a service of the database {where} here", hint)
        for route in present.routes:
            is_other = route.database == (database or MSDB) and not route.name.startswith(prefix)
            is_elsewhere = route.database == MSDB and route.address not in hop.file.addresses
            if route.service == service and (is_other or is_elsewhere):
                hint = f"USE [{route.database}]; DROP ROUTE [{route.name}] if it is not needed"
                raise PartnerFileError(f"the route [{route.name}] leads to {service} already", hint)
        for binding in present.bindings:
            if binding.service == service and not binding.name.startswith(prefix):
                hint = f"DROP REMOTE SERVICE BINDING [{binding.name}] if it is not needed"
                raise PartnerFileError(f"the binding [{binding.name}] is for {service} already", hint)


def _refuse_denied(database: str | None, partner: Partner, hop: Partner, present: Present) -> None:
    """An import lifts no DENY."""
    for where, rule in present.rules:
        is_about = rule.permission is Permission.CONNECT or any(map(rule.is_about, partner.file.sends_to))
        holders = [hop.who] if where == MSDB else [one.who for one in partner.identities if where == database]
        if rule.state is PermissionState.DENY and is_about and any(map(rule.principal.covers, holders)):
            told = render_rule(rule.state, rule.permission, rule.securable, rule.principal.text)
            raise PartnerFileError(f"{told} in {where} is about {holders[0].name}", "REVOKE it first")


def _refuse_namesakes(
    certificates: Sequence[x509.Certificate], place: Path, known: Iterable[Path | None], granted: Iterable[_Granted]
) -> list[_Held]:
    """
    Refuse a partner that has the name of another principal; return what is granted to its name before it is known.

    Its own certificate may be here already, or an older one of the same name in the file that is replaced.

    Args:
        certificates: Those of the partner, that of the signer first.
        place: The file that they will be in.
        known: Files with certificates that are trusted, and this instance's own.
        granted: What is granted, or sealed, to principals.
    """
    who, own = who_of(certificates[0]), {who_of(one).fingerprint for one in certificates}
    is_known = False
    for path in known:
        for other in read_certificates(path) if path is not None else ():
            holder = who_of(other)
            is_namesake = _is_namesake(who, holder)
            if holder.fingerprint in own:
                is_known = True
            elif use_of(other) is Use.SEALING:
                continue
            elif path == place and not is_namesake:
                hint = f"remove that file if {who.name} is its new name, or let the partner take another instance.name"
                raise PartnerFileError(f"{path} has the certificate of {holder.name}", hint)
            elif path == place and other.not_valid_before_utc > certificates[0].not_valid_before_utc:
                raise PartnerFileError(f"{path} has a newer certificate of {who.name}", "ask for a new file")
            elif is_namesake and path != place:
                hint = "remove that file if it is the same holder's older one, or let the partner take another name"
                raise PartnerFileError(f"{who.name} is the name of another certificate, in {path}", hint)
            is_known = is_known or path == place
    to_others = (one for one in granted if one[0].kind is not PrincipalKind.PUBLIC)
    return [] if is_known else [(who, *one) for one in to_others if one[0].covers(who)]


def _granted(present: Present, database: str) -> Iterator[_Granted]:
    for where, rule in present.rules:
        if where == database:
            yield rule.principal, where, RevokePermission(rule.permission, rule.securable, (rule.principal.text,))


def _refuse_held(settings: Settings, held: Sequence[_Held]) -> None:
    """Refuse a partner to whose name something is granted before it is known: it may be meant for another."""
    if not held:
        return
    scripts: dict[str, list[str]] = {}
    for _, _, where, taken_back in held:
        scripts.setdefault(where, []).append(render_statement(taken_back))
    script = " ".join(f"USE {render_name(where)}; {' '.join(texts)}" for where, texts in scripts.items())
    who, principal, *_ = held[0]
    problem = f"{who.name} has permissions here already, as {principal.text}, and no certificate of it is known"
    hint = (
        f"if they are for this partner, with broker sql{settings.config_option}: {script} Then import the file again."
    )
    raise PartnerFileError(problem, f"{hint} Otherwise let the partner take another name")


def _is_namesake(one: Who, other: Who) -> bool:
    """Whether a permission for the one could be taken for one of the other."""
    names = [(one.subject, other.subject), (one.common_name, other.common_name)]
    return any(a and a == b for a, b in names) or bool(set(one.uris) & set(other.uris))


def _refuse_hosts(partner: Partner, routes: Iterable[RouteRow]) -> None:
    """Refuse a certificate that covers the host of a route to another peer: its holder could announce that address."""
    hosts = {one.host for one in map(parse_address, partner.file.addresses) if isinstance(one, NetworkAddress)}
    for certificate in partner.endpoint:
        identity = identify(certificate)
        for route in routes:
            for text in filter(None, (route.address, route.mirror_address)):
                address = parse_address(text)
                if isinstance(address, NetworkAddress) and address.host not in hosts and identity.covers(address.host):
                    hint = "let the partner have one for its own hosts only, or drop that route"
                    problem = f"the certificate of {partner.who.name} also covers {address.host}, where a route leads"
                    raise PartnerFileError(problem, hint)
