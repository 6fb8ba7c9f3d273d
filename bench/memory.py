"""
How much memory a gateway takes when the receiver never reads: pool limit and what is beside it.

A sender floods for some seconds; the next hop has said HELLO and reads nothing any more. Small frames, because those
cost the most memory for their bytes.
"""

import tempfile
from pathlib import Path

import psutil

from bench.generator import PREFIX
from bench.load import Sender, SilentReceiver, frames
from examples.demo.topology import Topology, free_port

POOL_MIB = 64
SETTINGS = {"endpoint": {"message_forward_size": f"{POOL_MIB}MiB", "message_forward_share": 100}}  # for one next hop
SECONDS = 8.0
PAYLOAD = 16
FRAMES = 250_000  # more than the pool holds, and all different: a copy of a held frame would be dropped as such


def run(payload: int = PAYLOAD) -> dict[str, float]:
    """MiB: resident before, at the end of the flood, and what was charged to the pool."""
    port = free_port()
    data = frames([f"//bench/service-{number:05d}" for number in range(10)], payload, count=FRAMES)
    with tempfile.TemporaryDirectory() as directory, Topology(Path(directory)) as net:
        hop = net.add("gateway", forwarding=True, settings=SETTINGS)
        hop.prefix = PREFIX
        net.script("gateway", "msdb", f"CREATE ROUTE r WITH ADDRESS = 'tcp://127.0.0.1:{port}';")
        receiver = SilentReceiver(port)
        net.start()
        process = psutil.Process(hop.pid)
        before = process.memory_info().rss
        sender = Sender(hop.port)
        sender.flood(data, seconds=SECONDS)
        after = process.memory_info().rss
        status = hop.status()["forwarding"]
        sender.close()
        receiver.close()
    mib = 2.0**20
    return {
        "resident before": before / mib,
        "resident in the flood": after / mib,
        "charged to the pool": status["pool_bytes"] / mib,
        "above the pool limit": after / mib - POOL_MIB,
        "frames held": float(status["held"]),
    }


if __name__ == "__main__":
    print(run())
