"""
How a dialog that begins here is secured, as the remote service bindings of its database say.

A binding forces security. Without one a dialog with ENCRYPTION = ON may not leave its instance: the daemon ends it with
error 9727 when it would have to. The original's default is ON; here it is ON in a database that has a certificate, so
one without does what it did before it knew of security.

Source: Service Broker documentation, "Determining the Dialog Security Type", "BEGIN DIALOG CONVERSATION".
"""

from __future__ import annotations

import sqlite3

from broker.store.rows import ask

_BINDING = "SELECT remote_principal, is_anonymous_on FROM broker_remote_service_binding WHERE remote_service_name = ?"
_HAS_CERTIFICATE = "SELECT 1 FROM broker_database WHERE certificate IS NOT NULL"


def secure(
    db: sqlite3.Connection, conversation_id: bytes, far_service: str, now: float, *, encryption: bool | None
) -> None:
    """
    Note how a dialog is secured, from its beginning on.

    Args:
        db: Inside a transaction; an application's own connection.
        conversation_id: Of the new dialog.
        far_service: Its target.
        now: UTC seconds since 1970.
        encryption: As the application says; None = whether this database has a certificate.
    """
    binding = ask(db, _BINDING, (far_service,)).fetchone()
    if encryption is None:
        encryption = ask(db, _HAS_CERTIFICATE).fetchone() is not None
    if binding is None and not encryption:
        return
    # What knows of keys is slow to import, and most dialogs have none.
    import secrets  # noqa: PLC0415

    from broker.security.key_packet import SECRET_BYTES, Mode  # noqa: PLC0415
    from broker.security.session import Secured  # noqa: PLC0415
    from broker.store.secured import put_secured  # noqa: PLC0415

    secured = Secured(None)
    if binding is not None:
        principal, is_anonymous = binding
        secured = Secured(Mode.FULL, principal)
        if is_anonymous:
            secured = Secured(Mode.ANONYMOUS, principal, secrets.token_bytes(SECRET_BYTES))
    put_secured(db, conversation_id, secured, now, is_initiator=True)
