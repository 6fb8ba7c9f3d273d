"""`broker bench`: measure running instances."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

import click

from broker.bench import dialogs as dialogs_bench
from broker.bench import forwarding as forwarding_bench
from broker.cli.access import read_settings
from broker.cli.options import FILE, UNREAD, Group, Output, Parsed, network_address
from broker.cli.output import show_rows
from broker.net.certificates import security_of
from broker.net.tls import NO_SECURITY
from broker.routing.address import NetworkAddress

PAYLOAD_MAX = 1_000_000  # bytes: with its header no larger than the usual max_frame
_ADDRESS = Parsed("tcp://host:port", network_address)


@click.group(cls=Group)
def bench() -> None:
    """
    Measure running instances: messages a second, and latencies.

    Examples:
        broker bench forwarding --address tcp://127.0.0.1:4022
        broker bench dialogs orders.db billing.db
    """


messages_option = click.option("--messages", type=click.IntRange(min=1), default=100_000, help="Messages of the flood.")
size_option = click.option("--size", type=click.IntRange(8, PAYLOAD_MAX), default=1024, help="Bytes of each message.")


@bench.command()
@click.option("--address", type=_ADDRESS, required=True, help="Where the gateway listens.")
@click.option(
    "--listen",
    type=_ADDRESS,
    default="tcp://127.0.0.1:5022",
    help="Where this command listens, as the gateway reaches it.",
)
@click.option("--connections", type=click.IntRange(min=1), default=1, help="Connections to the gateway.")
@messages_option
@size_option
@click.option(
    "-c",
    "--config",
    type=UNREAD,
    help="Connect as this configuration's endpoint, with its certificate; without it in plain text.",
)
def forwarding(
    *,
    address: NetworkAddress,
    listen: NetworkAddress,
    connections: int,
    messages: int,
    size: int,
    config: Path | None,
    output: Output,
) -> None:
    """
    Measure how many messages a gateway forwards, and how fast.

    The gateway needs a route of //bench/Target to the address where this command listens. Messages are discarded on
    arrival: nothing is stored. At high rates this command needs as much of a core as the gateway, so run it where a
    core is free.

    Exit codes: 0 measured, whatever the figures say; 1 not.

    Examples:
        broker bench forwarding --address tcp://127.0.0.1:4022
        broker bench forwarding --address tcp://gateway:4022 --listen tcp://sender:5022 --size 256 --connections 4
    """
    security = security_of(read_settings(config)) if config is not None else NO_SECURITY
    _show(
        asyncio.run(
            forwarding_bench.measure(
                address, listen, messages=messages, payload=size, connections=connections, security=security
            )
        ),
        output,
    )


@bench.command()
@click.argument("initiator", type=FILE)
@click.argument("target", type=FILE)
@click.option("--batch", type=click.IntRange(min=1), default=100, help="Messages in a transaction.")
@click.option("--dialogs", type=click.IntRange(min=1), default=8, help="Dialogs with messages.")
@messages_option
@size_option
def dialogs(
    *, initiator: Path, target: Path, batch: int, dialogs: int, messages: int, size: int, output: Output
) -> None:
    """
    Measure durable messages from one database to another.

    INITIATOR and TARGET are the files of two databases of running instances on this machine, or twice the same. They
    need the services //bench/Initiator and //bench/Target, each on a queue BenchQueue, and routes to each other. The
    dialogs are ended afterwards.

    Exit codes: 0 measured, whatever the figures say; 1 not.

    Examples:
        broker bench dialogs orders.db billing.db
        broker bench dialogs orders.db billing.db --messages 1000 --batch 1 -o json
    """
    _show(
        dialogs_bench.measure(initiator, target, messages=messages, payload=size, batch=batch, dialogs=dialogs), output
    )


def _show(rows: Sequence[forwarding_bench.Figures], output: str) -> None:
    if output != "json":
        rows = [{name: f"{one:,.0f}" if isinstance(one, float) else one for name, one in row.items()} for row in rows]
    show_rows(rows, output)
