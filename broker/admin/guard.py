"""
Keeping web pages away from the admin API on its TCP port.

The port is on loopback and asks for no password, and a browser on the machine runs the scripts of strangers. Two header
fields, which a script cannot forge, tell them apart: `Host` must name loopback, so that a name somebody points at
127.0.0.1 (DNS rebinding) is refused; `Origin`, which a browser adds, must be this very server.
"""

from __future__ import annotations

from urllib.parse import urlsplit

from broker.control.listen import ListenAddress


def refusal(host: str | None, origin: str | None) -> str | None:
    """Why a request with these header fields is refused; None when it is not."""
    if host is None or not _is_loopback(host):
        return f"Host is {host!r}; only loopback addresses and localhost are answered"
    if origin is not None and origin.lower() != f"http://{host}".lower():
        return f"Origin is {origin!r}; pages of other sites may not use this interface"
    return None


def _is_loopback(host: str) -> bool:
    try:
        name = urlsplit(f"//{host}").hostname
    except ValueError:
        return False
    return name is not None and ListenAddress(name, 0).is_loopback
