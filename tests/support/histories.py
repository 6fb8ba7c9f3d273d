"""Journals of made-up instances, of any length: orders, gateways and billing, and what goes wrong between them."""

from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.support.journalled import START, visit, write

MESSAGES_EACH = 10  # of a dialog
SECONDS = 0.1  # from one message to the next


def generate(directory: Path, *, messages: int, instances: int = 3) -> None:
    """
    Write what a third of the instances sent, through another third, to the last.

    Every message is delivered and acknowledged in the end. Of a hundred, one is lost on its first way, one dropped by
    its gateway, and one sent again because its acknowledgement was lost.
    """
    third = instances // 3
    files: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for number in range(messages):
        dialog, sequence = divmod(number, MESSAGES_EACH)
        names = [f"{kind}-{dialog % third}" for kind in ("orders", "gateway", "billing")]
        shared = {
            "conversation_id": dialog.to_bytes(16, "big"),
            "sequence_number": sequence,
            "from_service": f"//synthetic/{names[0]}",
            "to_service": f"//synthetic/{names[2]}",
        }
        for one in _visits(number, *names):
            files[one["instance"]].append({**one, **shared})
    hour = directory / f"date={START:%Y-%m-%d}/hour={START:%H}"
    for number, (name, rows) in enumerate(files.items()):
        write(hour / f"{name}-000001-00000001.parquet", *rows, instance=name, file=f"{number:032x}")


def _visits(number: int, orders: str, gateway: str, billing: str) -> Iterator[dict[str, Any]]:
    """What becomes of one message."""
    at = number * SECONDS
    fate = {17: "lost", 41: "dropped", 73: "duplicate"}.get(number % 100)
    for attempt in range(2 if fate else 1):
        is_last = attempt == 1 or not fate
        message: dict[str, Any] = {"message_id": (2 * number + attempt).to_bytes(16, "big")}
        out: dict[str, Any] = {
            "route": "ToBilling",
            "adjacent_out": f"tcp://{gateway}.example:4022",
            "route_table": "orders",
        }
        yield visit(at, instance=orders, outcome="resent" if attempt else "sent", **message, **out)
        at += 0.002
        if fate == "dropped" and not is_last:
            yield visit(at, instance=gateway, outcome="dropped", reason="no route", code=9798, **message)
        else:
            out = {"route": "ToBilling", "adjacent_out": f"tcp://{billing}.example:4022", "route_table": "msdb"}
            yield visit(at, instance=gateway, adjacent_in=orders, **message, **out)
        at += 0.002
        if is_last or fate == "duplicate":
            outcome = "duplicate" if attempt and fate == "duplicate" else "delivered"
            yield visit(at, instance=billing, outcome=outcome, hop_count=1, adjacent_in=gateway, **message)
        if is_last:
            yield visit(number * SECONDS, took=0.01, instance=orders, outcome="acknowledged", **message)
        at += 0.02
