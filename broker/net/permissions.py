"""
Who of our neighbours may connect, and send to which service: the grants of msdb, asked for links.

CONNECT is asked as soon as a peer has proved who it is, whoever has dialled, and a peer that may not is told only that.
One that shows our own certificate is asked when it has said HELLO: it may be this very instance, dialled by an address
of its own. SEND is asked by the pass; what a link may send is its profile. When grants change, links whose peers may
not connect any more are closed, and the others get the profile that holds now. Loop-only.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import structlog

from broker.errors import ConnectDeniedError
from broker.security.grants import OPEN, Grants, Permission, Profile
from broker.security.principal import NOBODY, Who

if TYPE_CHECKING:
    from broker.net.certificate import Identity
    from broker.net.link import Link

log = structlog.get_logger(__name__)

REASON_MAX = 4096  # characters of what a peer is told; a link body has 16 KiB


class Permit:
    """
    What one peer may do.

    Shape: `who` it has proved to be; `profile` of what it may send.
    """

    __slots__ = ("_owner", "profile", "who")

    def __init__(self, who: Who, profile: Profile, owner: Permissions | None = None) -> None:
        self.who = who
        self.profile = profile
        self._owner = owner

    def why_not(self, service: str) -> str:
        """Why this peer may not send to a service; it is remembered as the last refusal."""
        if self._owner is None:
            return ""
        why = self._owner.grants.send(self.who, service).why[:REASON_MAX]
        self._owner.last_refusal = f"{self.who.name} may not send: {why}"
        return why


EVERYTHING = Permit(NOBODY, OPEN)  # of links that nobody asks about


class Permissions:
    """
    Shape: `grants` those of msdb; `last_refusal` of a frame, for people, empty while there was none; `refused`
    connections since the start.
    """

    def __init__(self) -> None:
        self.grants = Grants()
        self.last_refusal = ""
        self.refused = 0

    @property
    def warning(self) -> str:
        """That nobody may connect, and what to do; empty while somebody may."""
        if self.grants.is_open(Permission.CONNECT) or self.grants.has_granted(Permission.CONNECT):
            return ""
        return "nobody may connect: no GRANT CONNECT in msdb; see broker check"

    def admit(self, link: Link) -> ConnectDeniedError | None:
        """Give a link its permit; why its peer may not connect, if it may not."""
        who = _who_at(link)
        link.permit = Permit(who, self.grants.profile(who), self)
        return self._maybe_refuse(who)

    def admit_first(self, link: Link, own: Identity | None) -> ConnectDeniedError | None:
        """The same, before HELLO; of a peer with our own certificate it is asked again when it has said HELLO."""
        refused = self.admit(link)
        identity = link.transport.identity
        if own is not None and identity is not None and identity.fingerprint == own.fingerprint:
            return None
        return refused

    def change(self, grants: Grants, links: Iterable[Link]) -> None:
        """These hold from now on."""
        if grants == self.grants:
            return
        self.grants = grants
        if self.warning:
            log.warning(
                "nobody may connect", problem="no GRANT CONNECT in msdb", hint="broker check names the statement"
            )
        for link in list(links):
            refused = self.admit(link)
            if refused is not None:
                link.fail(refused)

    def _maybe_refuse(self, who: Who) -> ConnectDeniedError | None:
        ruling = self.grants.connect(who)
        if ruling.is_permitted:
            return None
        self.refused += 1
        return ConnectDeniedError(who.name, ruling.why[:REASON_MAX])


def _who_at(link: Link) -> Who:
    identity = link.transport.identity
    return NOBODY if identity is None else identity.who
