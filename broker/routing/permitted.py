"""
What permissions add to an explanation: a peer may not connect or send, so nothing of the routes below comes to pass.

They are asked before the routes are, so an explanation of what is not permitted shows what the routes would do with it.
"""

from __future__ import annotations

from msgspec import structs

from broker.flow import Disposition
from broker.routing.explanation import Explanation, Outcome, PermissionShown
from broker.security.grants import Grants, Permission, Ruling
from broker.security.principal import PUBLIC, Who


def with_permissions(told: Explanation, who: Who, grants: Grants) -> Explanation:
    """
    An explanation for a message that a peer brings.

    Args:
        told: What becomes of it when it is permitted.
        who: What the peer has proved to be.
        grants: Of msdb.
    """
    connect, send = grants.connect(who), grants.send(who, told.to_service)
    told = structs.replace(
        told, peer=who.name, permissions=(_shown(Permission.CONNECT, connect), _shown(Permission.SEND, send))
    )
    if connect.is_permitted and send.is_permitted:
        return told
    refused = send if connect.is_permitted else connect
    what = "dropped" if connect.is_permitted else "never taken, because the peer may not connect"
    reason = f"{Disposition.NOT_PERMITTED} ({Disposition.NOT_PERMITTED.number})"
    return structs.replace(
        told,
        outcome=Outcome.DROPPED,
        disposition=Disposition.NOT_PERMITTED.value,
        number=Disposition.NOT_PERMITTED.number,
        route=None,
        next_hop=None,
        database=None,
        is_service_there=True,
        sentence=f"{what}: {reason}: {refused.why}; the sender keeps the message and sends it again",
        hints=tuple(_hint(ruling) for ruling in (connect, send) if not ruling.is_permitted),
    )


def _shown(permission: Permission, ruling: Ruling) -> PermissionShown:
    return PermissionShown(permission.value, ruling.is_permitted, ruling.why)


def _hint(refused: Ruling) -> str:
    """The statement to run."""
    if refused.rule is not None:
        return f"USE msdb; {refused.why.replace('DENY', 'REVOKE', 1)};"
    return f"USE msdb; {refused.why.removeprefix('no ').removesuffix(f' or {PUBLIC}')};"
