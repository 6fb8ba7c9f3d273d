"""
Remote service bindings: by whose certificate a far service is known.

Source: Service Broker documentation, "CREATE REMOTE SERVICE BINDING", "Determining the Dialog Security Type".
"""

from __future__ import annotations

from msgspec import Struct


class RemoteServiceBinding(Struct, frozen=True):
    """
    To whom conversations with a far service are sealed.

    Shape: `remote_principal` as `broker.security.principal` reads it; `is_anonymous_on` when the initiator does not
    show who it is, so that the target takes it for `public`.
    """

    name: str
    remote_service_name: str
    remote_principal: str
    is_anonymous_on: bool = False
