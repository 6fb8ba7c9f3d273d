"""
`GET /v1/events`: one snapshot every second as a value, with the growth since the last one, and the last ten minutes.

A row of counters is recorded every second, listeners or not; it costs a dozen additions, and the ring of them some 100
KiB. While clients listen, one `StatsStream` serves all of them: it remembers the counters of its last event, and which
connections ended lately. Nothing here reads an instance. Every list is cut to its biggest rows with the sums of the
rest, names to 200 characters and reasons to 800, since they come from peers and applications. The format is a contract,
documented in docs/admin.md.
"""

from __future__ import annotations

import heapq
from collections import Counter, deque
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, TypeVar

from msgspec import Struct, structs, to_builtins

from broker.dialog.send_queue import MICROSECONDS
from broker.observe.database_stats import DatabaseStats
from broker.observe.drops import DropSnapshot, remedy_of_drop
from broker.observe.health import NAME_MAX, TEXT_MAX, judge, shorten
from broker.observe.instance import Running
from broker.observe.metrics import BUCKETS
from broker.observe.snapshot import Snapshot
from broker.observe.sql_functions import render_instant
from broker.observe.status import ConnectionStatus, DatabaseStatus, Status, TransportStatus, struct_from
from broker.observe.status_rendering import STATUS, render_status
from broker.protocol.layout import show_guid

SECTIONS = (*STATUS, "by_route")
"""The sections of a snapshot that an event needs."""

ROWS_MAX = 600  # of the history: ten minutes
PEERS_MAX = NEXT_HOPS_MAX = ROUTES_MAX = DROPS_MAX = MIRRORS_MAX = 40  # what a page can show, and some 100 KiB in all
WAITING_MAX, DATABASES_MAX, CERTIFICATES_MAX, SCRIPTS_MAX, LISTEN_MAX = 30, 20, 20, 64, 20
GONE_SECONDS, GONE_MAX = 60.0, 40  # for which a connection that has ended is still shown, and how many
CERTIFICATE_DAYS = 30  # every certificate that ends within them is shown; own ones always are

RATED = ("received", "forwarded", "delivered", "dropped", "sent", "acknowledged")
LATENCIES = ("loop_lag_s", "hop_p50_s", "hop_p99_s", "ack_p50_s", "ack_p99_s")
COLUMNS = ("at", *RATED, "held", "pool_bytes", *LATENCIES)
_LINK_COUNTS = ("frames_received", "bytes_received", "bytes_sent")
_DATABASE_COUNTS = ("sent", "acknowledged", "delivered")
_SENTENCES = frozenset({"why", "do", "detail", "problem", "flow_reason", "alarm"})  # columns that are longer than names

Row = dict[str, Any]
Key = TypeVar("Key", bound=Hashable)


class Counters(Struct, frozen=True):
    """
    The dozen numbers that are recorded every second, listeners or not.

    They count dialog frames that passed the forwarder, messages of the databases here, and frames held now.

    Attributes:
        forwarded: Frames that came in and are neither delivered nor dropped nor held.
        hops: Number of frames by how long they were here, by position in `BUCKETS`.
        trips: Number of acknowledgements by how long they were under way, by position in `BUCKETS`.
    """

    received: int = 0
    forwarded: int = 0
    delivered: int = 0
    dropped: int = 0
    sent: int = 0
    acknowledged: int = 0
    held: int = 0
    pool_bytes: int = 0
    hops: tuple[float, ...] = ()
    trips: tuple[float, ...] = ()


def read_counters(instance: Running) -> Counters:
    """At this moment. Loop-only. Cost: the next hops and the services that have sent."""
    forwarder = instance.forwarder
    transmitters = [endpoint.transmitter for endpoint in instance.endpoints.values()]
    return struct_from(
        Counters,
        forwarder,
        received=forwarder.received.total(),
        forwarded=forwarder.passed_on,
        dropped=forwarder.dropped.total(),
        sent=sum(transmitter.sent.total() for transmitter in transmitters),
        acknowledged=sum(transmitter.acknowledged.total() for transmitter in transmitters),
        held=forwarder.pool.frames,
        pool_bytes=forwarder.pool.used_bytes,
        hops=tuple(forwarder.hop.counts),
        trips=_trips(transmitter.round_trips for transmitter in transmitters),
    )


def _trips(parts: Iterable[Counter[Any]]) -> tuple[float, ...]:
    """Of all next hops together."""
    counts = [0] * len(BUCKETS)
    for (_, bucket), count in (one for part in parts for one in part.items()):
        if bucket != MICROSECONDS:
            counts[bucket] += count
    return tuple(counts)


class Rates:
    """
    Growth of counters, per second, since the last update; for one reader.

    A counter that is smaller than before has restarted, so all of it is growth. One that was not there before grew from
    0; at the first update nothing is known. `seconds` have passed since the last one, 0.0 at the first.
    """

    def __init__(self) -> None:
        self._before: Mapping[Any, float] | None = None
        self._at = 0.0
        self.seconds = 0.0

    def update(self, counters: Mapping[Key, float], now: float) -> dict[Key, float | None]:
        """
        Return the rates by counter; None at the first update. Cost: O(counters).

        Args:
            counters: Their values now; kept until the next update, so never changed by the caller.
            now: Monotonic seconds.
        """
        before, self._before = self._before, counters
        self.seconds, self._at = now - self._at, now
        if before is None or self.seconds <= 0:
            self.seconds = 0.0
            return dict.fromkeys(counters)
        rates: dict[Key, float | None] = {}
        for key, count in counters.items():
            old = before.get(key, 0)
            rates[key] = round((count - old if count >= old else count) / self.seconds, 2)
        return rates


class StatsHistory:
    """A row a second of the last ten minutes, numbered from 1; `number` is the last one's. For one writer."""

    def __init__(self) -> None:
        self.number = 0
        self._rates = Rates()
        self._rows: deque[tuple[float | None, ...]] = deque(maxlen=ROWS_MAX)

    def record(self, counters: Counters, latency: Mapping[str, float | None], *, at: float, now: float) -> None:
        """
        Record one row.

        Args:
            counters: Of the instance at this moment.
            latency: Seconds by name; None or left out = not known.
            at: UTC seconds since 1970.
            now: Monotonic seconds.
        """
        rates = self._rates.update({name: getattr(counters, name) for name in RATED}, now)
        row = (round(at, 3), *rates.values(), counters.held, counters.pool_bytes, *map(latency.get, LATENCIES))
        self._rows.append(row)
        self.number += 1

    def since(self, number: int = 0) -> dict[str, Any]:
        """Return the rows after that number, as many of them as are still kept."""
        new = min(len(self._rows), max(0, self.number - number))
        return {"columns": COLUMNS, "rows": list(self._rows)[len(self._rows) - new :]}


class StatsStream:
    """Makes events one after the other, with the growth in between. For one caller."""

    def __init__(self) -> None:
        self._totals, self._links, self._routes = Rates(), Rates(), Rates()
        self._next_hops, self._drops, self._databases = Rates(), Rates(), Rates()
        self._present: dict[tuple[str, ...], Row] = {}
        self._gone: dict[tuple[str, ...], tuple[float, Row]] = {}
        self._names: dict[str, str] = {}  # of the peers that served an address, after they have gone as well

    def next(
        self,
        snapshot: Snapshot,
        counters: Counters,
        stats: Mapping[str, DatabaseStats | None],
        latency: Mapping[str, float | None],
        **problems: str,
    ) -> Row:
        """
        Return one event. Cost: the connections, the addresses and the routes of the instance.

        Args:
            snapshot: Has the sections of `SECTIONS`.
            counters: Of the same moment.
            stats: By database, None for a file that cannot be read; empty before the files were read first.
            latency: Seconds by the names of `LATENCIES`.
            problems: As for `render_status`.
        """
        now = snapshot.loop_time
        status = render_status(snapshot, stats, **problems)
        totals = {name: getattr(counters, name) for name in RATED}
        rates = self._totals.update(totals, now)
        peers, moved = self._peer_rows(status, now)
        frames = {(one.route, one.next_hop): one.frames for one in snapshot.by_route if one.next_hop is not None}
        drop_rates = self._drops.update(
            {(one.disposition.value, one.database): one.frames for one in snapshot.drops}, now
        )
        drops = [_drop(one, drop_rates[one.disposition.value, one.database], snapshot) for one in snapshot.drops]
        forwarding = status.forwarding
        return {
            "at": datetime.now(UTC).isoformat(timespec="milliseconds"),
            "seconds": round(self._totals.seconds, 3),
            "verdict": judge(status, loop_lag_s=latency.get("loop_lag_s"), drop_rates=drop_rates),
            "instance": _instance(status),
            "totals": {**totals, "held": counters.held, "pool_bytes": counters.pool_bytes}
            | {"unaccounted": forwarding.unaccounted},
            "rates": rates | moved,
            "pool": {
                "frames": forwarding.held,
                "bytes": forwarding.pool_bytes,
                "limit_bytes": forwarding.pool_limit_bytes,
            },
            "latency": latency,
            "ledger": _ledger(counters, stats, forwarding.unaccounted),
            "peers": peers,
            "next_hops": self._next_hop_rows(status, frames, now),
            "routes": self._route_rows(frames, now),
            "waiting": _waiting(status, stats),
            "drops": top_rows(drops, DROPS_MAX, weight=lambda one: one["frames"], sums=("frames", "frames_s")),
            "mirrors": [_bounded(to_builtins(one)) for one in status.mirrored_routes[:MIRRORS_MAX]],
            "databases": top_rows(
                self._database_rows(status, stats, now),
                DATABASES_MAX,
                weight=lambda one: one["waiting_messages"] or 0,
            ),
            "certificates": _certificates(status.transport),
            "transport": _transport(status.transport),
            "journal": status.journal,
            "scripts": [_bounded(structs.asdict(one)) for one in status.running_scripts[:SCRIPTS_MAX]],
            "draining": status.draining,
            "reload": status.reload,
        }

    # --- parts that remember ---

    def _peer_rows(self, status: Status, now: float) -> tuple[Row, Row]:
        """The connections, with those that ended lately; and the bytes that moved on all of them."""
        links: dict[tuple[str, ...], ConnectionStatus] = {
            (link.name, link.address, link.direction): link for link in status.connections
        }
        counters = {(*key, name): getattr(link, name) for key, link in links.items() for name in _LINK_COUNTS}
        rates = self._links.update(counters, now)
        present = {
            key: {**_link(link), "gone_s": None, **{f"{name}_s": rates[(*key, name)] for name in _LINK_COUNTS}}
            for key, link in links.items()
        }
        moved = {
            name: round(sum(row[f"{name}_s"] for row in present.values()), 2) if self._links.seconds else None
            for name in ("bytes_received", "bytes_sent")
        }
        self._remember_gone(present, now)
        gone = [{**row, "gone_s": round(now - since, 1)} for since, row in self._gone.values()]
        sums = [f"{name}_s" for name in _LINK_COUNTS]
        rows = top_rows([*gone, *present.values()], PEERS_MAX, weight=_link_weight, sums=sums)
        return {**rows, "count": len(status.connections)}, moved

    def _remember_gone(self, present: dict[tuple[str, ...], Row], now: float) -> None:
        names = {(row["name"], row["direction"]) for row in present.values()}
        for key in self._present.keys() - present.keys():
            row = self._present[key]
            self._gone[key] = now, {**row, "state": "GONE", **{f"{name}_s": 0.0 for name in _LINK_COUNTS}}
        for key, (since, row) in list(self._gone.items()):
            # Another of the same name has replaced it, or it is long ago.
            if (row["name"], row["direction"]) in names or now - since > GONE_SECONDS:
                del self._gone[key]
        while len(self._gone) > GONE_MAX:
            del self._gone[next(iter(self._gone))]
        self._present = present

    def _route_rows(self, frames: Mapping[tuple[str, str], int], now: float) -> Row:
        rates = self._routes.update(frames, now)
        rows = [
            {"route": route, "next_hop": hop, "frames": count, "frames_s": rates[route, hop]}
            for (route, hop), count in frames.items()
            if count
        ]
        return top_rows(rows, ROUTES_MAX, weight=_traffic, sums=("frames", "frames_s"))

    def _next_hop_rows(self, status: Status, frames: Mapping[tuple[str, str], int], now: float) -> Row:
        carried: Counter[str] = Counter()
        for (_, hop), count in frames.items():
            carried[hop] += count
        self._names = {address: one.peer or self._names.get(address, "") for address, one in status.addresses.items()}
        rates = self._next_hops.update(carried, now)
        rows = [
            {
                "address": address,
                **{name: getattr(one, name) for name in ("health", "problem", "held", "held_bytes")},
                "peer": self._names[address],
                "frames": carried[address],
                "frames_s": rates.get(address, 0.0 if self._next_hops.seconds else None),
            }
            for address, one in status.addresses.items()
        ]
        sums = ("held", "held_bytes", "frames", "frames_s")
        return top_rows(
            rows, NEXT_HOPS_MAX, weight=lambda one: (bool(one["problem"]), one["held"], _traffic(one)), sums=sums
        )

    def _database_rows(self, status: Status, stats: Mapping[str, DatabaseStats | None], now: float) -> list[Row]:
        """Those at work, and those whose principal is elsewhere; null is what is not known of a file."""
        counters = {
            (name, count): sum(getattr(service, count) for service in database.services.values())
            for name, database in status.databases.items()
            for count in _DATABASE_COUNTS
        }
        rates = self._databases.update(counters, now)
        mirrored = {name: role for name, role in status.mirroring.items() if role.source != "off"}
        rows = []
        for name in {**status.databases, **mirrored}:
            database, role = status.databases.get(name, DatabaseStatus()), status.mirroring.get(name)
            file = stats.get(name)
            rows.append(
                {
                    "name": name,
                    "broker_instance": database.broker_instance or (role.broker_instance if role else None),
                    "problem": database.problem or (role.problem if role else ""),
                    "role": mirrored[name].role if name in mirrored else None,
                    "sending_dialogs": database.sending_dialogs,
                    **{f"{count}_s": rates.get((name, count)) for count in _DATABASE_COUNTS},
                    "waiting_messages": database.waiting_messages,
                    "oldest_waiting_s": database.oldest_waiting_s,
                    "quarantined": database.quarantined,
                    "queues": file and [_bounded(to_builtins(queue)) for queue in file.queues],
                    "queue_count": file and file.queue_count,
                    "ledger": database.ledger and database.ledger.sentence,
                }
            )
        return rows


# --- lists of unknown length ---


def top_rows(
    rows: Sequence[Row], most: int, *, weight: Callable[[Row], Any], sums: Sequence[str] = ()
) -> dict[str, Any]:
    """
    Return the heaviest rows, and the sums of the others. Cost: O(rows * log most).

    Args:
        rows: All of them.
        most: Rows that are kept.
        weight: Returns the value that rows are ordered by; of equals the first are kept.
        sums: Columns that are added up over the rows that are not kept; what is not known counts as 0.

    Returns:
        `count` of all rows, `rows` the heaviest first, `folded` the `count` and the sums of the others.
    """
    kept = heapq.nlargest(most, rows, key=weight)
    left = len(rows) - len(kept)
    folded: dict[str, Any] = {"count": left}
    for column in sums:
        total = sum(row[column] or 0 for row in rows) if left else 0
        folded[column] = round(total - sum(row[column] or 0 for row in kept), 3) if left else 0
    return {"count": len(rows), "rows": [_bounded(row) for row in kept], "folded": folded}


def _bounded(value: Any, most: int = NAME_MAX) -> Any:
    """A value whose texts and names have a bound."""
    if isinstance(value, dict):
        return {
            shorten(name): _bounded(one, TEXT_MAX if name in _SENTENCES else NAME_MAX) for name, one in value.items()
        }
    return shorten(value, most) if isinstance(value, str) else value


# --- parts of one moment ---


def _instance(status: Status) -> Row:
    names = ("name", "software", "broker_instance", "started_at", "uptime_s", "ready", "loop", "kernel")
    return {name: _bounded(getattr(status, name)) for name in names} | {
        "state": "draining" if status.draining else "ready" if status.ready else "not ready",
        "listen": status.listen[:LISTEN_MAX],
        "is_gateway": status.forwarding.enabled,
    }


def _link(link: ConnectionStatus) -> Row:
    return {name: value for name, value in structs.asdict(link).items() if name not in {"bytes_received", "bytes_sent"}}


def _link_weight(row: Row) -> tuple[bool, float, float]:
    moved = (row["bytes_received_s"] or 0.0) + (row["bytes_sent_s"] or 0.0)
    return row["gone_s"] is not None or row["state"] != "LOGGED_IN", moved, row["frames_received"]


def _traffic(row: Row) -> tuple[float, float]:
    return row["frames_s"] or 0.0, row["frames"]


def _drop(drop: DropSnapshot, rate: float | None, snapshot: Snapshot) -> Row:
    fields = drop.fields
    last_at = None if drop.last_at is None else snapshot.utc(drop.last_at)
    return {
        "reason": drop.disposition.value,
        "number": drop.disposition.number or None,
        "database": drop.database,
        "frames": drop.frames,
        "frames_s": rate,
        "last_time": None if last_at is None else render_instant(last_at),
        "last_s": None if drop.last_at is None else max(0.0, snapshot.loop_time - drop.last_at),
        "detail": drop.reason or None,
        "do": remedy_of_drop(drop, snapshot.name),
        "to_service_name": fields.to_service_name,
        "from_service_name": fields.from_service_name,
        "conversation_id": None if fields.conversation_id is None else show_guid(fields.conversation_id),
        "message_id": None if fields.message_id is None else show_guid(fields.message_id),
        "message_sequence_number": fields.message_sequence_number,
        "hops_remaining": fields.hops_remaining,
    }


def _waiting(status: Status, stats: Mapping[str, DatabaseStats | None]) -> Row:
    """Return the messages that wait and why, at the gateway by next hop and in databases by service."""
    rows: list[Row] = [
        {
            "at": "next hop",
            "name": one.next_hop,
            "messages": one.held,
            "bytes": one.held_bytes,
            "oldest_s": one.oldest_s,
            "why": one.why,
            "next": _next(one.next_attempt_s),
        }
        for one in status.waiting
    ]
    rows += [
        {
            "at": "database",
            "name": f"{name} → {reason.far_service}",
            "messages": reason.messages,
            "bytes": None,
            "oldest_s": round(reason.oldest_s, 3),
            "why": reason.why or "it has just been sent",
            "next": None,
        }
        for name, known in stats.items()
        for reason in (() if known is None else known.reasons)
    ]
    return top_rows(rows, WAITING_MAX, weight=lambda one: one["messages"], sums=("messages",))


def _next(attempt_s: float | None) -> str | None:
    if attempt_s is None:
        return None
    return f"tried again in {attempt_s:.0f} s" if attempt_s >= 1 else "tried again now"


def _ledger(counters: Counters, stats: Mapping[str, DatabaseStats | None], unaccounted: int) -> Row:
    """The forwarder's in one sentence; the databases have their own."""
    sentence = (
        f"{counters.received:,} frames in = {counters.forwarded - unaccounted:,} forwarded"
        f" + {counters.delivered:,} delivered"
        f" + {counters.dropped:,} dropped + {counters.held:,} held"
    )
    return {
        "sentence": f"{sentence} + {unaccounted:,} UNACCOUNTED" if unaccounted else sentence,
        "unaccounted": unaccounted + sum(one.ledger.unaccounted for one in stats.values() if one is not None),
    }


def _certificates(transport: TransportStatus) -> list[Row]:
    due = [one for one in transport.certificates if one.role == "own" or one.days_left < CERTIFICATE_DAYS]
    return [_bounded(structs.asdict(one)) for one in due[:CERTIFICATES_MAX]]


def _transport(transport: TransportStatus) -> Row:
    names = ("encryption", "authentication", "problem", "reloads", "reload_failures", "refused", "connections_max")
    warnings = [shorten(warning) for warning in transport.warnings]
    return {name: getattr(transport, name) for name in names} | {"warnings": warnings}
