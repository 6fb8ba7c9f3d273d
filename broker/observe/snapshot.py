"""Part of `broker.observe.status`."""

from __future__ import annotations

import asyncio
import heapq
import time
import uuid
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import chain
from types import MappingProxyType
from typing import Any

from broker.dialog.status import PathProblem, connecting, unknown_principal
from broker.flow import Disposition
from broker.forwarding.entry import Buffer
from broker.forwarding.forwarder import Forwarder
from broker.forwarding.held_frames import Held, Piece
from broker.forwarding.outbox import Outbox
from broker.net.link import Link, LinkState
from broker.net.mirrors import Mirrors
from broker.net.peers import Peers
from broker.observe.instance import Running
from broker.observe.samples import Labels, MetricDefinition, Reader, single
from broker.observe.tsql import read_instant
from broker.observe.views import DISPOSITIONS, MEMORY_VIEWS, MIRRORS, make_row
from broker.protocol.frame import Header, encode_dialog
from broker.protocol.layout import HEADER, HEADER_BYTES, MIN_DIALOG_FRAME, NO_GUID, Flag
from broker.routing.address import NetworkAddress
from broker.routing.mirrored import AddressState, MirroredRoute
from broker.routing.route import MirroredPair


def slowed_by(link: Link) -> str:
    """The settings for which a connection is not read now; empty while it is."""
    if not link.is_paused:
        return ""
    return ", ".join(sorted(link.slowed_by)) or "endpoint.backpressure"


# --- connection ---
# A connection to an adjacent instance, as `sys.dm_broker_connections`, the status and the metrics show it.
#
# On the loop; the parts are plain values.
#
# Source: Service Broker documentation, "sys.dm_broker_connections".


_STATES = {LinkState.CONNECTED: 3, LinkState.LOGGED_IN: 4, LinkState.DRAINING: 4}
_CLOSED = 5
_LOGIN_STATES = {True: (12, "ONLINE"), False: (1, "WAIT LOGIN NEGOTIATE")}

CONNECTION_METRICS = (
    MetricDefinition(
        "broker_connections",
        "Connections to adjacent instances now.",
        ("peer", "direction", "state"),
    ),
    MetricDefinition(
        "broker_connection_flows",
        "The same connections by what has really moved: flowing, idle, blocked, stalled, opening, leaving or down.",
        ("peer", "direction", "flow"),
    ),
)


def connection_values(link: Link, arbitration: bytes, at: datetime, now: float) -> dict[str, Any]:
    """
    The columns of a row that have a value.

    Args:
        link: The connection.
        arbitration: What names this process.
        at: When the loop's clock said 0.
        now: Loop time.
    """
    last_activity = max(link.connection.last_heard, link.connection.last_sent)
    # Unique for as long as the process lives, and the same row after row: this process and the link's number.
    connection_id = uuid.UUID(int=int.from_bytes(arbitration, "big") ^ link.number)
    flow = link.activity.update(link, now)
    return {
        **_who(link),
        "connection_id": connection_id,
        "state": _STATES.get(link.state, _CLOSED),
        "state_desc": link.state.value,
        "connect_time": at + timedelta(seconds=link.opened_at),
        "login_time": None if link.online_at is None else at + timedelta(seconds=link.online_at),
        "last_activity_time": at + timedelta(seconds=last_activity),
        "is_accept": link.is_accept,
        "is_receive_flow_controlled": link.is_paused,
        "is_send_flow_controlled": link.is_blocked,
        "total_bytes_sent": link.bytes_sent,
        "total_bytes_received": link.bytes_received,
        "total_fragments_received": link.received.total(),
        "total_sends": link.sends,
        "total_receives": link.receives,
        "total_frames_rejected": link.frames_rejected,
        "flow_state": flow.state.value,
        "flow_reason": flow.reason or None,
        "flow_since_time": at + timedelta(seconds=flow.since),
        "last_progress_time": at + timedelta(seconds=flow.progress_at),
        "round_trip_ms": None if link.connection.round_trip is None else round(link.connection.round_trip * 1000, 3),
    }


def _who(link: Link) -> dict[str, Any]:
    """The columns that tell of the peer, and how it is known."""
    peer = link.agreement.peer if link.agreement is not None else None
    login_state, login_state_desc = _LOGIN_STATES[peer is not None]
    identity = link.transport.identity
    algorithm, algorithm_desc = _algorithm(link.transport.cipher)
    return {
        "login_state": login_state,
        "login_state_desc": login_state_desc,
        "authentication_method": None if identity is None else "CERTIFICATE",
        "principal_name": None if identity is None else identity.principal_name,
        "peer_certificate_id": None if identity is None else identity.fingerprint,
        "peer_certificate_expiry_date": None if identity is None else identity.not_after,
        "encryption_algorithm": algorithm,
        "encryption_algorithm_desc": algorithm_desc,
        "peer_arbitration_id": None if peer is None else uuid.UUID(bytes=peer.arbitration),
        "peer_name": None if peer is None else link.peer_name,
        "peer_address": link.address,
        "peer_instance": None if peer is None else uuid.UUID(bytes=peer.instance),
    }


def connection_status(link: Link, at: datetime, now: float) -> dict[str, Any]:
    """What a status tells; arguments as of `connection_values`."""
    flow, round_trip = link.activity.update(link, now), link.connection.round_trip
    return {
        "name": link.peer_name,
        "address": link.address,
        "direction": direction(link),
        "state": link.state.value,
        "flow": flow.state.value,
        "flow_reason": flow.reason,
        "flow_since": _instant(at, flow.since),
        "last_progress": _instant(at, flow.progress_at),
        "round_trip_ms": None if round_trip is None else round(round_trip * 1000, 3),
        "encryption": "TLS" if link.transport.cipher else "none",
        "principal": "" if link.transport.identity is None else link.transport.identity.principal_name,
        "slowed_by": slowed_by(link),
        "bytes_received": link.bytes_received,
        "bytes_sent": link.bytes_sent,
        "frames_received": link.received.total(),
        "frames_rejected": link.frames_rejected,
    }


def direction(link: Link) -> str:
    """Who opened a connection: `in` is the peer, `out` is this instance."""
    return "in" if link.is_accept else "out"


def connection_samples(links: Iterable[Link]) -> Iterable[tuple[Labels, float]]:
    """Connections by the state of their protocol."""
    return Counter((link.label, direction(link), link.state.value) for link in links).items()


def flow_samples(links: Iterable[Link], now: float) -> Iterable[tuple[Labels, float]]:
    """Connections by what has really moved."""
    return Counter((link.label, direction(link), link.activity.update(link, now).state.value) for link in links).items()


def _instant(at: datetime, seconds: float) -> str:
    return (at + timedelta(seconds=seconds)).isoformat(timespec="milliseconds")


def _algorithm(cipher: str) -> tuple[int | None, str]:
    """The original's number and word for a cipher suite; it has none for a cipher that it did not know."""
    if not cipher:
        return 0, "NONE"
    return (2, "AES") if "_AES_" in cipher else (None, cipher)


# --- dropped_counts ---
# Part of `broker.observe.status`.


def dropped_by_reason(instance: Running) -> Counter[Disposition]:
    """What ended here for another reason than arriving, in the pass or at the end of the way."""
    dropped = instance.forwarder.dropped + instance.past.dropped
    for endpoint in instance.endpoints.values():
        dropped.update(endpoint.dropped)
    return dropped


# --- waiting ---
# Why a frame is held here, as the sentence a person reads: `why_held`; why a dialog waits is told by `dialog.status`.
#
# Loop-only; decides nothing and changes nothing.


def why_held(outbox: Outbox, peers: Peers, mirrors: Mirrors) -> str:
    """What the frames that wait for one address, or for a mirrored pair, wait for, and how much waits there."""
    address = next_hop(outbox, mirrors)
    if isinstance(address, MirroredPair):
        disposition = Disposition.PRINCIPAL_UNKNOWN
        wall_offset = time.time() - asyncio.get_running_loop().time()
        why = f"{disposition} ({disposition.number}): {unknown_principal(mirrors.trouble_of(address), wall_offset)}"
    elif outbox.outlet is None:
        why = connecting(address, PathProblem(peers.table.problem_of(address)))
    else:
        why = f"the connection to {address} takes no more at the moment"
    share = outbox.share
    room = ", no room for more" if share.is_full else ""
    return f"{why}; {share.used_bytes} of at most {share.limit_bytes} bytes wait for it{room}"


def next_hop(outbox: Outbox, mirrors: Mirrors) -> NetworkAddress | MirroredPair:
    """Where an outbox leads now: of a pair its principal, or the pair itself while that is not known."""
    if isinstance(outbox.address, NetworkAddress):
        return outbox.address
    return mirrors.principal_of(outbox.address) or outbox.address


# --- held ---
# Frames that wait for their next hop, as `sys.dm_broker_forwarded_messages` shows them.
#
# `copy_held` runs on the loop and takes the frames that wait at one moment, `held_values` decodes one of them
# wherever it
# is called. The body is not looked at.


@dataclass(frozen=True, slots=True)
class HeldCopy:
    """
    What one outbox held at one moment.

    Shape: `pieces` in the order of leaving; `now` monotonic seconds of that moment; `address` where they are to go;
    `why` they wait.
    """

    pieces: tuple[Piece, ...]
    now: float
    address: str
    why: str

    @property
    def frames(self) -> Iterator[Held]:
        """Each frame by itself; in any thread."""
        return chain.from_iterable(piece.helds() for piece in self.pieces)


def copy_held(outbox: Outbox, peers: Peers, mirrors: Mirrors, *, now: float) -> HeldCopy:
    """Every frame that waits in one outbox; they are not copied themselves, as they never change."""
    address = str(next_hop(outbox, mirrors))
    return HeldCopy(tuple(outbox.held.pieces()), now, address, why_held(outbox, peers, mirrors))


def held_values(held: Held, copy: HeldCopy) -> dict[str, object]:
    """
    The columns of one frame of a copy by name.

    Shape: times in whole seconds, as the original's.
    """
    return {
        **frame_values(held.frame),
        "adjacent_broker_address": copy.address,
        "time_consumed": held.time_consumed(copy.now) // 1000,
        "why_held": copy.why,
        "held_ms": held.waited_ms(copy.now),
        "frame_bytes": len(held.frame),
    }


def frame_values(frame: Buffer) -> dict[str, object]:
    """
    What the beginning of a frame tells, by column, as received; also of one that is malformed behind its length.

    Shape: what is left of a life in whole seconds; one shorter than a second still counts as one.
    """
    (
        _,
        _,
        flags,
        hop_count,
        hop_limit,
        time_to_live,
        _,
        message_id,
        conversation_id,
        sequence,
        fragment,
        _,
        _,
        _,
        from_length,
        _,
        from_instance,
        to_instance,
        to_length,
    ) = HEADER.unpack_from(frame)
    names_at = HEADER_BYTES + to_length
    return {
        "conversation_id": uuid.UUID(bytes=conversation_id),
        "is_initiator": not flags & Flag.FROM_TARGET,
        "to_service_name": bytes(frame[HEADER_BYTES:names_at]).decode(errors="replace"),
        "to_broker_instance": None if to_instance == NO_GUID else uuid.UUID(bytes=to_instance),
        "from_service_name": bytes(frame[names_at : names_at + from_length]).decode(errors="replace"),
        "from_broker_instance": None if from_instance == NO_GUID else uuid.UUID(bytes=from_instance),
        "message_sequence_number": sequence,
        "message_fragment_number": fragment,
        "hops_remaining": max(0, hop_limit - hop_count),
        "time_to_live": -(-time_to_live // 1000),
        "message_id": uuid.UUID(bytes=message_id),
    }


# --- drop ---
# What was dropped, as rows of `sys.dm_broker_dispositions`: how many frames by reason, and the last one of each.
#
# The counts are those of `broker_messages_dropped_total` and, beside them, of what came twice. A sample is the
# beginning
# of the last such frame, so one can see which dialog, and which two services, a number is about.


Row = tuple[object, ...]

_DISPOSITION = MEMORY_VIEWS[DISPOSITIONS].index("disposition")


def read_drops(instance: Running, at: datetime) -> list[Row]:
    """
    The rows of one instance, in the order of the reasons. On the loop.

    Args:
        instance: The daemon.
        at: When the loop's clock said 0.
    """
    elsewhere = dropped_by_reason(instance)
    rows: list[Row] = []
    for name, endpoint in instance.endpoints.items():
        elsewhere.subtract(endpoint.dropped)
        samples = {what: (when, _frame(header)) for what, (when, header) in endpoint.last_dropped.items()}
        rows += _rows(name, endpoint.dropped, samples, at)
    refusal = instance.peers.permissions.last_refusal
    rows += _rows(None, elsewhere, instance.forwarder.last_dropped, at, {Disposition.NOT_PERMITTED: refusal})
    return sorted(rows, key=lambda row: _ORDER[row[_DISPOSITION]])


def seconds_since(last_time: str | None, at: datetime) -> float | None:
    """How long before an instant the last frame was dropped, by `last_time` as views show it; None when none was."""
    return None if last_time is None else max(0.0, (at - read_instant(last_time)).total_seconds())


_ORDER: dict[object, int] = {disposition.value: place for place, disposition in enumerate(Disposition)}


def _rows(
    database: str | None,
    dropped: Mapping[Disposition, int],
    samples: Mapping[Disposition, tuple[float, bytes]],
    at: datetime,
    reasons: Mapping[Disposition, str] = MappingProxyType({}),
) -> list[Row]:
    return [
        _row(
            database,
            disposition,
            dropped[disposition],
            samples.get(disposition),
            at=at,
            reason=reasons.get(disposition),
        )
        for disposition in Disposition
        if dropped[disposition]
    ]


def _row(
    database: str | None,
    disposition: Disposition,
    frames: int,
    sample: tuple[float, bytes] | None,
    *,
    at: datetime,
    reason: str | None,
) -> Row:
    when, frame = (None, b"") if sample is None else (at + timedelta(seconds=sample[0]), sample[1])
    values = frame_values(frame) if len(frame) >= MIN_DIALOG_FRAME else {}
    return make_row(
        DISPOSITIONS,
        disposition=disposition.value,
        message_number=disposition.number or None,
        database_name=database,
        frames=frames,
        last_time=when,
        reason=reason or None,
        **values,
    )


def _frame(header: Header | None) -> bytes:
    return b"" if header is None else encode_dialog(header, b"")


# --- mirror ---
# Mirrored routes in use, as `sys.dm_broker_mirrors`, the status and the metrics show them.
#
# `read_mirrors` copies what belongs to the loop; the rest are pure functions of what it gives.


MIRROR_METRICS = (
    MetricDefinition(
        "broker_mirror_principal",
        "1 for the address of a mirrored route in use to which its messages go, else 0.",
        ("route", "address"),
        fold=max,
    ),
    MetricDefinition(
        "broker_mirror_state",
        "Of a mirrored route in use: 1 operational, 2 principal only, 3 not operational, so messages wait.",
        ("route",),
        fold=max,
    ),
    MetricDefinition("broker_mirror_probes_total", "PROBE frames sent to partners of mirrored routes."),
    MetricDefinition(
        "broker_mirror_answers_total", "PROBE_REPLY frames of partners of mirrored routes, by role.", ("role",)
    ),
)


@dataclass(frozen=True, slots=True)
class MirrorShown:
    """
    One pair at one moment.

    Shape: `route_name` of one route that names it; `seen` of ADDRESS and of MIRROR_ADDRESS; `due` monotonic seconds of
    the next PROBE; `zero` UTC seconds since 1970 when the clock of the loop said 0; `frames`, `bytes` that wait.
    """

    route_name: str
    pair: MirroredPair
    state: int
    state_desc: str
    principal: NetworkAddress | None
    epoch: int
    seen: tuple[AddressState, AddressState]
    due: float | None
    alarm: str
    zero: float
    frames: int
    bytes: int


def read_mirrors(mirrors: Mirrors, now: float) -> list[MirrorShown]:
    """Every pair in use, at this monotonic instant. Loop-only. Cost: the pairs."""
    zero = time.time() - now
    return [_shown(mirrors, pair, one.route, zero) for pair, one in mirrors.in_use.items()]


def _shown(mirrors: Mirrors, pair: MirroredPair, route: MirroredRoute[NetworkAddress], zero: float) -> MirrorShown:
    frames, size = mirrors.waiting(pair)
    return MirrorShown(
        route_name=mirrors.route_name(pair),
        pair=pair,
        state=route.state.value,
        state_desc=route.state.name,
        principal=route.principal,
        epoch=route.epoch,
        seen=(route.seen[pair.address], route.seen[pair.mirror_address]),
        due=route.due,
        alarm=route.alarm,
        zero=zero,
        frames=frames,
        bytes=size,
    )


def mirror_rows(shown: Iterable[MirrorShown]) -> Iterator[tuple[object, ...]]:
    """One row for each pair."""
    for one in shown:
        sides = {"address": one.seen[0], "mirror": one.seen[1]}
        yield make_row(
            MIRRORS,
            route_name=one.route_name,
            remote_service_name=one.pair.remote_service_name,
            broker_instance=one.pair.broker_instance,
            address=str(one.pair.address),
            mirror_address=str(one.pair.mirror_address),
            principal_address=None if one.principal is None else str(one.principal),
            state=one.state,
            state_desc=one.state_desc,
            epoch=one.epoch,
            next_probe_time=_utc_of(one, one.due),
            waiting_messages=one.frames,
            waiting_bytes=one.bytes,
            alarm=one.alarm or None,
            **{f"{side}_probe_time": _utc_of(one, seen.asked_at) for side, seen in sides.items()},
            **{f"{side}_answer_time": _utc_of(one, seen.answered_at) for side, seen in sides.items()},
            **{f"{side}_role": seen.role and str(seen.role) for side, seen in sides.items()},
            **{f"{side}_epoch": seen.epoch for side, seen in sides.items()},
            **{f"{side}_problem": seen.problem or None for side, seen in sides.items()},
        )


def mirror_status(shown: Iterable[MirrorShown]) -> list[dict[str, Any]]:
    """The same in short, for the status."""
    return [
        {
            "route": one.route_name,
            "service": one.pair.remote_service_name,
            "broker_instance": str(one.pair.broker_instance),
            "state": one.state_desc,
            "principal": None if one.principal is None else str(one.principal),
            "epoch": one.epoch,
            "partners": {
                str(address): {"role": seen.role and str(seen.role), "epoch": seen.epoch, "problem": seen.problem}
                for address, seen in zip((one.pair.address, one.pair.mirror_address), one.seen, strict=True)
            },
            "held": one.frames,
            "held_bytes": one.bytes,
            "alarm": one.alarm,
        }
        for one in shown
    ]


# --- metrics, on the loop ---------------------------------------------------------------------------------------


def mirror_readers() -> Mapping[str, Reader]:
    """What reads each of them."""
    return {
        "broker_mirror_principal": lambda instance: principal_samples(instance.mirrors),
        "broker_mirror_state": lambda instance: state_samples(instance.mirrors),
        "broker_mirror_probes_total": single(lambda instance: instance.mirrors.probes),
        "broker_mirror_answers_total": lambda instance: [((role,), n) for role, n in instance.mirrors.answers.items()],
    }


def principal_samples(mirrors: Mirrors) -> Iterator[tuple[Labels, float]]:
    """Route and address of every pair in use."""
    for pair, one in mirrors.in_use.items():
        for address in one.route.addresses:
            yield (mirrors.route_name(pair), str(address)), one.route.principal == address


def state_samples(mirrors: Mirrors) -> Iterator[tuple[Labels, float]]:
    """The number of the state by route."""
    for pair, one in mirrors.in_use.items():
        yield (mirrors.route_name(pair),), one.route.state.value


def carried_by_way(forwarder: Forwarder) -> dict[Labels, float]:
    """The same added up, of the ways that there are now."""
    carried: dict[Labels, float] = {}
    for labels, frames in forwarded_samples(forwarder):
        carried[labels] = carried.get(labels, 0) + frames
    return carried


def forwarded_samples(forwarder: Forwarder) -> Iterator[tuple[Labels, float]]:
    """
    Frames that left, by route and address; of mirrored routes by the address that was principal then.

    All of it is as of the first step, so that the others may be made in later turns of the loop.
    """
    principals = forwarder.routing_context.principals
    left = [(way.route, way.sink, way.frames) for way in forwarder.entries.values() if isinstance(way.sink, Outbox)]
    earlier = [one for counts in forwarder.table.sent_earlier.values() for one in counts.items()]
    hops: dict[Outbox, str | None] = {}  # its text costs more than all else, and many routes lead to one address
    for route, outbox, frames in left:
        if outbox not in hops:
            address = outbox.address
            hop = principals.get(address) if isinstance(address, MirroredPair) else address
            hops[outbox] = None if hop is None else str(hop)
        told = hops[outbox]
        if told is not None:
            yield (route, told), frames
    yield from earlier


def _utc_of(one: MirrorShown, at: float | None) -> datetime | None:
    return None if at is None else datetime.fromtimestamp(one.zero + at, UTC)


# --- next_hop ---
# What waits for each next hop, since when, why, and when it is tried again: `waiting` of a status.


NEXT_HOPS_MAX = 100  # told in a status, those with the most frames


def next_hop_status(instance: Running, now: float) -> list[dict[str, Any]]:
    """Those for which frames wait, the most first, at this monotonic instant. Loop-only. Cost: the next hops."""
    holding = [outbox for outbox in instance.forwarder.table.all_outboxes() if outbox.held]
    most = heapq.nlargest(NEXT_HOPS_MAX, holding, key=lambda outbox: len(outbox.held))
    return [_told(outbox, instance, now) for outbox in most]


def _told(outbox: Outbox, instance: Running, now: float) -> dict[str, Any]:
    hop = next_hop(outbox, instance.mirrors)
    attempts = instance.peers.table.histories.get(hop) if isinstance(hop, NetworkAddress) else None
    wait = (
        None if attempts is None or outbox.outlet is not None else round(max(0.0, attempts.suppressed_until - now), 3)
    )
    return {
        "next_hop": str(hop),
        "held": len(outbox.held),
        "held_bytes": outbox.share.used_bytes,
        "oldest_s": round(now - next(iter(outbox.held)).since, 3),
        "why": why_held(outbox, instance.peers, instance.mirrors),
        "next_attempt_s": wait,
    }
