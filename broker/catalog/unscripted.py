"""
Unscripted: the definitions in a database that no script of the configuration names.

Scripts only add, so what was removed from one stays until it is dropped. An object that a dry run of the scripts finds
in the files and that no statement names was removed from a script, or was made by `broker sql`. Nothing shows which, so
it is only reported, and dropped on demand. Services and queues are only reported: conversations and messages would be
lost with them.

Left out are: databases without scripts, where all is made by hand; AutoCreatedLocal; what `broker partner import` has
made; routes with a LIFETIME, which end by themselves; the service and queue of requests for routes, which the daemon
makes; message types, contracts and priorities.
"""

from __future__ import annotations

import glob
from collections.abc import Container, Iterator
from itertools import chain
from typing import NamedTuple

from broker.advice import render_name
from broker.catalog.catalog import MSDB, Catalog, Database
from broker.catalog.dry_run import DryDatabase, DryRun
from broker.config.settings import Settings
from broker.ddl.render import render_statement
from broker.ddl.statements import (
    CreateRoute,
    DropQueue,
    DropRemoteServiceBinding,
    DropRoute,
    DropService,
    QueueName,
    RevokePermission,
    Statement,
)
from broker.dialog.route_requests import QUEUE as ROUTE_ANSWERS
from broker.net.certificates import holders, trusted_files
from broker.routing.route import AUTO_CREATED_LOCAL, SERVICE_BROKER, Route
from broker.security.grants import Permission, PermissionRule, render_rule
from broker.security.principal import Who

PARTNER_NAME = "partner:"  # how the routes and bindings of an import begin
PARTNER_FILE = "partner-"  # and the files of its certificates
IMPORT_AGAIN = (
    "broker partner import FILE again for each partner, with --via where it was; of those that have left, remove the"
    " files partner-*"
)
ROUTES_COMPARED = 1000  # a new database has fewer


class Unscripted(NamedTuple):
    """
    One object that no script names, such as "the route [r]", and the statement that drops it.

    Attributes:
        is_prunable: Whether a reload that prunes drops it.
    """

    database: DryDatabase
    what: str
    drop: Statement
    is_prunable: bool = True

    @property
    def script(self) -> str:
        """The statement with its database, ready to run."""
        return f"USE {render_name(self.database.name)}; {render_statement(self.drop)}"


def unscripted(run: DryRun) -> Iterator[Unscripted]:
    """Yield what the databases have and the scripts do not name; reads the certificates of partners. Blocking."""
    databases = [one for one in run.databases.values() if one.is_scripted]
    partners = _partners(run.settings) if databases else []
    for database in databases:
        for route in database.routes.values():
            if is_unscripted(database, route):
                yield Unscripted(database, f"the route {render_name(route.name)}", DropRoute(route.name))
        for name in database.rows.bindings:
            if ("REMOTE SERVICE BINDING", name) not in database.mentioned and not name.startswith(PARTNER_NAME):
                yield Unscripted(database, f"the binding {render_name(name)}", DropRemoteServiceBinding(name))
        for name in database.rows.services:
            if ("SERVICE", name) not in database.mentioned and name != SERVICE_BROKER:
                yield Unscripted(database, f"the service {render_name(name)}", DropService(name), is_prunable=False)
        for name in database.rows.queues:
            if ("QUEUE", name) not in database.mentioned and name != ROUTE_ANSWERS:
                drop = DropQueue(QueueName(name))
                yield Unscripted(database, f"the queue {render_name(name)}", drop, is_prunable=False)
        bound = {one.remote_principal for name, one in database.rows.bindings.items() if name.startswith(PARTNER_NAME)}
        for rule in database.rows.permissions:  # those of a partner are not in scripts, though its certificate be gone
            is_of_partner = rule.principal.text in bound or _is_of(rule, partners)
            if rule not in database.permission_statements and not is_of_partner:
                revoke = RevokePermission(rule.permission, _securable(database, rule), (rule.principal.text,))
                yield Unscripted(database, shown_rule(database, rule), revoke)


def is_unscripted(database: DryDatabase, route: Route) -> bool:
    """Whether no script of a database with scripts names a route that stays until it is dropped."""
    is_named = route.name in database.statements or ("ROUTE", route.name) in database.mentioned
    is_own = route.lifetime is not None or route.name == AUTO_CREATED_LOCAL.name
    return database.is_scripted and not (is_named or is_own or route.name.startswith(PARTNER_NAME))


def not_there(database: DryDatabase, there: Container[str | PermissionRule]) -> Iterator[tuple[str, str]]:
    """Yield the routes and rules that scripts make and that are not `there`, each with the statement that makes it."""
    for name, statement in database.statements.items():
        if name in database.routes and name not in there and database.routes[name].lifetime is None:
            create = render_statement(statement) if isinstance(statement, CreateRoute) else "CREATE ROUTE ...;"
            yield f"the route {render_name(name)}", create
    for rule in database.permission_statements:
        if rule in database.rows.permissions and rule not in there:
            yield shown_rule(database, rule), f"{shown_rule(database, rule)};"


def shown_rule(database: DryDatabase, rule: PermissionRule) -> str:
    """Return a rule as the statement that makes it at this instance."""
    return render_rule(rule.state, rule.permission, _securable(database, rule), rule.principal.text)


def _securable(database: DryDatabase, rule: PermissionRule) -> str:
    return database.settings.instance.name if rule.permission is Permission.CONNECT else rule.securable


def lost_imports(settings: Settings, catalog: Catalog) -> list[str]:
    """
    The databases that lack what `broker partner import` makes, while its certificates are here: they are new.

    msdb is one only if no database has an import: permissions alone may have been revoked.

    Cost: bounded, whatever the number of routes. Blocking for the names of files only.
    """
    is_known = _has_file(settings.endpoint.peers)
    has_nowhere = is_known and not any(map(_has_import, catalog.databases.values()))
    lost = [MSDB] if has_nowhere and not catalog.msdb.rows.permissions else []
    for name, one in settings.databases.items():
        database = catalog.databases.get(name)
        if database is not None and not _has_import(database) and (has_nowhere or _has_file(one.peers)):
            lost.append(name)
    return lost


def import_again(database: DryDatabase) -> str:
    """The remedy for a database without routes, where the certificates of its partners are here; "" elsewhere."""
    databases = database.settings.databases
    one = None if len(databases) == 1 else databases.get(database.name)
    patterns = database.settings.endpoint.peers if one is None else one.peers
    has_import = any(name.startswith(PARTNER_NAME) for name in (*database.rows.bindings, *database.routes))
    return IMPORT_AGAIN if _has_file(patterns) and not has_import else ""


def _has_file(patterns: tuple[str, ...]) -> bool:
    return any(path.name.startswith(PARTNER_FILE) for path in trusted_files(patterns))


def _has_import(database: Database) -> bool:
    names = chain(database.rows.bindings, (route.name for route in database.table))
    return database.table.count > ROUTES_COMPARED or any(name.startswith(PARTNER_NAME) for name in names)


def _partners(settings: Settings) -> list[Who]:
    """The principals whose certificates an import has stored; a file that cannot be read is reported for itself."""
    patterns = [settings.endpoint.peers, *(one.peers for one in settings.databases.values())]
    files = [path for some in patterns for path in trusted_files(some) if path.name.startswith(PARTNER_FILE)]
    return list(holders(tuple(glob.escape(str(path)) for path in files)))


def _is_of(rule: PermissionRule, partners: list[Who]) -> bool:
    return not rule.principal.is_pattern and any(map(rule.principal.covers, partners))
