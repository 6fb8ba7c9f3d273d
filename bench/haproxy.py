"""HAProxy as one more hop of the forwarding benchmark."""

import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bench.forwarding import Hop, running
from examples.demo.topology import free_port

NAME = "HAProxy, TCP mode"
_CONFIG = """
global
    nbthread 1
    maxconn 5000
defaults
    mode tcp
    timeout connect 5s
    timeout client 1h
    timeout server 1h
listen hop
    bind 127.0.0.1:{port}
    server next 127.0.0.1:{to}
"""


def program() -> str | None:
    """The path of HAProxy, which distributions install beside the programs of the administrator."""
    return shutil.which("haproxy") or shutil.which("haproxy", path="/usr/sbin:/usr/local/sbin")


def version() -> str:
    """Its version, "absent" where it is not installed."""
    path = program()
    if path is None:
        return "absent"
    words = subprocess.run([path, "-v"], capture_output=True, text=True, check=False).stdout.split()
    return words[2] if len(words) > 2 else "unknown"


@contextmanager
def haproxy(directory: Path) -> Iterator[Hop]:
    """HAProxy with one thread."""
    path, port, to = program(), free_port(), free_port()
    assert path is not None
    config = directory / "haproxy.cfg"
    config.write_text(_CONFIG.format(port=port, to=to), encoding="utf-8")
    with running(NAME, [path, "-db", "-f", str(config)], port, to) as hop:
        yield hop
