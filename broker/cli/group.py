"""
The command `broker` and the table of its commands.

`serve` runs the daemon in the foreground; the others talk to a running one over its admin socket, or work on a
database file. What a machine reads goes to standard output, everything else to standard error. Whatever is slow to
import is imported by the command that needs it, in its function.

Exit codes: 0 success; 1 error; 2 usage; 3 not found; 4 daemon unreachable; 5 not permitted; 6 refused because it would
do harm; 7 timed out; `serve` also 75 (port taken, store locked) and 78 (bad configuration).
"""

from __future__ import annotations

import click

from broker.cli.asking import sql, status
from broker.cli.audit import audit
from broker.cli.bench import bench
from broker.cli.certs import certs
from broker.cli.database import database
from broker.cli.dialog import receive, send
from broker.cli.dialogs import dialogs
from broker.cli.explaining import explain
from broker.cli.flows import flows
from broker.cli.pair import pair
from broker.cli.pipeline_jobs import pipeline
from broker.cli.quarantine import quarantine
from broker.cli.routes import routes
from broker.cli.run import run
from broker.cli.serving import check, demo, serve
from broker.cli.token import token
from broker.cli.why import why


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(package_name="broker", prog_name="broker")
def main() -> None:
    """
    A Service-Broker-style message router and forwarder.

    Exit codes: 0 success, 1 error, 2 usage, 3 not found, 4 daemon unreachable, 5 not permitted, 6 refused because it
    would do harm, 7 timed out; serve also 75 (port taken, store locked) and 78 (bad configuration).
    """


for _command in (
    serve,
    check,
    explain,
    demo,
    send,
    receive,
    sql,
    status,
    routes,
    database,
    bench,
    run,
    quarantine,
    certs,
    pair,
    why,
    dialogs,
    flows,
    pipeline,
    token,
    audit,
):
    main.add_command(_command)
