"""
What pairing changes on one side: which files get what, and which statements are said.

Two files of certificates, the far endpoint's among those that `endpoint.trust` names and the far database's among its
`peers`; and two scripts, for msdb and for the database, so that a restart says the same: a route to the far service, a
binding by which it is sealed to, and what the far side may do here. Their names come from the far service: pairing
again replaces them.

Permissions and bindings go by names. So nobody is paired with whose certificate bears the name of somebody else that is
trusted here already: that one's rights and messages would be theirs.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509 import load_pem_x509_certificate

from broker.control.catalog import MSDB
from broker.control.certificate_file import Content, read_certificates
from broker.control.certificate_use import trusted_files
from broker.control.config import Settings
from broker.control.place import KeyPath
from broker.ddl.render import render_statement
from broker.ddl.statements import (
    CreateQueue,
    CreateRemoteServiceBinding,
    CreateRoute,
    CreateService,
    DropQueue,
    DropRemoteServiceBinding,
    DropRoute,
    DropService,
    GrantPermission,
    QueueName,
    RevokePermission,
    Statement,
    UseDatabase,
)
from broker.errors import SettingError
from broker.net.certificate import identify
from broker.routing.address import NetworkAddress, parse_address
from broker.routing.route import RouteProperties
from broker.security.described import Use, describe, is_signed_by, may_issue
from broker.security.grants import Permission
from broker.security.identity import parse_own, who_of
from broker.security.issue import certificates_pem
from broker.security.pairing import Offer, Partner
from broker.security.principal import ANY, Kind, Who, parse_principal

_LATE = "zz-pair-"  # in the order of names behind the scripts that create the services
_MAGIC = re.compile(r"[*?\[]")
_UNESCAPED = re.compile(r"\[([*?\[])\]")
_HINT = "make one with broker certs; docs/certificates.md tells how"


@dataclass(frozen=True, slots=True)
class Side:
    """This side of a pairing. Shape: `service` one of `database`; `address` as the other side is to dial it."""

    settings: Settings
    database: str
    service: str
    address: NetworkAddress


@dataclass(frozen=True, slots=True)
class Names:
    """What pairing makes with a far service is called. Shape: `route` also names the binding."""

    route: str
    file: str


@dataclass(frozen=True, slots=True)
class Installation:
    """What changes. Shape: `certificates` and `scripts` as `store_files` takes them; `script` says it at once."""

    certificates: dict[Path, Content]
    scripts: dict[Path, Content]
    script: str


def own_offer(side: Side) -> Offer:
    """
    What this side says of itself.

    Raises:
        SettingError: it lacks a certificate, or a place for those of the other side; with what to do.
        CertificateUnusableError: a file cannot be read.
    """
    settings, name = side.settings, side.database
    endpoint, database = settings.endpoint, settings.databases[name]
    if endpoint.encryption == "disabled" or endpoint.authentication != "certificate" or endpoint.certificate is None:
        problem = "pairing is for endpoints that encrypt and ask for certificates"
        hint = f'set encryption = "required" and authentication = "certificate"; {_HINT}'
        raise settings.error(("endpoint", "authentication"), problem, hint)
    if database.certificate is None or database.private_key is None:
        problem = "pairing seals dialogs, and this database has no certificate"
        raise settings.error(("databases", name), problem, f"name certificate and private_key; {_HINT}")
    _refuse_unusable_identity(side, database.certificate, database.private_key)
    for key, patterns in places_of(side.settings, side.database).items():
        place_for(settings, key, patterns, "any")
    [certificate, *_] = read_certificates(endpoint.certificate)
    identity = [one for one in read_certificates(database.certificate) if describe(one).use is not Use.AUTHORITY]
    return Offer(
        settings.instance.name,
        str(side.address),
        side.service,
        certificates_pem((certificate,)).decode(),
        certificates_pem(tuple(identity)).decode(),
    )


def names_for(far_service: str) -> Names:
    """What pairing with a service makes is called."""
    word = re.sub(r"[^A-Za-z0-9]+", "-", far_service).strip("-")[:40]
    name = f"{word}-{sha256(far_service.encode()).hexdigest()[:8]}".lstrip("-")
    return Names(f"pair-{name}", f"{_LATE}{name}")


def places_of(settings: Settings, name: str) -> dict[KeyPath, tuple[str, ...]]:
    """
    The settings that name files of others, each with its patterns: trust, peers, scripts for msdb and for a database.

    Args:
        settings: Of this side.
        name: Of the database.
    """
    database = settings.databases[name]
    return {
        ("endpoint", "trust"): settings.endpoint.trust,
        ("databases", name, "peers"): database.peers,
        ("routes", "files"): settings.routes.files,
        ("databases", name, "scripts"): database.scripts,
    }


def place_for(settings: Settings, key: KeyPath, patterns: Iterable[str], name: str) -> Path:
    """
    A file of this name that one of the patterns of a setting matches, in a directory that exists.

    Raises:
        SettingError: there is none, because only plain paths are named.
    """
    for pattern in patterns:
        directory, _, last = pattern.rpartition("/")
        plain = _UNESCAPED.sub("", directory.replace("/**", ""))
        before, star, after = last.partition("*")
        if not star or _MAGIC.search(_UNESCAPED.sub("", before + after)) or _MAGIC.search(plain):
            continue
        joint = "-" if before and before[-1].isalnum() else ""
        path = Path(_UNESCAPED.sub(r"\1", f"{directory.replace('/**', '')}/{before}{joint}{name}{after}"))
        if path.parent.is_dir():
            return path
    hint = 'name a directory that exists by a pattern as well, such as "peers/*.pem" or "routes.d/*.sql"'
    raise settings.error(key, "pairing adds a file, and no pattern here has room for one", hint)


def installation(side: Side, partner: Partner) -> Installation:
    """
    What changes on this side.

    Raises:
        SettingError: there is no place for a file, or the other side has the name of somebody else.
    """
    names = names_for(partner.offer.service)
    places = {
        key: place_for(side.settings, key, patterns, names.file)
        for key, patterns in places_of(side.settings, side.database).items()
    }
    trust, peers, msdb, scripts = places.values()
    _refuse_taken_names(side, partner, trust, peers)
    shared, own = _in_msdb(side, partner), _in_database(side, partner, names.route)
    head = f"-- Made by broker pair with {partner.offer.name!a}; made anew when the pairing is repeated.\n"
    return Installation(
        certificates={
            trust: Content(partner.certificate_pem),
            peers: Content(partner.identity_pem),
        },
        scripts={
            msdb: Content((head + _script(shared)).encode()),
            scripts: Content((head + _script(own)).encode()),
        },
        script=_script([UseDatabase(MSDB), *shared, UseDatabase(side.database), *own]),
    )


def dropping(side: Side, names: Names, *, has_route: bool, has_binding: bool) -> str:
    """The statements that make room for those of a pairing that is repeated."""
    drops: list[Statement] = [UseDatabase(side.database)]
    drops += [DropRemoteServiceBinding(names.route)] if has_binding else []
    drops += [DropRoute(names.route)] if has_route else []
    return _script(drops)


def _refuse_unusable_identity(side: Side, certificate: Path, private_key: Path) -> None:
    try:
        parse_own(certificate.read_bytes(), private_key.read_bytes())
    except (ValueError, OSError) as error:
        key = ("databases", side.database, "certificate")
        raise side.settings.error(key, f"{certificate} with {private_key}: {error}", _HINT) from error


def _refuse_taken_names(side: Side, partner: Partner, trust: Path, peers: Path) -> None:
    """Files that this pairing replaces may hold the name."""
    settings, database = side.settings, side.settings.databases[side.database]
    sides: list[tuple[KeyPath, tuple[str, ...], Path, Who]] = [
        (("endpoint", "trust"), (*settings.endpoint.trust, *settings.endpoint.peers), trust, partner.endpoint),
        (("databases", side.database, "peers"), database.peers, peers, partner.identity.who),
    ]
    own: dict[KeyPath, Path | None] = {
        ("endpoint", "trust"): settings.endpoint.certificate,
        ("databases", side.database, "peers"): database.certificate,
    }
    for key, patterns, place, who in sides:
        for path in [*trusted_files(patterns), own[key]]:
            if path is None or path == place:
                continue
            signing = [one for one in read_certificates(path) if describe(one).use is not Use.SEALING]
            for other in map(who_of, signing):
                if other.fingerprint != who.fingerprint and _is_namesake(who, other):
                    problem = f"{who.name} is the name of another certificate already, in {path}"
                    hint = (
                        "remove that file if it is the same holder's older one, else let the other side take a new name"
                    )
                    raise settings.error(key, problem, hint)


def refuse_known_names(side: Side, partner: Partner, shared: Iterable[str], own: Iterable[str]) -> None:
    """
    Refuse a side whose names have permissions here that were given to others.

    Who was paired with before, whose very certificate is trusted here, and an endpoint that an authority which is
    trusted here has signed, are who they say.

    Args:
        side: This side.
        partner: The other one.
        shared: Principals to whom something is granted in msdb.
        own: Principals to whom something is granted in the database, or to whom services are bound.

    Raises:
        SettingError: such a name.
    """
    name, places = names_for(partner.offer.service).file, places_of(side.settings, side.database)
    (trust, trusted), (peers, known), *_ = places.items()
    if not _is_signed_here(partner, trusted):
        _refuse_known_name(side.settings, (trust, trusted), partner.endpoint, shared, name)
    _refuse_known_name(side.settings, (peers, known), partner.identity.who, own, name)


def refuse_foreign_hosts(side: Side, partner: Partner, addresses: Iterable[str]) -> None:
    """
    Refuse a side whose certificate speaks for hosts to which routes lead that are for others.

    Nobody has looked whether the names in it are its own, unless an authority that is trusted here has signed it; and
    who covers the host of an address may take what is sent there.

    Args:
        side: This side.
        partner: The other one.
        addresses: Those of all routes here, as routes say them.

    Raises:
        SettingError: such a host.
    """
    key, patterns = ("endpoint", "trust"), side.settings.endpoint.trust
    identity = identify(load_pem_x509_certificate(partner.certificate_pem).public_bytes(Encoding.DER))
    if _is_signed_here(partner, patterns):
        return
    for text in addresses:
        address = parse_address(text)
        if isinstance(address, NetworkAddress) and address != partner.address and identity.covers(address.host):
            if address.host == partner.address.host:
                continue  # another port of the same machine
            problem = f"the certificate of {partner.endpoint.name} also speaks for {address.host}, where a route leads"
            hint = "let the other side have one for its own hosts only, or drop that route"
            raise side.settings.error(key, problem, hint)


def _refuse_known_name(
    settings: Settings, setting: tuple[KeyPath, tuple[str, ...]], who: Who, granted: Iterable[str], name: str
) -> None:
    """Its very certificate may be there already, or an older one where a pairing before this one has left it."""
    key, patterns = setting
    place = place_for(settings, key, patterns, name)
    for path in trusted_files(patterns):
        for other in map(who_of, read_certificates(path)):
            if other.fingerprint == who.fingerprint or (path == place and _is_namesake(who, other)):
                return
    for text in granted:
        principal = parse_principal(text)
        if principal.kind is not Kind.PUBLIC and principal.covers(who):
            problem = f"{who.name} has permissions here already, as {text}, and nothing shows that it is the same"
            hint = "REVOKE them (or drop the binding) if it is, else let the other side take a new name"
            raise settings.error(key, problem, hint)


def _is_signed_here(partner: Partner, patterns: tuple[str, ...]) -> bool:
    certificate = load_pem_x509_certificate(partner.certificate_pem)
    trusted = (one for path in trusted_files(patterns) for one in read_certificates(path))
    return any(may_issue(one) and is_signed_by(certificate, one) for one in trusted)


def _is_namesake(one: Who, other: Who) -> bool:
    """Whether a permission for the one could be taken for one of the other."""
    names = [(one.subject, other.subject), (one.common_name, other.common_name)]
    return any(a and a == b for a, b in names) or bool(set(one.uris) & set(other.uris))


# --- what is said ------------------------------------------------------------------------------------------


def _in_msdb(side: Side, partner: Partner) -> list[Statement]:
    whom = (partner.endpoint.name,)
    return [
        GrantPermission(Permission.CONNECT, ANY, whom),
        GrantPermission(Permission.SEND, side.service, whom),
    ]


def _in_database(side: Side, partner: Partner, name: str) -> list[Statement]:
    whom = partner.identity.who.name
    route = RouteProperties(service_name=partner.offer.service, address=str(partner.address))
    return [
        CreateRoute(name, route),
        CreateRemoteServiceBinding(name, partner.offer.service, whom),
        GrantPermission(Permission.SEND, side.service, (whom,)),
    ]


@dataclass(frozen=True, slots=True)
class Trial:
    """A service of its own on each side, for one message there and one back. Shape: `own` and `far` their names."""

    queue: str
    own: str
    far: str


def trial_of(number: str, *, is_inviting: bool) -> Trial:
    """Both sides name the services alike. Shape: `number` hexadecimal digits that both know."""
    services = [f"//broker/pair/{number}/inviting", f"//broker/pair/{number}/accepting"]
    own, far = services if is_inviting else reversed(services)
    return Trial(f"pair-{number}", own, far)


def trial_begins(side: Side, partner: Partner, trial: Trial, *, lifetime: int) -> str:
    """The statements that make this side's part of a trial. Shape: `lifetime` of its route, seconds."""
    whom, queue = partner.identity.who.name, QueueName(trial.queue)
    route = RouteProperties(service_name=trial.far, lifetime=lifetime, address=str(partner.address))
    return _script(
        [
            UseDatabase(MSDB),
            GrantPermission(Permission.SEND, trial.own, (partner.endpoint.name,)),
            UseDatabase(side.database),
            CreateQueue(queue),
            CreateService(trial.own, queue),
            CreateRoute(trial.queue, route),
            CreateRemoteServiceBinding(trial.queue, trial.far, whom),
            GrantPermission(Permission.SEND, trial.own, (whom,)),
        ]
    )


def trial_ends(side: Side, partner: Partner, trial: Trial) -> str:
    """The statements that leave nothing of it."""
    return _script(
        [
            UseDatabase(MSDB),
            RevokePermission(Permission.SEND, trial.own, (partner.endpoint.name,)),
            UseDatabase(side.database),
            RevokePermission(Permission.SEND, trial.own, (partner.identity.who.name,)),
            DropRemoteServiceBinding(trial.queue),
            DropRoute(trial.queue),
            DropService(trial.own),
            DropQueue(QueueName(trial.queue)),
        ]
    )


def _script(statements: Iterable[Statement]) -> str:
    return "".join(f"{render_statement(one)}\n" for one in statements)


def service_missing(side: Side, known: Iterable[str]) -> SettingError:
    """That the database has no such service."""
    problem = f"the database has no service {side.service!r}; it has: {', '.join(sorted(known)) or 'none'}"
    hint = "name one of them with --service, or create it"
    return side.settings.error(("databases", side.database), problem, hint)
