"""
Permissions to connect and to send to a service: GRANT and DENY as rules, and remote service bindings.

DENY wins over GRANT, and a permission that no rule grants is denied. Where peers need not prove who they are, a kind of
permission that no rule mentions is granted to all peers. Service names compare byte for byte; `*` in the name of a rule
matches any characters. Every decision has its reason: the rule that permits or forbids, or the statement that is
missing. The kernels cache by `Profile`: peers to which the same rules apply have the same object.

A remote service binding names the principal whose certificate identifies a far service.

Source: Service Broker documentation, "Service Broker Transport Security"; "GRANT Endpoint Permissions", "GRANT Service
Broker Permissions", "DENY Service Broker Permissions"; "CREATE REMOTE SERVICE BINDING", "Determining the Dialog
Security Type".
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from enum import StrEnum

from msgspec import Struct

from broker.advice import render_name
from broker.security.principal import ANY, NOBODY, PUBLIC, Principal, Who, covers_text, spelled

ENDPOINT_NAME = "Broker"  # of the endpoint in reasons, where its name is not known
SHOWN_NAME = r"\[(?:[^\]]|\]\])*\]"  # in reasons; a ] in a name is doubled
_NO_SEND = re.compile(rf"no GRANT SEND ON SERVICE::{SHOWN_NAME} TO ({SHOWN_NAME})")
PROFILES_MAX = 256  # sets of rules that are remembered as one object; each peer's certificate selects one


class Permission(StrEnum):
    """An action that may be permitted."""

    CONNECT = "CONNECT"
    SEND = "SEND"


class PermissionState(StrEnum):
    """The effect of a rule."""

    GRANT = "GRANT"
    DENY = "DENY"


class PermissionRule(Struct, frozen=True):
    """
    One GRANT or DENY.

    Attributes:
        securable: The name of a service, which may hold `*`; of CONNECT it is always `*`: there is one endpoint.
    """

    permission: Permission
    securable: str
    principal: Principal
    state: PermissionState

    @property
    def about(self) -> tuple[Permission, str, Principal]:
        """The subject of the rule; a database has one rule for each."""
        return self.permission, self.securable, self.principal

    def is_about(self, service: str) -> bool:
        """Whether it counts for a service."""
        return covers_text(self.securable, service)


class PermissionRuling(Struct, frozen=True):
    """
    Whether something is permitted, and why.

    Attributes:
        rule: The rule that decides; None when no rule permits, or when everything is permitted.
    """

    is_permitted: bool
    why: str
    rule: PermissionRule | None = None

    @property
    def remedy(self) -> str:
        """The statement by which it is permitted, with its `;`."""
        missing = self.why.removeprefix("no ").removesuffix(f" or {PUBLIC}")
        return f"{missing if self.rule is None else lifted(self.why)};"


class Profile:
    """
    Permissions to SEND under the same rules. Equal only to itself; `Grants` gives the same one for the same rules.

    Attributes:
        rules: Those that count, of one principal or several.
        is_open: Whether everything is permitted.
    """

    __slots__ = ("_allowed", "_denied", "_exact", "is_open", "rules")

    def __init__(self, rules: frozenset[PermissionRule], *, is_open: bool) -> None:
        self.rules = rules
        self.is_open = is_open
        self._exact: dict[str, list[PermissionRule]] = {}
        patterns: list[PermissionRule] = []
        for rule in rules:
            if ANY in rule.securable:
                patterns.append(rule)
            else:
                self._exact.setdefault(rule.securable, []).append(rule)
        self._denied = _ordered(rule for rule in patterns if rule.state is PermissionState.DENY)
        self._allowed = _ordered(rule for rule in patterns if rule.state is PermissionState.GRANT)

    def permits(self, service: str) -> bool:
        """Whether messages for this service may come. Cost: one look-up, and the rules whose service holds `*`."""
        if self.is_open:
            return True
        rule = self.rule_for(service)
        return rule is not None and rule.state is PermissionState.GRANT

    def rule_for(self, service: str) -> PermissionRule | None:
        """The rule that decides about this service, DENY first; None when no rule is about it."""
        exact = _ordered(self._exact.get(service, ()))
        denied = [rule for rule in exact if rule.state is PermissionState.DENY]
        for rule in (*denied, *self._denied, *exact, *self._allowed):
            if rule.is_about(service):
                return rule
        return None


class Grants:
    """
    The rules of one database.

    Args:
        rules: In any order.
        is_default_deny: Whether what no rule grants is denied also where nothing of that kind is stated.
        endpoint: The name of the endpoint in reasons.
    """

    def __init__(
        self, rules: Iterable[PermissionRule] = (), *, is_default_deny: bool = False, endpoint: str = ENDPOINT_NAME
    ) -> None:
        self.rules = tuple(rules)
        self.is_default_deny = is_default_deny
        self._endpoint = endpoint
        self._named: dict[tuple[Permission, str], list[PermissionRule]] = {}
        self._patterns: dict[Permission, list[PermissionRule]] = {permission: [] for permission in Permission}
        for rule in self.rules:
            if ANY in rule.principal.text:
                self._patterns[rule.permission].append(rule)
            else:
                self._named.setdefault((rule.permission, rule.principal.text), []).append(rule)
        self._stated = {rule.permission for rule in self.rules}
        self._profiles: dict[frozenset[PermissionRule], Profile] = {}

    def __eq__(self, other: object) -> bool:
        """Whether the same follows from both."""
        return isinstance(other, Grants) and (self._essence == other._essence)

    def __hash__(self) -> int:
        return hash(self._essence)

    @property
    def _essence(self) -> tuple[object, ...]:
        return frozenset(self.rules), self.is_default_deny, self._endpoint

    def is_open(self, permission: Permission) -> bool:
        """True if every peer has this permission, because nothing is stated about it."""
        return not self.is_default_deny and permission not in self._stated

    def is_for_all(self, permission: Permission, service: str = ANY) -> bool:
        """True if every peer has this permission, because nothing is stated about it or public has it."""
        ruling = self.connect(NOBODY) if permission is Permission.CONNECT else self.send(NOBODY, service)
        return ruling.is_permitted

    def has_granted(self, permission: Permission) -> bool:
        """Whether any principal is granted it."""
        return any(rule.permission is permission and rule.state is PermissionState.GRANT for rule in self.rules)

    def may_be_granted(self, service: str) -> bool:
        """Whether anyone is granted to send to a service; DENY is not considered."""
        grants = (one for one in self.rules if one.state is PermissionState.GRANT)
        return any(one.permission is Permission.SEND and one.is_about(service) for one in grants)

    def connect(self, who: Who) -> PermissionRuling:
        """Whether a peer may connect to the endpoint."""
        if self.is_open(Permission.CONNECT):
            return _NOTHING_STATED[Permission.CONNECT]
        rules = _ordered(self._rules_of(who, Permission.CONNECT))
        return self._ruling(Permission.CONNECT, self._endpoint, who, rules[0] if rules else None)

    def send(self, who: Who, service: str) -> PermissionRuling:
        """Whether a peer may send to a service."""
        profile = self.profile(who)
        if profile.is_open:
            return _NOTHING_STATED[Permission.SEND]
        return self._ruling(Permission.SEND, service, who, profile.rule_for(service))

    def profile(self, who: Who) -> Profile:
        """Return the send permissions of a peer; the same object for all peers to which the same rules apply."""
        if self.is_open(Permission.SEND):
            return OPEN
        rules = frozenset(self._rules_of(who, Permission.SEND))
        profile = self._profiles.get(rules)
        if profile is None:
            if len(self._profiles) >= PROFILES_MAX:
                self._profiles.clear()
            profile = self._profiles[rules] = Profile(rules, is_open=False)
        return profile

    def _rules_of(self, who: Who, permission: Permission) -> Iterator[PermissionRule]:
        """Those whose principal they are. Cost: some look-ups, and some microseconds for each pattern."""
        names = {PUBLIC, spelled(who.subject), who.common_name, *who.uris, f"sha256:{who.fingerprint}"}
        for name in names:
            yield from (rule for rule in self._named.get((permission, name), ()) if rule.principal.covers(who))
        yield from (rule for rule in self._patterns[permission] if rule.principal.covers(who))

    def _ruling(
        self, permission: Permission, securable: str, who: Who, rule: PermissionRule | None
    ) -> PermissionRuling:
        if rule is None:
            missing = render_rule(PermissionState.GRANT, permission, securable, who.name)
            public = "" if who == NOBODY else f" or {PUBLIC}"
            return PermissionRuling(is_permitted=False, why=f"no {missing}{public}")
        shown = self._endpoint if permission is Permission.CONNECT else rule.securable
        why = render_rule(rule.state, permission, shown, rule.principal.text)
        return PermissionRuling(rule.state is PermissionState.GRANT, why, rule)


_NOTHING_STATED = {
    permission: PermissionRuling(is_permitted=True, why=f"no rule says which peers may {permission}, so all may")
    for permission in Permission
}
_CLASS = {Permission.CONNECT: "ENDPOINT", Permission.SEND: "SERVICE"}


def refused_sender(reason: str) -> str:
    """The principal to which a reason says that no SEND is granted; empty when it names none."""
    found = _NO_SEND.search(reason)
    return "" if found is None else found[1][1:-1].replace("]]", "]")


def render_rule(state: PermissionState, permission: Permission, securable: str, principal: str) -> str:
    """A rule as the statement that makes it, without its `;`."""
    return f"{state} {permission} ON {_CLASS[permission]}::{render_name(securable)} TO {render_name(principal)}"


def lifted(deny: str) -> str:
    """How a DENY is lifted: by a GRANT of the same, which replaces it, or by REVOKE where that would permit others."""
    what, _, principal = deny.removeprefix("DENY ").rpartition(" TO ")
    if "*" in deny or principal == render_name(PUBLIC):
        return f"REVOKE {what} FROM {principal}"
    return f"GRANT {what} TO {principal}"


def _ordered(rules: Iterable[PermissionRule]) -> list[PermissionRule]:
    """DENY first, then in an order that is always the same, so that reasons are, too."""
    return sorted(rules, key=lambda rule: (rule.state is PermissionState.GRANT, rule.securable, rule.principal.text))


OPEN = Profile(frozenset(), is_open=True)  # where everything is permitted


class RemoteServiceBinding(Struct, frozen=True):
    """
    To whom conversations with a far service are sealed.

    Attributes:
        remote_principal: As `broker.security.principal` reads it.
        is_anonymous_on: Whether the initiator hides its identity, so that the target takes it for `public`.
    """

    name: str
    remote_service_name: str
    remote_principal: str
    is_anonymous_on: bool = False
