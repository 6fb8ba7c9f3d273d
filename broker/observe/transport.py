"""
What there is to tell of connections as such: certificates and their ends, plain text, and limits that were met.

Certificates have a role: `own` and `own_chain` are what this instance shows, `trust` whom it trusts, `peer` and
`peer_chain` what the peers that are connected now have shown, and by which CAs that was verified.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from broker.control.admin_consistency import loopback_told
from broker.control.certificate_watch import CertificateWatch
from broker.control.certificates import SOON, plain_text_told
from broker.net.certificate import Identity
from broker.net.link import Link
from broker.net.tls import Encryption, Security
from broker.observe.described import MetricDefinition
from broker.observe.instance import Running
from broker.observe.label import Labels

CERTIFICATES_MAX = 100  # told in a status, those that end first
WARNINGS_MAX = 10
_SAID = {
    "own": "the certificate of this instance",
    "own_chain": "a certificate that is sent behind that of this instance",
    "trust": "a trusted certificate",
    "peer": "the certificate of a peer",
    "peer_chain": "a CA of a peer",
}

TRANSPORT_METRICS = (
    MetricDefinition(
        "broker_tls_certificate_expiry_timestamp_seconds",
        "When a certificate ends, in seconds since 1970: what this instance shows (own, own_chain), whom it trusts"
        " (trust), what connected peers have shown and by which CAs that was verified (peer, peer_chain).",
        ("role", "name"),
        fold=min,
    ),
    MetricDefinition("broker_tls_reloads_total", "How often changed certificate files were put to use."),
    MetricDefinition(
        "broker_tls_reload_failures_total",
        "How often changed certificate files could not be used; those before stay in use.",
    ),
    MetricDefinition(
        "broker_tls_last_reload_successful",
        "1 while what the certificate files hold is in use, 0 while it cannot be used and what was there before is.",
    ),
    MetricDefinition("broker_tls_handshakes", "TLS handshakes under way with those who connect."),
    MetricDefinition(
        "broker_connections_refused_total", "Connections refused or ended because of a limit.", ("limit",)
    ),
    MetricDefinition(
        "broker_connection_pauses_total",
        "How often a connection was not read for a while, because its peer brought more than it may.",
        ("limit",),
    ),
    MetricDefinition(
        "broker_forward_peer_share_exceeded_total",
        "Dialog frames dropped because what one peer had brought took its part of the pool; also counted as pool limit"
        " exceeded.",
    ),
)


def certificates_in_use(security: Security, links: Iterable[Link]) -> Iterator[tuple[str, Identity]]:
    """Role and certificate, each once."""
    told: set[tuple[str, str]] = set()
    for role, one in _certificates(security, links):
        if (role, one.fingerprint) not in told:
            told.add((role, one.fingerprint))
            yield role, one


def transport_readers() -> Mapping[str, Callable[[Running], Iterable[tuple[Labels, float]]]]:
    """What reads each of the metrics on the loop."""
    return {
        "broker_tls_certificate_expiry_timestamp_seconds": _expiries,
        "broker_tls_reloads_total": lambda instance: [((), instance.certificates.reloads)],
        "broker_tls_reload_failures_total": lambda instance: [((), instance.certificates.failures)],
        "broker_tls_last_reload_successful": lambda instance: [((), int(not instance.certificates.problem))],
        "broker_tls_handshakes": lambda instance: [((), len(instance.peers.entrance.handshakes))],
        "broker_connections_refused_total": lambda instance: _counts(
            {"connections": 0, "connections_per_peer": 0} | instance.peers.admission.refused
        ),
        "broker_connection_pauses_total": lambda instance: _counts(
            {"bytes_per_second": 0, "messages_per_second": 0} | instance.peers.admission.meters.pauses
        ),
        "broker_forward_peer_share_exceeded_total": lambda instance: [((), instance.forwarder.pool.over_payer)],
    }


def transport_status(instance: Running, *, now: datetime | None = None) -> dict[str, Any]:
    """What a status tells. On the loop."""
    now = now or datetime.now(UTC)
    security, endpoint = instance.peers.entrance.security, instance.settings.endpoint
    found = sorted(certificates_in_use(security, instance.peers.links.values()), key=lambda one: one[1].not_after)
    problem = instance.certificates.problem
    warnings = [plain_text_told(endpoint.encryption), problem and f"certificate files are not in use: {problem}"]
    warnings += [instance.peers.permissions.warning, loopback_told(instance.settings.admin)]
    return {
        "encryption": endpoint.encryption,
        "authentication": endpoint.authentication,
        "warnings": [one for one in warnings if one] + expiry_warnings(found, now),
        "certificates": [_certificate(role, one, now) for role, one in found[:CERTIFICATES_MAX]],
        "reloads": instance.certificates.reloads,
        "reload_failures": instance.certificates.failures,
        "problem": problem,
        "handshakes": len(instance.peers.entrance.handshakes),
        "connections_max": instance.peers.admission.most,
        "refused": dict(instance.peers.admission.refused),
    }


def expiry_warnings(certificates: Iterable[tuple[str, Identity]], now: datetime) -> list[str]:
    """
    A sentence for each certificate that has ended, or does so soon; the most urgent first, of many only some.

    Before them one on the first that is not valid yet: it was used, so the clock has gone back since.
    """
    every = list(certificates)
    due = [(role, one) for role, one in every if one.not_after <= now + SOON]
    told = [
        f"{_SAID[role]} is not valid before {one.not_before:%Y-%m-%d %H:%M} UTC, by the clock of this machine:"
        f" {one.principal_name}"
        for role, one in every
        if one.not_before > now
    ][:1]
    for role, one in due[:WARNINGS_MAX]:
        left = one.not_after - now
        time = f"{left.days} days" if left.days > 1 else f"{left // timedelta(hours=1)} hours"
        when = f"{one.not_after:%Y-%m-%d %H:%M} UTC"
        end = f"has expired at {when}" if one.not_after <= now else f"ends in {time}, at {when}"
        told.append(f"{_SAID[role]} {end}: {one.principal_name}")
    if len(due) > WARNINGS_MAX:
        told.append(f"{len(due) - WARNINGS_MAX} more certificates end soon")
    return told


def own_certificate_problem(security: Security, *, now: datetime | None = None) -> str:
    """Why nobody can trust this instance any more; empty while somebody can."""
    own = security.own
    if own is None or own.not_after > (now or datetime.now(UTC)):
        return ""
    return f"the certificate of this instance has expired at {own.not_after:%Y-%m-%d %H:%M} UTC: renew it"


def certificate_part(watch: CertificateWatch) -> dict[str, str]:
    """Whether the certificate files are in use, for those who ask for health; nothing where there are none."""
    return {} if watch.security.encryption is Encryption.DISABLED else {"certificate files": watch.problem}


def _certificates(security: Security, links: Iterable[Link]) -> Iterator[tuple[str, Identity]]:
    if security.own is not None:
        yield "own", security.own
    yield from (("own_chain", one) for one in security.own_chain)
    yield from (("trust", one) for one in security.trusted)
    for link in links:
        for place, one in enumerate(link.transport.chain):
            yield "peer_chain" if place else "peer", one


def _expiries(instance: Running) -> Iterator[tuple[Labels, float]]:
    security, links = instance.peers.entrance.security, instance.peers.links.values()
    for role, one in certificates_in_use(security, links):
        yield (role, one.principal_name), one.not_after.timestamp()


def _counts(counts: Mapping[str, int]) -> list[tuple[Labels, float]]:
    return [((name,), count) for name, count in counts.items()]


def _certificate(role: str, one: Identity, now: datetime) -> dict[str, Any]:
    return {
        "role": role,
        "name": one.principal_name,
        "fingerprint": one.fingerprint,
        "not_after": one.not_after.isoformat(timespec="seconds"),
        "days_left": (one.not_after - now).days,
    }
