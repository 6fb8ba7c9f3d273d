"""
The grammar's rules about permissions and remote service bindings; a part of the builder.

Source: T-SQL documentation, "GRANT Service Broker Permissions", "GRANT Endpoint Permissions" and their kin, "CREATE
REMOTE SERVICE BINDING", "ALTER REMOTE SERVICE BINDING", "DROP REMOTE SERVICE BINDING".
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from broker.ddl.built import Built, RefusedError, checked_name
from broker.ddl.statements import (
    NAME,
    AlterRemoteServiceBinding,
    ChangePermission,
    CreateRemoteServiceBinding,
    DenyPermission,
    DropRemoteServiceBinding,
    GrantPermission,
    RevokePermission,
)
from broker.ddl.token import Token, place_of
from broker.protocol.layout import NAME_MAX_BYTES
from broker.security.grants import Permission
from broker.security.principal import PRINCIPAL_MAX, PrincipalError, parse_principal

_MADE: dict[str, type[ChangePermission]] = {
    "GRANT": GrantPermission,
    "DENY": DenyPermission,
    "REVOKE": RevokePermission,
}


class SecurityRules:
    """The methods by rule; holds no state."""

    def securable(self, parts: Sequence[Token]) -> Token:
        """The name behind `::`, that of a service of any instance."""
        token = checked_name(parts[0], NAME_MAX_BYTES)
        if len(token.encode()) > NAME_MAX_BYTES:
            raise RefusedError(103, f"the name of a service has at most {NAME_MAX_BYTES} bytes", token)
        return token

    def principal(self, parts: Sequence[Token]) -> Token:
        """Who is meant."""
        token = checked_name(parts[0], PRINCIPAL_MAX)
        try:
            parse_principal(token)
        except PrincipalError as error:
            raise RefusedError(15151, str(error), token) from None
        return token

    def principals(self, parts: Sequence[Token]) -> Sequence[Token]:
        """One or several, none twice."""
        seen: set[str] = set()
        for token in parts:
            text = parse_principal(token).text
            if text in seen:
                raise RefusedError(102, f"the principal {str(token)!r} is given twice; remove one", token)
            seen.add(text)
        return parts

    def change_permission(self, parts: Sequence[Any]) -> Built:
        """GRANT, DENY or REVOKE SEND ON SERVICE::name, or CONNECT ON ENDPOINT::name."""
        verb, permission, securable, principals = parts
        names = tuple(str(one) for one in principals)
        make = partial(_MADE[verb.type], Permission(permission.type), str(securable), names)
        return Built(make, {NAME: place_of(securable), "PRINCIPAL": place_of(principals[0])})

    def binding_options(self, parts: Sequence[Any]) -> dict[str, Any]:
        """The principal, and whether it is anonymous."""
        values: dict[str, Any] = {}
        for key, value in parts:
            if key.type in values:
                raise RefusedError(102, f"{key.type} is given twice", key)
            values[key.type] = value
        return values

    def binding_option(self, parts: Sequence[Any]) -> Sequence[Any]:
        """An option and its value."""
        return parts

    def create_binding(self, parts: Sequence[Any]) -> Built:
        """CREATE REMOTE SERVICE BINDING name [AUTHORIZATION owner] TO SERVICE 'service' WITH USER = principal ..."""
        name, owner, service, values = parts
        if "USER" not in values:
            raise RefusedError(102, "CREATE REMOTE SERVICE BINDING needs USER", name)
        if not 1 <= len(service.encode("utf-8", "replace")) <= NAME_MAX_BYTES:
            raise RefusedError(103, f"the name of a service has 1 to {NAME_MAX_BYTES} bytes", service)
        user, is_anonymous = values["USER"], values.get("ANONYMOUS", False)
        make = partial(
            CreateRemoteServiceBinding, str(name), str(service), str(user), anonymous=is_anonymous, owner=owner
        )
        return Built(make, {NAME: place_of(name), "SERVICE": place_of(service), "USER": place_of(user)})

    def alter_binding(self, parts: Sequence[Any]) -> Built:
        """ALTER REMOTE SERVICE BINDING name WITH ..."""
        name, values = parts
        user = values.get("USER")
        make = partial(
            AlterRemoteServiceBinding,
            str(name),
            user=None if user is None else str(user),
            anonymous=values.get("ANONYMOUS"),
        )
        places = {NAME: place_of(name)} | ({} if user is None else {"USER": place_of(user)})
        return Built(make, places)

    def drop_binding(self, parts: Sequence[Token]) -> Built:
        """DROP REMOTE SERVICE BINDING name."""
        return Built(partial(DropRemoteServiceBinding, str(parts[0])), {NAME: place_of(parts[0])})
