"""`python -m examples.routing_service`: the command that answers requests for routes."""

import signal
from contextlib import suppress
from ipaddress import ip_address
from pathlib import Path

import click

from broker.cli.access import read_settings
from broker.cli.database import open_database
from broker.cli.exit_codes import ExitCode, exit_codes, fail
from broker.cli.options import CONFIG, DATABASE
from broker.config.units import parse_duration
from broker.observe.logs import configure_logging

from .answering import Answerer, Source
from .requester import Requesters
from .route_file import RouteFile
from .srv import SrvRoutes, dns_lookup


@click.command(params=[CONFIG, DATABASE])
@click.option("--queue", required=True, help="The queue of the service SQL/ServiceBroker/BrokerConfiguration.")
@click.option(
    "--from", "file", type=click.Path(path_type=Path, exists=True, dir_okay=False), help="A script of CREATE ROUTE."
)
@click.option("--srv", is_flag=True, help="Ask the DNS for SRV records of _broker._tcp, after the file.")
@click.option("--domain", help="Completes host names without a dot.")
@click.option("--nameserver", metavar="ADDRESS[:PORT]", help="The DNS server to ask; else those of the system.")
@click.option("--lifetime", default="1h", show_default=True, help="Of routes whose statement names none.")
@click.option(
    "--requester",
    "sockets",
    type=click.Path(path_type=Path),
    multiple=True,
    help="Admin socket of an instance whose databases ask; may be repeated. Else the configuration's.",
)
@click.option("--once", is_flag=True, help="Answer what waits now, then end.")
@exit_codes()
def main(
    config: Path | None,
    database: str,
    queue: str,
    sockets: tuple[Path, ...],
    *,
    file: Path | None,
    srv: bool,
    domain: str | None,
    nameserver: str | None,
    lifetime: str,
    once: bool,
) -> None:
    """
    Answer requests for missing routes.

    For each request the routes to the service are made in the database that asks, and the dialog is ended; with an
    error where there are none. SIGTERM ends the service after the request under way. Exit codes: 3 no such database or
    queue; with --once 4 when a request had to be left, because the instance that asks did not answer.
    """
    sources = _sources(file, lifetime, srv=srv, domain=domain, nameserver=nameserver)
    if not sources:
        raise click.UsageError("there is nothing to answer from: give --from FILE or --srv")
    requesters = Requesters(sockets or [read_settings(config).admin.socket])
    configure_logging(log_format="auto", level="info", instance="routes")
    with open_database(config, database) as db:
        answerer = Answerer(db, queue, sources=sources, requesters=requesters)
        if once:
            left = answerer.answer_waiting()
            if left:
                fail(f"{left} requests stay in {queue}: the instance that asks does not answer", ExitCode.UNREACHABLE)
            return
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: answerer.stop.set())
        answerer.run()


def _sources(
    file: Path | None, lifetime: str, *, srv: bool, domain: str | None, nameserver: str | None
) -> list[Source]:
    try:
        seconds = int(parse_duration(lifetime))
    except ValueError as error:
        raise click.BadParameter(f"{error}; such as 90s or 1h", param_hint="--lifetime") from error
    if not 1 <= seconds < 2**31:
        raise click.BadParameter("it is between 1s and 68 years", param_hint="--lifetime")
    sources: list[Source] = []
    if file is not None:
        sources.append(RouteFile(file, lifetime=seconds))
    if srv:
        try:
            lookup = dns_lookup(_nameserver(nameserver))
        except LookupError as error:
            raise click.UsageError(f"there is no DNS server to ask: {error}; give --nameserver") from error
        sources.append(SrvRoutes(lookup, domain=domain))
    return sources


def _nameserver(text: str | None) -> tuple[str, int] | None:
    """Shape: `192.0.2.1`, `192.0.2.1:5353` or `[2001:db8::1]:5353`."""
    if text is None:
        return None
    address, port = text, "53"
    if text.startswith("[") or text.count(":") == 1:
        address, _, after = text.removeprefix("[").rpartition(":")
        address, port = address.removesuffix("]"), after
    with suppress(ValueError):
        return str(ip_address(address)), int(port)
    raise click.BadParameter(f"{text!r} is no address, or address and port", param_hint="--nameserver")


if __name__ == "__main__":
    main(prog_name="routing_service")
