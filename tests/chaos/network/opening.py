"""Which kind of network this machine allows."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Literal

from tests.chaos.network.impairment import NetworkError
from tests.chaos.network.loopback import LoopbackNetwork
from tests.chaos.network.namespaces import NamespaceNetwork
from tests.chaos.network.network import Network

Kind = Literal["namespaces", "loopback"]


def open_network(directory: Path, *, seed: int = 0, kind: Kind | None = None) -> Network:
    """
    A network without hosts.

    Args:
        directory: Holds one for each host; made if it is not there.
        seed: Of the dice of all impairments.
        kind: The only kind wanted; None = namespaces if they can be made, else loopback, whose `reason` says why, or
            with BROKER_TEST_COMPLETE, which allows nothing to be left out, an error.

    Raises:
        NetworkError: that kind cannot be made.
    """
    directory.mkdir(parents=True, exist_ok=True)
    if kind == "loopback":
        return LoopbackNetwork(directory, seed=seed)
    try:
        return NamespaceNetwork(directory, seed=seed)
    except NetworkError as error:
        if kind is not None or os.environ.get("BROKER_TEST_COMPLETE"):
            raise
        return LoopbackNetwork(directory, seed=seed, reason=str(error))
