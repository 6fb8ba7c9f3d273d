"""Part of `broker.control.administration`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from broker.control.admin_role import HolderError, HolderKind, parse_holder
from broker.control.finding import SettingFinding

if TYPE_CHECKING:
    pass
from broker.control.administration import _LISTEN, _LOOPBACK, AdminSettings


def admin_contradictions(admin: AdminSettings) -> Iterator[SettingFinding]:
    """What makes the section unusable, although each value by itself is allowed."""
    certificate, key = ("admin", "certificate"), ("admin", "private_key")
    if admin.listen is not None and not admin.listen.is_loopback and admin.certificate is None:
        problem = f'"{admin.listen}" can be reached from other machines, and there is no TLS'
        hint = f"name certificate and private_key in [admin], or listen on {_LOOPBACK} and come through a tunnel"
        yield SettingFinding(_LISTEN, problem, hint, (certificate,))
    if (admin.certificate is None) != (admin.private_key is None):
        there, missing = (key, "certificate") if admin.certificate is None else (certificate, "private_key")
        yield SettingFinding(
            there, f"is set, and there is no {missing}", f"name the file in {missing}", (certificate, key)
        )
    for name in ("trust", "peers"):
        if getattr(admin, name) and admin.certificate is None:
            hint = "name certificate and private_key, or leave it out"
            yield SettingFinding(("admin", name), "clients show certificates over TLS only", hint, (certificate,))
    for text in admin.roles:
        try:
            parse_holder(text)
        except HolderError as error:
            yield SettingFinding(("admin", "roles", text), str(error), "correct the name, or remove the line")


def admin_oddities(admin: AdminSettings) -> Iterator[SettingFinding]:
    """What is allowed and probably not meant."""
    holders = {text: parse_holder(text) for text in admin.roles}
    local = [text for text, holder in holders.items() if holder.kind in {HolderKind.USER, HolderKind.GROUP}]
    if local and not admin.socket_group:
        hint = "name in socket_group the group that shall open it"
        yield SettingFinding(("admin", "roles", local[0]), "cannot open the socket, which has mode 0600", hint)
    shown = [text for text, holder in holders.items() if holder.kind is HolderKind.CERTIFICATE]
    if shown and not (admin.trust or admin.peers):
        hint = "name in trust the CA of the clients, or in peers their certificates"
        yield SettingFinding(
            ("admin", "roles", shown[0]), "no certificate of a client is asked for", hint, (("admin", "trust"),)
        )
    if admin.certificate is not None and admin.listen is None:
        yield SettingFinding(
            ("admin", "certificate"), "is not used without listen", "set listen, or leave it out", (_LISTEN,)
        )
    if loopback_told(admin):
        hint = 'set it to "viewer" or "none", or say "admin" if every user of this machine is to have that role'
        yield SettingFinding(("admin", "loopback_role"), f"is not set: {loopback_told(admin)}", hint, (_LISTEN,))


def loopback_told(admin: AdminSettings) -> str:
    """The role that everybody on this machine has though no key says so, as a sentence of a status; else empty."""
    if admin.listen is None or not admin.listen.is_loopback or "loopback_role" in admin.given:
        return ""
    return f"every user of this machine has the role {admin.loopback_role} on {admin.listen}"
