"""
The routes of a synthetic history as scripts, and a change of them that `plan` can be asked about.

`scripts/<instance>.sql` make the routes by which frames went while nothing was wrong; `change/<instance>.sql` are to be
carried out on them: a gateway forgets the routes to one service, and another sends what is for a second service
straight to its endpoint. What that comes to is known without asking a router.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from broker.pipeline.synthetic.rows import GATEWAY_TABLE, route_of, table_of
from broker.pipeline.synthetic.world import SERVICES_EACH, World

ROUTES, CHANGE = "scripts", "change"


def write_scripts(directory: Path, world: World) -> dict[str, Any]:
    """Write them. Returns what changes, for the truth: instance and service that lose a way, and that get another."""
    for name in (ROUTES, CHANGE):
        (directory / name).mkdir()
    for node, name in enumerate(world.names):
        made = [_create(world, node, number) for number in range(len(world.services)) if _hop(world, node, number) >= 0]
        table = table_of(name)
        use = [] if table == GATEWAY_TABLE else [f"USE [{table}];"]
        (directory / ROUTES / f"{name}.sql").write_text("\n".join([*use, *made, ""]), encoding="utf-8")
    endpoint = int(world.targets[0])
    service = world.initiators.size
    loses = int(world.gateways[np.argmax(world.next_hop[world.gateways, endpoint] == endpoint)])
    drop = f"DROP ROUTE [{route_of(world.services[service])}];\n"
    (directory / CHANGE / f"{world.names[loses]}.sql").write_text(drop, encoding="utf-8")
    told: dict[str, Any] = {"loses": {"instance": world.names[loses], "service": world.services[service]}}
    inner = [node for node in world.gateways if node != loses and world.next_hop[node, endpoint] != endpoint]
    if inner:
        node, other = int(inner[0]), service + 1
        route, address = route_of(world.services[other]), world.address(endpoint)
        alter = f"ALTER ROUTE [{route}] WITH ADDRESS = N'{address}';\n"
        (directory / CHANGE / f"{world.names[node]}.sql").write_text(alter, encoding="utf-8")
        told["other_path"] = {"instance": world.names[node], "service": world.services[other], "address": address}
    return told


def _endpoint(world: World, service: int) -> int:
    """Where a service is."""
    if service < world.initiators.size:
        return service
    return int(world.targets[(service - world.initiators.size) // SERVICES_EACH])


def _hop(world: World, node: int, service: int) -> int:
    endpoint = _endpoint(world, service)
    return -1 if node == endpoint else int(world.next_hop[node, endpoint])


def _create(world: World, node: int, service: int) -> str:
    name, address = world.services[service], world.address(_hop(world, node, service))
    return f"CREATE ROUTE [{route_of(name)}] WITH SERVICE_NAME = N'{name}', ADDRESS = N'{address}';"
