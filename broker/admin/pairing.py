"""
Pairing one side with the other, once both have proved that they have the token: change, look, try out.

Both sides do the same at the same time and tell each other what came of it, line by line; whoever sees a line that is
bad stops after that step, so nothing is tried before both have what it takes. Each line is what somebody has seen: a
TLS handshake with the far endpoint, the answer of the daemon to the question where a message would go, a message that
was there and its answer that came back.

What was changed stays when a check fails: repeat the pairing once the reason is gone.
"""

from __future__ import annotations

import asyncio
import socket
import sqlite3
import ssl
import time
from collections.abc import Callable, Iterable
from contextlib import closing
from dataclasses import dataclass
from hashlib import sha256
from typing import TYPE_CHECKING, Any

import msgspec

from broker.admin.client import AdminClient
from broker.admin.trial import answer_trial, begin_trial
from broker.control.catalog import MSDB
from broker.control.certificate_file import store_files
from broker.control.pairing import (
    Side,
    Trial,
    dropping,
    installation,
    names_for,
    refuse_foreign_hosts,
    refuse_known_names,
    trial_begins,
    trial_ends,
    trial_of,
)
from broker.errors import BrokerError, PairingError
from broker.net.tls import ALPN
from broker.routing.address import parse_address
from broker.security.grants import Permission, Rule, State, render_rule
from broker.security.pairing import Partner
from broker.security.principal import parse_principal

if TYPE_CHECKING:
    from broker.admin.meeting import Channel

REACH_SECONDS = 45.0  # within which a running instance has taken the files that are new
STEP_SECONDS = 90.0  # that the other side may take for a step
TRY_SECONDS = 3.0  # for one attempt to connect
PAUSE_SECONDS = 1.0  # between two attempts
TRIAL_SECONDS = 60.0
_SERVICES = "SELECT name FROM sys.services"
_ROUTES = "SELECT name, remote_service_name FROM sys.routes"
_LEADING = "SELECT name, remote_service_name, address FROM sys.routes"
_ADDRESSES = "SELECT address, mirror_address FROM sys.routes"
_BINDINGS = "SELECT name, remote_service_name FROM sys.remote_service_bindings"
_BOUND = "SELECT remote_principal_name FROM sys.remote_service_bindings"
_SEALED = "SELECT name, remote_service_name, remote_principal_name FROM sys.remote_service_bindings"
_CONNECT = "SELECT grantee_name, state_desc, securable_name FROM sys.server_permissions"
_SEND = "SELECT grantee_name, state_desc, securable_name FROM sys.database_permissions"
_WAITING = "SELECT to_service_name, transmission_status FROM sys.transmission_queue"


class Line(msgspec.Struct, frozen=True):
    """What one side has seen. Shape: `check` in a word or two; `told` a sentence."""

    check: str
    is_good: bool
    told: str


class _Step(msgspec.Struct, frozen=True):
    """What one side tells the other after a step."""

    lines: tuple[Line, ...]


@dataclass(frozen=True, slots=True)
class Pairing:
    """
    One side at work.

    Args:
        side: This one; `partner` the other, behind `channel`.
        client: Of this side's daemon.
        is_inviting: Which side it is.
        show: Told each line, and the name of the instance that saw it.
    """

    side: Side
    partner: Partner
    channel: Channel
    client: AdminClient
    is_inviting: bool
    show: Callable[[str, Line], None]

    async def run(self) -> bool:
        """
        All steps; whether every line of both sides is good.

        Raises:
            PairingError: the other side has gone.
        """
        steps: list[Callable[[], Iterable[Line]]] = [self._change, self._look]
        for step in steps:
            if not await self._share(await asyncio.to_thread(_collected, step)):
                return False
        return await self._try_out()

    async def _share(self, own: tuple[Line, ...]) -> bool:
        """Tell and show what both have seen; whether all of it is good."""
        for line in own:
            self.show(self.side.settings.instance.name, line)
        await self.channel.say(_Step(own))
        theirs = (await self.channel.hear(_Step, seconds=STEP_SECONDS)).lines
        for line in theirs:
            # Where it leads there, it leads back for whoever reads it here.
            told = replace_check(line, "route there", "route back")
            self.show(self.partner.offer.name, told)
        return all(line.is_good for line in (*own, *theirs))

    # --- change ---

    def _change(self) -> Iterable[Line]:
        """Everything that lasts; the daemon is told first, because it may refuse."""
        change = installation(self.side, self.partner)
        bound = (name for (name,) in self._rows(_BOUND, self.side.database))
        shared = [*self._granted(_CONNECT, MSDB), *self._granted(_SEND, MSDB)]
        refuse_known_names(self.side, self.partner, shared, [*bound, *self._granted(_SEND, self.side.database)])
        refuse_foreign_hosts(self.side, self.partner, self._addresses())
        names, far = names_for(self.partner.offer.service), self.partner.offer.service
        routes = self._names(_ROUTES, far)
        bindings = self._names(_BINDINGS, far)
        problem = self._denied() or self._taken(far, names.route)
        if problem is not None:
            yield Line("statements", is_good=False, told=f"{problem}, then pair again")
            return
        drops = dropping(self.side, names, has_route=names.route in routes, has_binding=names.route in bindings)
        self.client.sql(drops + change.script, self.side.database)
        yield Line("statements", is_good=True, told=f"said, and kept in {_listed(change.scripts)}")
        store_files(change.certificates | change.scripts, is_replacing=True)
        yield Line(
            "certificates", is_good=True, told=f"of {self.partner.endpoint.name} in {_listed(change.certificates)}"
        )

    def _denied(self) -> str | None:
        """The DENY that the permissions of this pairing would contradict, or lift; with what to do."""
        endpoint, database = self.partner.endpoint, self.partner.identity.who
        for permission, question, place, who in (
            (Permission.CONNECT, _CONNECT, MSDB, endpoint),
            (Permission.SEND, _SEND, MSDB, endpoint),
            (Permission.SEND, _SEND, self.side.database, database),
        ):
            for text, state, securable in self._rows(question, place):
                principal = parse_principal(text)
                rule = Rule(permission, securable, principal, State(state))
                is_about = permission is Permission.CONNECT or rule.is_about(self.side.service)
                if rule.state is State.DENY and is_about and principal.covers(who):
                    told = render_rule(rule.state, permission, securable, text)
                    return f"{told} in {place} is about {who.name}: REVOKE it"
        return None

    def _taken(self, far: str, own: str) -> str | None:
        """Whose the far service is already, so that the other side would take it over; with what to do."""
        for database in self.side.settings.databases:
            if [far] in map(list, self._rows(_SERVICES, database)):
                return f"{far} is a service of the database {database} here: let the other side offer another one"
        other = next((name for name in self._names(_ROUTES, far) if name != own), None)
        if other is not None:
            return f"the route [{other}] leads to {far} already: DROP ROUTE [{other}]"
        for name, service, address in self._rows(_LEADING, MSDB):
            if service == far and parse_address(address) != self.partner.address:
                return f"the route [{name}] of msdb leads to {far} at {address} already: DROP ROUTE [{name}] there"
        who = self.partner.identity.who
        for name, service, principal in self._rows(_SEALED, self.side.database):
            if service == far and not parse_principal(principal).covers(who):
                told = f"the binding [{name}] seals {far} to {principal} already, and the other side is {who.name}"
                return f"{told}: DROP REMOTE SERVICE BINDING [{name}]"
        return None

    def _names(self, question: str, service: str) -> list[str]:
        """The routes or bindings of the database for a service."""
        return [name for name, remote in self._rows(question, self.side.database) if remote == service]

    def _addresses(self) -> list[str]:
        """Where the routes of all databases lead."""
        databases = [MSDB, *self.side.settings.databases]
        rows = [row for database in databases for row in self._rows(_ADDRESSES, database)]
        return [address for row in rows for address in row if address is not None]

    def _granted(self, question: str, database: str) -> list[str]:
        """Principals to whom something is granted."""
        return [name for name, state, _ in self._rows(question, database) if state == "GRANT"]

    def _rows(self, question: str, database: str) -> list[Any]:
        rows: list[Any] = self.client.sql(question, database)["rows"]
        return rows

    # --- look ---

    def _look(self) -> Iterable[Line]:
        """What the other side's endpoint shows, and what this side's daemon would do."""
        yield from self._reach()
        address, offer = str(self.partner.address), self.partner.offer
        told = self._explained({"to": offer.service, "database": self.side.database})
        is_there = told["outcome"] == "forwarded" and told["next_hop"] == address
        yield Line("route there", is_good=is_there, told=told["sentence"])
        principal = self.partner.endpoint.name
        told = self._explained({"to": self.side.service, "peer": principal})
        permissions = told["permissions"]
        is_permitted = bool(permissions) and all(one["is_permitted"] for one in permissions)
        is_good = is_permitted and told["outcome"] == "delivered"
        sentence = "; ".join([*(one["why"] for one in permissions), told["sentence"]])
        yield Line("permission", is_good=is_good, told=sentence)
        is_bound = names_for(offer.service).route in self._names(_BINDINGS, offer.service)
        who = self.partner.identity.who.name
        sentence = f"{offer.service} is sealed to {who}" if is_bound else f"there is none for {offer.service}"
        yield Line("binding", is_good=is_bound, told=sentence)

    def _explained(self, question: dict[str, Any]) -> dict[str, Any]:
        told: dict[str, Any] = self.client.request("POST", "/v1/explain", question)["explanation"]
        return told

    def _reach(self) -> Iterable[Line]:
        """Connect until the far endpoint has taken the new certificate; its daemon looks every few seconds."""
        address = self.partner.address
        deadline = time.monotonic() + REACH_SECONDS
        while True:
            problem = self._attempt()
            if problem is None or time.monotonic() > deadline:
                break
            time.sleep(PAUSE_SECONDS)
        check, told = problem or ("", "")
        if check != "endpoint":
            yield Line("endpoint", is_good=True, told=f"{address} answers with TLS 1.3")
        if problem is None:
            told = f"{self.partner.endpoint.name}, sha256:{self.partner.certificate.hex()}, takes ours as well"
            yield Line("identity", is_good=True, told=told)
        else:
            yield Line(check, is_good=False, told=f"{address}: {told}")

    def _attempt(self) -> tuple[str, str] | None:
        """The check that failed, and why; None when the other side has said its HELLO."""
        endpoint = self.side.settings.endpoint
        assert endpoint.certificate is not None
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        context.set_alpn_protocols([ALPN])
        context.check_hostname = False
        context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
        context.load_verify_locations(cadata=self.partner.certificate_pem.decode())
        context.load_cert_chain(endpoint.certificate, endpoint.private_key, password="")
        host, port = self.partner.address.host, self.partner.address.port
        try:
            plain = socket.create_connection((host, port), timeout=TRY_SECONDS)
        except OSError as error:
            return "endpoint", error.strerror or str(error)
        with plain:
            try:
                with context.wrap_socket(plain) as tls:
                    shown = tls.getpeercert(binary_form=True) or b""
                    if sha256(shown).digest() != self.partner.certificate:
                        return "identity", "shows another certificate than the one that was exchanged"
                    return None if tls.recv(1) else ("identity", "does not take the certificate of this side")
            except ssl.SSLCertVerificationError as error:
                return "identity", f"shows another certificate than the one that was exchanged ({error.verify_message})"
            except ssl.SSLError as error:
                return "identity", f"does not take the certificate of this side ({error.reason or error})"
            except OSError as error:
                return "identity", f"does not take the certificate of this side ({error.strerror or error})"

    # --- try out ---

    async def _try_out(self) -> bool:
        trial = trial_of(self.channel.number, is_inviting=self.is_inviting)
        try:
            if not await self._share(await asyncio.to_thread(_collected, lambda: self._prepare(trial))):
                return False
            return await self._share(await asyncio.to_thread(_collected, lambda: self._exchange(trial)))
        finally:
            await asyncio.to_thread(self._clear, trial)

    def _prepare(self, trial: Trial) -> Iterable[Line]:
        """Nothing to see: it is told only when it fails."""
        self.client.sql(trial_begins(self.side, self.partner, trial, lifetime=int(STEP_SECONDS * 4)), MSDB)
        return ()

    def _exchange(self, trial: Trial) -> Iterable[Line]:
        """One message there and one back; whoever has accepted begins."""
        path = self.side.settings.databases[self.side.database].path
        with closing(sqlite3.connect(path)) as db:
            run = answer_trial if self.is_inviting else begin_trial
            seen = run(db, trial, number=self.channel.number, seconds=TRIAL_SECONDS)
        who, expected = self.partner.identity.who.name, f"sha256:{self.partner.identity.fingerprint.hex()}"
        if seen.problem:
            hint = self._waiting(trial)
            yield Line("sealed round trip", is_good=False, told=f"{seen.problem}{hint}")
        elif (seen.security, seen.far_certificate) != ("FULL", expected):
            told = f"came, but as {seen.security or 'clear text'} with {seen.far_certificate or 'nobody'}"
            yield Line("sealed round trip", is_good=False, told=told)
        else:
            there = "came, and the answer went back" if self.is_inviting else "was answered"
            told = f"a message {there} in {seen.seconds:.1f} s, sealed and signed by both, with {who} ({expected})"
            yield Line("sealed round trip", is_good=True, told=told)

    def _waiting(self, trial: Trial) -> str:
        """Why what this side sent is still here, as its daemon says."""
        rows = self._rows(_WAITING, self.side.database)
        told = {status for name, status in rows if name == trial.far and status}
        return f"; {'; '.join(sorted(told))}" if told else ""

    def _clear(self, trial: Trial) -> None:
        """Leave nothing of the trial."""
        try:
            self.client.sql(trial_ends(self.side, self.partner, trial), MSDB)
        except BrokerError as error:
            self.show(self.side.settings.instance.name, Line("trial", is_good=False, told=f"is not cleared: {error}"))


def replace_check(line: Line, old: str, new: str) -> Line:
    """The line under another name, where it has this one."""
    return msgspec.structs.replace(line, check=new) if line.check == old else line


def _collected(step: Callable[[], Iterable[Line]]) -> tuple[Line, ...]:
    """Its lines; what it raises becomes one more, so that the other side hears of it."""
    lines: list[Line] = []
    try:
        lines.extend(step())
    except PairingError:
        raise
    except (BrokerError, OSError, sqlite3.Error) as error:
        lines.append(Line("problem", is_good=False, told=str(error)))
    return tuple(lines)


def _listed(paths: Iterable[Any]) -> str:
    return ", ".join(map(str, paths))
