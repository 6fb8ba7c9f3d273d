"""The few numbers of an instance that are noted every second, whether anybody looks or not: a dozen additions."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime
from typing import Any

from broker.dialog.send_queue import MICROSECONDS
from broker.observe.database_stats import Stock, ledger_values
from broker.observe.health import cut, fold, ledger_sentence, shorten, verdict
from broker.observe.instance import Running
from broker.observe.samples import BUCKETS, Labels
from broker.observe.snapshot import seconds_since


@dataclass(frozen=True, slots=True)
class Counts:
    """
    Frames and messages since the start, and what waits now.

    Shape: `received`, `forwarded`, `delivered`, `dropped` dialog frames of the pass; `sent`, `acknowledged` messages of
    the databases here; `held` frames and `pool_bytes` that wait for their next hop now; `hops`, `trips` how many frames
    were here, and acknowledgements under way, for how long: by place in `BUCKETS`, empty where nobody counts.
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


def read_counts(instance: Running) -> Counts:
    """At this moment. Loop-only. Cost: the next hops and the services that have sent."""
    forwarder = instance.forwarder
    transmitters = [endpoint.transmitter for endpoint in instance.endpoints.values()]
    return Counts(
        received=forwarder.received.total(),
        forwarded=forwarder.forwarded,
        delivered=forwarder.delivered,
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
    for (_, place), count in (one for part in parts for one in part.items()):
        if place != MICROSECONDS:
            counts[place] += count
    return tuple(counts)


# --- rate ---
# Rates of counters between two looks at them.


class Rates:
    """
    What counters grew by, a second, since the last look; for one reader.

    A counter that is smaller than before has begun anew, so all of it is growth. One that was not there at the last
    look grew from 0; at the first look nothing is known.
    """

    def __init__(self) -> None:
        self._before: dict[Hashable, float] | None = None
        self._at = 0.0
        self.seconds = 0.0

    def look(self, counters: Mapping[Hashable, float], now: float) -> dict[Hashable, float | None]:
        """
        The rates by counter; None at the first look.

        Args:
            counters: What they count now; kept until the next look, so never changed by the caller.
            now: Monotonic seconds.

        Cost: O(counters).
        """
        before, self._before = self._before, dict(counters)
        self.seconds, self._at = now - self._at, now
        if before is None or self.seconds <= 0:
            self.seconds = 0.0
            return dict.fromkeys(counters)
        get, seconds = before.get, self.seconds
        rates: dict[Hashable, float | None] = {}
        for key, count in counters.items():
            old = get(key, 0)
            rates[key] = round((count - old if count >= old else count) / seconds, 2)
        return rates


# --- past ---
# The last ten minutes, one row a second, in a ring: so that who begins to look sees what was before.
#
# A row is kept whether anybody looks or not; it costs a dozen additions. Numbers only, so the ring has a bound of
# some
# 100 KiB.


ROWS_MAX = 600
_RATED = ("received", "forwarded", "delivered", "dropped", "sent", "acknowledged")
LATENCIES = ("loop_lag_s", "hop_p50_s", "hop_p99_s", "ack_p50_s", "ack_p99_s")
COLUMNS = ("at", *_RATED, "held", "pool_bytes", *LATENCIES)


class StatsHistory:
    """
    The rows, numbered from 1. For one writer.

    Shape: `number` of the last row, 0 before the first.
    """

    def __init__(self) -> None:
        self.number = 0
        self._rates = Rates()
        self._rows: deque[tuple[float | None, ...]] = deque(maxlen=ROWS_MAX)

    def note(self, counts: Counts, latency: dict[str, float | None], *, at: float, now: float) -> None:
        """
        One row.

        Args:
            counts: Of the instance at this moment.
            latency: Seconds by name; None or left out = nobody knows.
            at: UTC seconds since 1970.
            now: Monotonic seconds.
        """
        rates = self._rates.look({name: getattr(counts, name) for name in _RATED}, now)
        row = (round(at, 3), *rates.values(), counts.held, counts.pool_bytes, *map(latency.get, LATENCIES))
        self._rows.append(row)
        self.number += 1

    def since(self, number: int = 0) -> dict[str, Any]:
        """The rows after that number, as many as are left of them."""
        new = min(len(self._rows), max(0, self.number - number))
        return {"columns": COLUMNS, "rows": list(self._rows)[len(self._rows) - new :]}


# --- pulse ---
# One look at an instance, as `GET /v1/events` sends it every second: the state of `/v1/status`, and what it did
# since.
#
# Pure: values in, a value out, and between two looks the counters of the last one. Every list is cut to the biggest,
# so
# that a snapshot has a bound whatever there is. The shape is a contract, told in docs/status-page.md.


PEERS_MAX, NEXT_HOPS_MAX, ROUTES_MAX, WAITING_MAX = 40, 40, 40, 30
DROPS_MAX, DATABASES_MAX, CERTIFICATES_MAX, MIRRORS_MAX, SCRIPTS_MAX = 40, 20, 20, 40, 64
GONE_SECONDS, GONE_MAX = 60.0, 40  # for which a connection that has ended is still told, and how many
CERTIFICATE_DAYS = 30  # what ends within them is told whoever shows it
_ANNOUNCED_COUNTS = ("received", "forwarded", "delivered", "dropped", "sent", "acknowledged")
_LINK_COUNTS = ("frames_received", "bytes_received", "bytes_sent")
_DATABASE_COUNTS = ("sent", "acknowledged", "delivered")

Told = dict[str, Any]


@dataclass(frozen=True, slots=True)
class InstanceSample:
    """
    An instance at one moment.

    Shape: `status` that of `/v1/status` without what is in files; `carried` frames by route and next hop since the
    start; `drops` rows of `sys.dm_broker_dispositions` by column; `stocks` by database, None for a file that cannot be
    read, empty before the first look; `latency` seconds by name; `now` monotonic seconds.
    """

    status: Mapping[str, Any]
    counts: Counts
    now: float
    at: datetime
    carried: Mapping[Labels, float] = field(default_factory=dict)
    drops: Sequence[Mapping[str, Any]] = ()
    stocks: Mapping[str, Stock | None] = field(default_factory=dict)
    latency: Mapping[str, float | None] = field(default_factory=dict)


class StatsStream:
    """Looks again and again, and tells what grew. For one caller."""

    def __init__(self) -> None:
        names = ("counts", "links", "routes", "next_hops", "drops", "databases")
        self._rates = {name: Rates() for name in names}
        self._present: dict[tuple[Any, ...], Told] = {}
        self._gone: dict[tuple[Any, ...], tuple[float, Told]] = {}
        self._names: dict[str, str] = {}  # of those who took what was for an address, after they have gone as well

    def beat(self, facts: InstanceSample) -> Told:
        """One snapshot. Cost: the connections, the addresses and the ways of the instance."""
        status, stocks = facts.status, facts.stocks
        counts: dict[Any, float] = {name: getattr(facts.counts, name) for name in _ANNOUNCED_COUNTS}
        looked = self._rates["counts"].look(counts, facts.now)
        rates = {str(name): rate for name, rate in looked.items()}
        peers, moved = self._peers(facts)
        drops = self._drops(facts)
        databases = self._databases(facts)
        judged = {**status, "drops": drops, "databases": _judged(databases, stocks)}
        forwarding = status["forwarding"]
        return {
            "at": facts.at.isoformat(timespec="milliseconds"),
            "seconds": round(self._rates["counts"].seconds, 3),
            "verdict": verdict(judged | {"loop_lag_s": facts.latency.get("loop_lag_s")}),
            "instance": _instance(status),
            "totals": _totals(facts.counts) | {"unaccounted": forwarding["unaccounted"]},
            "rates": rates | moved,
            "pool": {
                "frames": forwarding["held"],
                "bytes": forwarding["pool_bytes"],
                "limit_bytes": forwarding["pool_limit_bytes"],
            },
            "latency": dict(facts.latency),
            "ledger": _ledger(facts),
            "peers": peers,
            "next_hops": self._next_hops(facts),
            "routes": self._routes(facts),
            "waiting": _waiting(facts),
            "drops": fold(drops, DROPS_MAX, weight=lambda one: one["frames"], sums=("frames", "frames_s")),
            "mirrors": [_mirror(one) for one in status.get("mirrored_routes", ())[:MIRRORS_MAX]],
            "databases": fold(databases, DATABASES_MAX, weight=lambda one: one["waiting_messages"] or 0),
            "certificates": _certificates(status.get("transport") or {}),
            "transport": _transport(status.get("transport") or {}),
            "journal": status.get("journal"),
            "scripts": [cut(one) for one in status.get("running_scripts", ())[:SCRIPTS_MAX]],
            "draining": status.get("draining"),
            "reload": status.get("reload"),
        }

    # --- parts that remember ---

    def _peers(self, facts: InstanceSample) -> tuple[Told, Told]:
        """The connections, those that ended lately among them; and the bytes that moved on all of them."""
        links = facts.status["connections"]
        keys = [_link_key(link) for link in links]
        counters: dict[Any, float] = {
            (*key, name): link[name] for key, link in zip(keys, links, strict=True) for name in _LINK_COUNTS
        }
        rates = self._rates["links"].look(counters, facts.now)
        rows = [
            {**_link(link), "gone_s": None, **{f"{name}_s": rates[(*key, name)] for name in _LINK_COUNTS}}
            for key, link in zip(keys, links, strict=True)
        ]
        is_known = self._rates["links"].seconds > 0
        moved = {
            name: round(sum(row[f"{name}_s"] for row in rows), 2) if is_known else None
            for name in ("bytes_received", "bytes_sent")
        }
        present = dict(zip(keys, rows, strict=True))
        self._note_gone(present, facts.now)
        gone = [{**row, "gone_s": round(facts.now - since, 1)} for since, row in self._gone.values()]
        folded = fold([*gone, *rows], PEERS_MAX, weight=_link_weight, sums=[f"{name}_s" for name in _LINK_COUNTS])
        return {**folded, "count": len(links)}, moved

    def _note_gone(self, present: dict[tuple[Any, ...], Told], now: float) -> None:
        names = {(row["name"], row["direction"]) for row in present.values()}
        for key in self._present.keys() - present.keys():
            row = self._present[key]
            self._gone[key] = now, {**row, "state": "GONE", **{f"{name}_s": 0.0 for name in _LINK_COUNTS}}
        for key, (since, row) in list(self._gone.items()):
            # One of the same name stands in its place, or it is long ago.
            if (row["name"], row["direction"]) in names or now - since > GONE_SECONDS:
                del self._gone[key]
        while len(self._gone) > GONE_MAX:
            del self._gone[next(iter(self._gone))]
        self._present = present

    def _routes(self, facts: InstanceSample) -> Told:
        rates = self._rates["routes"].look(facts.carried, facts.now)  # type: ignore[arg-type]  # labels are hashable
        rows = [
            {"route": route, "next_hop": hop, "frames": int(frames), "frames_s": rates[route, hop]}
            for (route, hop), frames in facts.carried.items()
            if frames
        ]
        return fold(rows, ROUTES_MAX, weight=_traffic, sums=("frames", "frames_s"))

    def _next_hops(self, facts: InstanceSample) -> Told:
        carried: dict[str, float] = {}
        for (_, hop), frames in facts.carried.items():
            carried[hop] = carried.get(hop, 0) + frames
        addresses = facts.status["addresses"]
        self._names = {address: one.get("peer") or self._names.get(address, "") for address, one in addresses.items()}
        rates = self._rates["next_hops"].look(carried, facts.now)  # type: ignore[arg-type]  # str
        rows = [
            {
                "address": address,
                **{name: one[name] for name in ("health", "problem", "held", "held_bytes")},
                "peer": self._names[address],
                "frames": int(carried.get(address, 0)),
                "frames_s": rates.get(address, 0.0 if self._rates["next_hops"].seconds else None),
            }
            for address, one in addresses.items()
        ]
        sums = ("held", "held_bytes", "frames", "frames_s")
        return fold(
            rows, NEXT_HOPS_MAX, weight=lambda one: (bool(one["problem"]), one["held"], _traffic(one)), sums=sums
        )

    def _drops(self, facts: InstanceSample) -> list[Told]:
        rates = self._rates["drops"].look(
            {(row["disposition"], row["database_name"]): row["frames"] for row in facts.drops}, facts.now
        )
        return [
            {
                "reason": row["disposition"],
                "number": row["message_number"],
                "database": row["database_name"],
                "frames": row["frames"],
                "frames_s": rates[row["disposition"], row["database_name"]],
                "last_time": row["last_time"],
                "last_s": seconds_since(row["last_time"], facts.at),
                "detail": row["reason"],
                "do": row.get("do", ""),
                **{name: row[name] for name in _SAMPLE},
            }
            for row in facts.drops
        ]

    def _databases(self, facts: InstanceSample) -> list[Told]:
        told = facts.status["databases"]
        sums = {
            (name, what): sum(service[what] for service in one["services"].values())
            for name, one in told.items()
            for what in _DATABASE_COUNTS
        }
        rates = self._rates["databases"].look(sums, facts.now)  # type: ignore[arg-type]  # pairs of str
        standings = facts.status.get("mirroring", {})
        rows = []
        for name in {**told, **{name: None for name, one in standings.items() if one["source"] != "off"}}:
            standing = standings.get(name, {})
            rows.append(
                {
                    "name": name,
                    "broker_instance": told.get(name, standing).get("broker_instance"),
                    "problem": told.get(name, {}).get("problem") or standing.get("problem", ""),
                    "role": standing.get("role") if standing.get("source", "off") != "off" else None,
                    "sending_dialogs": told.get(name, {}).get("sending_dialogs", 0),
                    **{f"{what}_s": rates.get((name, what)) for what in _DATABASE_COUNTS},
                    **_stock(facts.stocks.get(name)),
                }
            )
        return rows


_SAMPLE = (
    "to_service_name",
    "from_service_name",
    "conversation_id",
    "message_id",
    "message_sequence_number",
    "hops_remaining",
)


# --- parts of one moment ---


def _totals(counts: Counts) -> Told:
    return {name: value for name, value in asdict(counts).items() if not isinstance(value, tuple)}


def _instance(status: Mapping[str, Any]) -> Told:
    names = ("name", "software", "broker_instance", "started_at", "uptime_s", "ready", "loop", "kernel")
    state = "draining" if status.get("draining") else "ready" if status["ready"] else "not ready"
    is_gateway = bool(status["forwarding"]["enabled"])
    return cut({name: status[name] for name in names}) | {
        "state": state,
        "listen": status["listen"][:20],
        "is_gateway": is_gateway,
    }


def _link_key(link: Mapping[str, Any]) -> tuple[Any, ...]:
    return link["name"], link["address"], link["direction"]


def _link(link: Mapping[str, Any]) -> Told:
    return {name: value for name, value in link.items() if name not in {"bytes_received", "bytes_sent"}}


def _link_weight(row: Mapping[str, Any]) -> tuple[bool, float, float]:
    moved = (row["bytes_received_s"] or 0.0) + (row["bytes_sent_s"] or 0.0)
    return row["gone_s"] is not None or row["state"] != "LOGGED IN", moved, row["frames_received"]


def _traffic(row: Mapping[str, Any]) -> tuple[float, float]:
    return row["frames_s"] or 0.0, row["frames"]


def _waiting(facts: InstanceSample) -> Told:
    """What waits and why, at the gateway by next hop and in databases by service."""
    rows = [
        {
            "at": "next hop",
            "name": one["next_hop"],
            "messages": one["held"],
            "bytes": one["held_bytes"],
            "oldest_s": one["oldest_s"],
            "why": one["why"],
            "next": _next(one["next_attempt_s"]),
        }
        for one in facts.status.get("waiting", ())
    ]
    for name, stock in facts.stocks.items():
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
            for reason in (() if stock is None else stock.reasons)
        ]
    return fold(rows, WAITING_MAX, weight=lambda one: one["messages"], sums=("messages",))


def _next(attempt_s: float | None) -> str | None:
    if attempt_s is None:
        return None
    return f"tried again in {attempt_s:.0f} s" if attempt_s >= 1 else "tried again now"


def _stock(stock: Stock | None) -> Told:
    """What a database's file tells; null while that is not known."""
    if stock is None:
        unknown = ("waiting_messages", "oldest_waiting_s", "quarantined", "queues", "queue_count", "ledger")
        return dict.fromkeys(unknown)
    return {
        "waiting_messages": stock.backlog.messages,
        "oldest_waiting_s": round(stock.backlog.oldest_s, 3),
        "quarantined": stock.quarantined,
        "queues": [cut(asdict(queue)) for queue in stock.queues],
        "queue_count": stock.queue_count,
        "ledger": ledger_sentence(ledger_values(stock.ledger)),
    }


def _judged(databases: Iterable[Mapping[str, Any]], stocks: Mapping[str, Stock | None]) -> Told:
    """The databases with their ledgers as numbers, as a verdict asks for them."""
    judged = {}
    for one in databases:
        stock = stocks.get(one["name"])
        judged[one["name"]] = {**one, "ledger": None if stock is None else ledger_values(stock.ledger)}
    return judged


def _ledger(facts: InstanceSample) -> Told:
    """The pass in one sentence; the databases have their own."""
    counts, unaccounted = facts.counts, facts.status["forwarding"]["unaccounted"]
    sentence = (
        f"{counts.received:,} frames in = {counts.forwarded:,} forwarded + {counts.delivered:,} delivered"
        f" + {counts.dropped:,} dropped + {counts.held:,} held"
    )
    known = [stock.ledger.unaccounted for stock in facts.stocks.values() if stock is not None]
    return {
        "sentence": f"{sentence} + {unaccounted:,} UNACCOUNTED" if unaccounted else sentence,
        "unaccounted": unaccounted + sum(known),
    }


def _mirror(one: Mapping[str, Any]) -> Told:
    return cut(one) | {"partners": {shorten(address): cut(said) for address, said in one["partners"].items()}}


def _certificates(transport: Mapping[str, Any]) -> list[Told]:
    told = transport.get("certificates", ())
    due = [one for one in told if one["role"] == "own" or one["days_left"] < CERTIFICATE_DAYS]
    return [cut(one) for one in due[:CERTIFICATES_MAX]]


def _transport(transport: Mapping[str, Any]) -> Told:
    names = ("encryption", "authentication", "problem", "reloads", "reload_failures", "refused", "connections_max")
    return {name: transport[name] for name in names if name in transport} | {
        "warnings": [shorten(warning) for warning in transport.get("warnings", ())]
    }
