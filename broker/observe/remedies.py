"""
Remedies by cause: one sentence for each disposition of a frame and each number of an Error message.

Pure texts, for status, events, `broker why` and the pages of errors; names are filled in by the caller.
"""

from __future__ import annotations

from collections.abc import Mapping

from broker.errors import MAY_NOT_CONNECT
from broker.flow import Disposition
from broker.observe.snapshot import DropSnapshot

D = Disposition
_BY_DISPOSITION: Mapping[str, str] = {
    D.HOPS_EXHAUSTED: (
        "broker explain --through shows whether routes lead in a circle; raise endpoint.max_hops of {instance}, and"
        " dialog.hop_limit of the sender, only when the way is that long"
    ),
    D.LIFETIME_EXCEEDED: "find the gateway along the path that holds frames; begin dialogs with a longer lifetime",
    D.EXPIRED_HERE: "make the next hop of {instance} accept messages: broker status there shows what is wrong with it",
    D.NOT_PERMITTED: (
        "in msdb of {instance}: run the GRANT SEND that the reason names, if messages for [{service}] are to arrive"
        " that way; broker explain --to [{service}] --peer PRINCIPAL there shows what is in force"
    ),
    D.ASKING_FOR_ROUTE: "see whether the service that is asked for routes runs, and CREATE ROUTE for [{service}] else",
    D.NO_ROUTE: (
        "in {table} of {instance}: CREATE ROUTE [{service}] WITH SERVICE_NAME = '{service}', ADDRESS ="
        " 'tcp://HOST:PORT'; names are compared byte for byte"
    ),
    D.FORWARDING_DISABLED: (
        "set endpoint.message_forwarding = true at {instance}, or correct the route that led there"
    ),
    D.ROUTE_INVALID: "in {table} of {instance}: give [{service}] a route whose address leads to where it is",
    D.SERVICE_NOT_HERE: (
        "in {table} of {instance}, when the service is elsewhere: CREATE ROUTE [{service}] WITH SERVICE_NAME ="
        " '{service}', ADDRESS = 'tcp://HOST:PORT'; names are compared byte for byte; otherwise CREATE SERVICE"
        " [{service}] in a database of {instance}"
    ),
    D.INSTANCE_NOT_HERE: (
        "compare the broker instance with sys.databases of {instance}: the route leads to the wrong instance, or the"
        " database was created again"
    ),
    D.PRINCIPAL_UNKNOWN: (
        "sys.dm_broker_mirrors at {instance} shows what both partners say: start one of them, or fail over to the one"
        " that is there"
    ),
    D.DATABASE_IS_MIRROR: (
        "the route led to the mirror: give it both addresses (ADDRESS and MIRROR_ADDRESS); broker status of {instance}"
        " names the principal"
    ),
    D.ALREADY_HELD: (
        "broker why at {instance} shows what the copies wait for: a next hop that does not accept them, or the"
        " principal of a mirrored pair (sys.dm_broker_mirrors there) while both partners deny or are gone"
    ),
    D.POOL_LIMIT: (
        "at {instance}: broker status shows which next hop is slow or gone; raise endpoint.message_forward_size when"
        " all are well"
    ),
    D.FRAME_TOO_LARGE: "raise endpoint.max_frame at the next hop of {instance} to that of {instance}",
    D.SERVICE_NOT_FOUND: "CREATE SERVICE [{service}] in that database of {instance}, or correct the route",
    D.CONTRACT_REFUSED: "ALTER SERVICE [{service}] (ADD CONTRACT ...) there, or begin the dialog under another one",
    D.NOT_OF_THIS_DIALOG: "a peer uses the conversation id of a dialog that is not its own: see the log of {instance}",
    D.OTHER_INSTANCE: "see whether two databases have the same broker instance (a copied file): broker database",
    D.SECURITY_UNRESOLVED: (
        "the log of {instance} says which certificate (frame refused): name it in databases.NAME.peers there, renew it,"
        " or compare the clocks of both sides"
    ),
    D.SEAL_BROKEN: (
        "a machine along the path damages frames, or an attacker alters them: check the machines before {instance}"
    ),
    D.NOT_SECURED: "end the dialog and begin it again: it is sealed at one side and in clear at {instance}",
    D.SESSION_KEY_UNKNOWN: "nothing: {instance} was restarted, and the next retransmission brings it the key",
    D.NOT_SEALED: "a sender writes in clear to a sealed dialog: check the machines before {instance}",
    D.STORE_BUSY: "keep the transactions of applications on that database short, and see how fast its disk is",
    D.STORE_FAILED: "broker status and the log of {instance} say what is wrong: disk full, file locked or damaged",
}
_BY_ERROR: Mapping[int, str] = {
    -8408: "ALTER SERVICE at the target (ADD CONTRACT ...), or begin the dialog under a contract that it takes",
    -8428: "CREATE MESSAGE TYPE of the same name at both sides",
    -8430: "correct the body, or the VALIDATION of the message type",
    -8437: "correct who may send the message type: SENT BY in the contract",
    -8457: "correct who may send the message type: SENT BY in the contract",
    -8462: "the far database has forgotten the dialog (cleaned up, or restored): begin a new one and send again",
    -8489: "begin a new dialog and send again; make its lifetime longer when the far side is often away that long",
    -8490: (
        "CREATE SERVICE [{service}] in the database that the dialog or its route names, or correct BROKER_INSTANCE;"
        " then begin a new dialog"
    ),
    -8494: "GRANT SEND ON SERVICE::[{service}] in the far database to the principal that the error names",
    -8495: "two databases answer for one dialog: give each its own broker instance, and begin a new dialog",
    -8498: "add the message type to the contract at both sides",
    -9727: "CREATE REMOTE SERVICE BINDING for [{service}], or begin the dialog with encryption off",
    -9731: "give the database a certificate and private_key, or make the remote service binding ANONYMOUS = ON",
    -9616: "send well-formed XML, or correct the VALIDATION of the message type",
}


def remedy_of(disposition: str, *, instance: str, service: str, table: str = "msdb") -> str:
    """Return the remedy for frames that end by this disposition at this instance."""
    text = _BY_DISPOSITION.get(
        disposition, "see the page on dispositions: {instance} shows the reason in broker status"
    )
    return _filled(text, instance=instance, service=service, table=table)


def remedy_of_drop(drop: DropSnapshot, instance: str) -> str:
    """Return the remedy for the last frame that was dropped for a reason."""
    return remedy_of(drop.disposition, instance=instance, service=drop.fields.to_service_name or "SERVICE")


def remedy_of_unreached(address: str, problem: str) -> str:
    """Return the remedy for a next hop that is not reached, for a reason that the instance here or there reports."""
    if MAY_NOT_CONNECT in problem:
        where = f"the instance at {address}" if problem.startswith("FATAL") else "this instance"
        return f"in msdb of {where}: run the GRANT CONNECT that the reason names, or REVOKE the DENY"
    return f"start the instance at {address}, open the way to it, or correct the route to it"


def remedy_of_error(code: int | None, *, service: str) -> str:
    """Return the remedy for a dialog that failed with this number; a positive one is an application's own."""
    end = "RECEIVE the Error message and END CONVERSATION here"
    if code is None:
        return end
    if code > 0:
        return f"the far application ended the dialog with its own error {code}: ask there; {end}"
    told = _BY_ERROR.get(code)
    return end if told is None else f"{_filled(told, service=service)}; {end}"


def _filled(text: str, **values: str) -> str:
    """Fill in a text. Names of peers and applications may have braces, so they are never used as a format."""
    for name, value in values.items():
        text = text.replace(f"{{{name}}}", value)
    return text
