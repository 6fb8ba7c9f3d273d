"""
What a change of certificate files comes to, for whoever writes it down: which certificates count no more, and which do
from now on. Names and fingerprints only, never a key.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from broker.net.tls import Security
    from broker.security.session import Credentials

SHOWN_MAX = 100  # of each kind that are written one by one; a bundle of public CAs has more

Shown: TypeAlias = Mapping[str, frozenset[str]]
"""Certificates in use, each as name and fingerprint, by the setting that names their files."""

Tell = Callable[[str, Mapping[str, list[str]], Mapping[str, list[str]]], None]
"""Whose files have changed, and by setting those that counted before and do not now, and the other way round."""


def tell_nobody(_whose: str, _before: Mapping[str, list[str]], _after: Mapping[str, list[str]]) -> None:
    """Where nothing is written down."""


def tell_change(tell: Tell, whose: str, before: Shown, after: Shown) -> None:
    """Tell how these differ, if they do."""
    gone, come = _beyond(before, after), _beyond(after, before)
    if gone or come:
        tell(whose, gone, come)


def shown_security(security: Security) -> Shown:
    """What an endpoint shows to its peers, and whom it trusts."""
    own = (*(() if security.own is None else (security.own,)), *security.own_chain)
    return {
        "certificate": frozenset(_named(one.principal_name, one.fingerprint) for one in own),
        "trust": frozenset(_named(one.principal_name, one.fingerprint) for one in security.trusted),
    }


def shown_credentials(credentials: Credentials) -> Shown:
    """What a database proves itself by, and which far databases it knows."""
    known = {"certificate": [] if credentials.own is None else [credentials.own.signing]}
    known["peers"] = list(credentials.peers.known.values())
    return {
        setting: frozenset(
            _named(one.who.name, fingerprint.hex())
            for one in some
            for fingerprint in (one.fingerprint, *(sealing.fingerprint for sealing in one.sealing))
        )
        for setting, some in known.items()
    }


def _named(name: str, fingerprint: str) -> str:
    return f"{name} sha256:{fingerprint}"


def _beyond(one: Shown, other: Shown) -> dict[str, list[str]]:
    """What the one has and the other has not."""
    found = {setting: sorted(some - other.get(setting, frozenset())) for setting, some in one.items()}
    return {setting: _in_short(some) for setting, some in found.items() if some}


def _in_short(some: list[str]) -> list[str]:
    left = len(some) - SHOWN_MAX
    return some if left <= 0 else [*some[:SHOWN_MAX], f"{left} more"]
