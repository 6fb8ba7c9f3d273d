"""
The views of who may do what, and of remote service bindings.

Principals are texts here and have no numbers, so the columns of the original that hold numbers of principals are NULL,
and the texts stand in columns of our own.

Source: SQL documentation, "sys.server_permissions", "sys.database_permissions"; Service Broker documentation,
"sys.remote_service_bindings".
"""

from __future__ import annotations

from collections.abc import Mapping

from broker.store.file_view import FileView

SERVER_PERMISSIONS = "sys.server_permissions"  # of the instance: whatever database is asked, those of msdb
_SERVICE, _ENDPOINT = 17, 105  # classes of the original
_STATE = "CASE p.state WHEN 'GRANT' THEN 'G' ELSE 'D' END"


def _permissions(class_id: int, class_desc: str, major_id: str, letters: str, permission: str) -> FileView:
    """Those of one class; the securable that is a pattern has no number."""
    return FileView(
        {
            "class": str(class_id),
            "class_desc": f"'{class_desc}'",
            "major_id": major_id,
            "minor_id": "0",
            "grantee_principal_id": "NULL",
            "grantor_principal_id": "NULL",
            "type": f"'{letters}'",
            "permission_name": "p.permission",
            "state": _STATE,
            "state_desc": "p.state",
            "securable_name": "p.securable",
            "grantee_name": "p.principal",
        },
        f"{{db}}.broker_permission p WHERE p.permission = '{permission}'",
    )


_SERVICE_ID = "(SELECT s.service_id FROM {db}.broker_service s WHERE s.name = p.securable)"

PERMISSION_VIEWS: Mapping[str, FileView] = {
    SERVER_PERMISSIONS: _permissions(_ENDPOINT, "ENDPOINT", "1", "CO", "CONNECT"),
    "sys.database_permissions": _permissions(_SERVICE, "SERVICE", _SERVICE_ID, "SN", "SEND"),
    "sys.remote_service_bindings": FileView(
        {
            "name": "b.name",
            "remote_service_binding_id": "b.remote_service_binding_id",
            "principal_id": "NULL",
            "remote_service_name": "b.remote_service_name",
            "service_contract_id": "NULL",
            "remote_principal_id": "NULL",
            "is_anonymous_on": "b.is_anonymous_on",
            "remote_principal_name": "b.remote_principal",
        },
        "{db}.broker_remote_service_binding b",
    ),
}
