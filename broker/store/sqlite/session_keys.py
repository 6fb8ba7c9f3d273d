"""
How a side of a dialog is secured, from its beginning until its tombstone is removed; a side in clear has no row.

The functions may run in an application's own transaction: they neither begin nor end one.
"""

from __future__ import annotations

import sqlite3

from broker.security.secured import Mode, Secured

UNSEALABLE = (
    "in clear within this instance, which it may not leave"  # of a dialog that is to be sealed, to no principal
)
NONE = "NONE"  # `broker_session_key.security` without a mode

_PUT_KEY = (
    "INSERT OR REPLACE INTO broker_session_key (conversation_id, is_initiator, security, far_principal,"
    " far_certificate, security_timestamp, secret) VALUES (?, ?, ?, ?, ?, ?, ?)"
)
_SET_CERTIFICATE = (
    "UPDATE broker_session_key SET far_certificate = ?1 WHERE conversation_id = ?2 AND is_initiator = ?3"
    " AND far_certificate IS NOT ?1"
)
_FORGET_KEY = (
    "DELETE FROM broker_session_key WHERE (conversation_id, is_initiator) ="
    " (SELECT conversation_id, is_initiator FROM broker_conversation WHERE endpoint_id = ?)"
    " AND (conversation_id, is_initiator) NOT IN (SELECT conversation_id, is_initiator FROM broker_tombstone)"
)

OWN_PRINCIPAL_SQL = """
    (SELECT d.certificate FROM broker_database d, broker_session_key k WHERE k.security = 'FULL'
     AND k.conversation_id = c.conversation_id AND k.is_initiator = c.is_initiator)
"""  # which a side proves to be; its columns are named `c.`


def secured_of(security: str | None, far_principal: str | None, secret: bytes | None) -> Secured | None:
    """Return the security of a side from the columns of its row; None where there is no row."""
    if security is None:
        return None
    return Secured(None if security == NONE else Mode(security), far_principal or "", secret or b"")


def load_secured(db: sqlite3.Connection, conversation_id: bytes, *, is_initiator: bool) -> Secured | None:
    """How this side is secured, whether it is there or its tombstone."""
    query = "SELECT security, far_principal, secret FROM broker_session_key"
    key = (conversation_id, is_initiator)
    row = db.execute(f"{query} WHERE conversation_id = ? AND is_initiator = ?", key).fetchone()
    return None if row is None else secured_of(*row)


def put_secured(
    db: sqlite3.Connection,
    conversation_id: bytes,
    secured: Secured,
    now: float,
    *,
    is_initiator: bool,
    certificate: str = "",
) -> None:
    """
    Keep how a side is secured from now on.

    Args:
        db: Inside a transaction.
        conversation_id: Of the dialog.
        secured: How.
        now: UTC seconds since 1970.
        is_initiator: Which side.
        certificate: SHA-256 of the far side's signing certificate in hexadecimal digits, empty where it is not known.
    """
    security = NONE if secured.mode is None else str(secured.mode)
    shown = f"sha256:{certificate}" if certificate else None
    values = (security, secured.far_principal or None, shown, now, secured.secret or None)
    db.execute(_PUT_KEY, (conversation_id, is_initiator, *values))


def forget_key(db: sqlite3.Connection, endpoint_id: int) -> None:
    """Forget how a side was sealed, before its row is removed, unless its tombstone needs it."""
    db.execute(_FORGET_KEY, (endpoint_id,))


def note_certificate(db: sqlite3.Connection, conversation_id: bytes, certificate: str, *, is_initiator: bool) -> None:
    """The certificate that the far side has proved to have, SHA-256 in hexadecimal digits; it may have a new one."""
    db.execute(_SET_CERTIFICATE, (f"sha256:{certificate}", conversation_id, is_initiator))


def note_own_certificate(db: sqlite3.Connection, subject: str | None) -> None:
    """The subject of this database's certificate, for those who begin dialogs in it; None = it has none."""
    db.execute("UPDATE broker_database SET certificate = ?1 WHERE certificate IS NOT ?1", (subject,))


def sentence_sql(schema: str) -> str:
    """
    Return SQL of one sentence about how a side is secured: the principal that it is sealed to, or why it is not sealed.

    The SQL is for a query in which the columns of the side are named `c.`; its far service is null where that is no
    longer known. `schema` is that of the tables, as it is written before their names.
    """
    known = "coalesce(' (' || substr(k.far_certificate, 1, 19) || '...)', '')"
    return (
        "coalesce((SELECT CASE"  # noqa: S608 - of the callers' own literals
        f" WHEN k.security = 'FULL' THEN 'sealed to ' || k.far_principal || {known} || ', full'"
        " WHEN k.security = 'ANONYMOUS' AND k.is_initiator THEN"
        f" 'sealed to ' || k.far_principal || {known} || ', anonymous: it does not learn who sends'"
        " WHEN k.security = 'ANONYMOUS' THEN 'sealed to whoever began it, anonymous'"
        f" WHEN k.is_initiator THEN '{UNSEALABLE}: no remote service binding'"
        f" || coalesce(' for ' || c.far_service, '')"
        " ELSE 'in clear: it began within this instance' END"
        f" FROM {schema}broker_session_key k"
        " WHERE k.conversation_id = c.conversation_id AND k.is_initiator = c.is_initiator),"
        f" CASE WHEN c.far_service IS NULL THEN 'in clear'"
        f" WHEN c.is_initiator THEN 'in clear: no remote service binding for ' || c.far_service"
        " ELSE 'in clear: its initiator does not seal it' END)"
    )
