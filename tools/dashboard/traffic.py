"""Rows about what passes: at a glance, traffic, latency, and what keeps it from passing."""

from __future__ import annotations

from tools.dashboard.panel import (
    DAY,
    FAULT,
    GREEN,
    ORANGE,
    RED,
    SELECTED,
    WARNING,
    WINDOW,
    Kind,
    Panel,
    Query,
    Row,
    gauge,
    line,
    number,
    quantiles,
    rate,
)

_UP = ((0, "down", RED), (1, "up", GREEN))
_OTHER_DROPS = ',reason!~"duplicate|already held|asking for route|shut down"'

GLANCE = Row(
    "At a glance",
    (
        number(
            "Instances up",
            "How many of the chosen instances answer a scrape.",
            f"sum(up{{{SELECTED}}})",
            base=RED,
            thresholds=((1, GREEN),),
        ),
        number(
            "Instances not ready",
            "They start or stop. `/readyz?verbose` of each tells why.",
            f"count(broker_ready{{{SELECTED}}} == 0) or vector(0)",
            thresholds=WARNING,
        ),
        number(
            "Alerts firing",
            "Of the rules that come with broker; the documentation has a section for each.",
            f'count(ALERTS{{alertstate="firing",{SELECTED}}}) or vector(0)',
            thresholds=WARNING,
        ),
        number(
            "Ledger unaccounted",
            "Anything but 0 for longer than a moment is a fault of the program.",
            f"sum(abs(broker_ledger_unaccounted_messages{{{SELECTED}}}))",
            thresholds=FAULT,
        ),
        number(
            "Next hops not reached",
            "Addresses of live routes that did not answer or were lost, seen from each instance.",
            f"count(min by (instance, address) (broker_route_up{{{SELECTED}}}) == 0) or vector(0)",
            thresholds=FAULT,
        ),
        number(
            "First certificate to end",
            "Of all that are shown, trusted or shown by peers.",
            f"min(broker_tls_certificate_expiry_timestamp_seconds{{{SELECTED}}}) - time()",
            "s",
            base=RED,
            thresholds=((7 * DAY, ORANGE), (30 * DAY, GREEN)),
        ),
        number(
            "Frames received",
            "All instances together.",
            f"sum(rate(broker_messages_received_total{{{SELECTED}}}{WINDOW}))",
            "cps",
        ),
        number(
            "Messages delivered",
            "Whole messages put into queues.",
            f"sum(rate(broker_messages_delivered_total{{{SELECTED}}}{WINDOW}))",
            "cps",
        ),
        number(
            "Frames dropped",
            "For reasons that do not heal by themselves. No message is lost: its sender has it.",
            f"sum(rate(broker_messages_dropped_total{{{SELECTED}{_OTHER_DROPS}}}{WINDOW}))",
            "cps",
            thresholds=((0.01, ORANGE),),
        ),
        number("Frames held", "They wait for their next hop.", f"sum(broker_forward_pool_messages{{{SELECTED}}})"),
        number(
            "Oldest unacknowledged",
            "Age of the first message that the far side has not acknowledged.",
            f"max(broker_transmission_queue_oldest_seconds{{{SELECTED}}})",
            "s",
            thresholds=((60, ORANGE), (300, RED)),
        ),
        number(
            "Dialogs in quarantine",
            "Their readers failed at the same message again and again. `broker quarantine list` names them.",
            f"sum(broker_quarantined_dialogs{{{SELECTED}}})",
            thresholds=WARNING,
        ),
    ),
)

TRAFFIC = Row(
    "Traffic",
    (
        line(
            "Frames received",
            "By the peer that brought them; without a peer, from databases of the instance.",
            rate("broker_messages_received_total", "instance, peer"),
            "{{instance}} from {{peer}}",
            "cps",
        ),
        line(
            "Frames forwarded",
            "By the address of the next hop.",
            rate("broker_messages_forwarded_total", "instance, peer"),
            "{{instance}} to {{peer}}",
            "cps",
        ),
        line(
            "Messages delivered",
            "Whole messages that applications can receive, by service.",
            rate("broker_messages_delivered_total", "instance, service"),
            "{{instance}} {{service}}",
            "cps",
        ),
        line(
            "Frames dropped",
            "By reason; docs/dispositions.md says what to do about each.",
            rate("broker_messages_dropped_total", "instance, reason") + " > 0",
            "{{instance}} {{reason}}",
            "cps",
        ),
        line(
            "Sent again",
            "Part of the frames that databases sent because no acknowledgement had come.",
            f"instance:broker_retransmits:share5m{{{SELECTED}}}",
            "{{instance}}",
            "percentunit",
            thresholds=((0.05, ORANGE),),
        ),
        Panel(
            "Resends and duplicates",
            "Messages sent again, by next hop, and frames that had been stored before.",
            (
                Query(rate("broker_retransmits_total", "instance, peer"), "{{instance}} again to {{peer}}"),
                Query(rate("broker_duplicates_total", "instance"), "{{instance}} duplicates"),
            ),
            "cps",
        ),
    ),
)

LATENCY = Row(
    "Latency",
    (
        Panel(
            "Time at a hop",
            "From a frame's read to its hand-over; frames that had to wait are among them.",
            quantiles("broker_hop_duration_seconds", "instance", "{{instance}}"),
            "s",
        ),
        Panel(
            "Time at a hop, spread",
            "How many frames took how long, all chosen instances together.",
            (Query(f"sum by (le) (increase(broker_hop_duration_seconds_bucket{{{SELECTED}}}{WINDOW}))", "{{le}}"),),
            "s",
            Kind.HEATMAP,
        ),
        Panel(
            "Round trip of acknowledgements",
            "From the sending of a message to its acknowledgement, which comes after the commit at the far side.",
            quantiles("broker_ack_roundtrip_seconds", "instance, peer", "{{instance}} {{peer}}"),
            "s",
        ),
        Panel(
            "Commit of a database",
            "What a transaction of the writer takes; the disk is slow when this is.",
            quantiles("broker_store_commit_seconds", "instance, database", "{{instance}} {{database}}"),
            "s",
        ),
        line(
            "Event loop late",
            "At worst within 15 s. Above 0.1 s something blocks or the machine is too slow.",
            gauge("broker_event_loop_lag_seconds"),
            "{{instance}}",
            "s",
            thresholds=((0.1, RED),),
        ),
        line(
            "Oldest unacknowledged",
            "By database.",
            gauge("broker_transmission_queue_oldest_seconds"),
            "{{instance}} {{database}}",
            "s",
            thresholds=((300, RED),),
        ),
    ),
)

POOL = Row(
    "Pool, next hops and connections",
    (
        line(
            "Pool in use",
            "Memory of frames that wait, as a part of endpoint.message_forward_size.",
            gauge("broker_forward_pool_bytes") + " / " + gauge("broker_forward_pool_limit_bytes"),
            "{{instance}}",
            "percentunit",
            thresholds=((0.8, ORANGE), (0.95, RED)),
        ),
        line("Frames that wait", "For their next hop.", gauge("broker_forward_pool_messages"), "{{instance}}"),
        Panel(
            "Dropped for the pool's shares",
            "One next hop, or what one peer had brought, had taken its part of the pool.",
            (
                Query(rate("broker_forward_share_exceeded_total", "instance"), "{{instance}} next hop"),
                Query(rate("broker_forward_peer_share_exceeded_total", "instance"), "{{instance}} peer"),
            ),
            "cps",
        ),
        Panel(
            "Next hops",
            "Whether the address of a route answers, as far as the instance knows.",
            (Query(f"min by (instance, address) (broker_route_up{{{SELECTED}}})", "{{instance}} to {{address}}"),),
            kind=Kind.STATES,
            names=_UP,
            width=16,
        ),
        line(
            "Connections",
            "By peer, who opened it, and its state.",
            f"sum by (instance, peer, direction, state) (broker_connections{{{SELECTED}}})",
            "{{instance}} {{direction}} {{peer}} {{state}}",
        ),
        line(
            "Flow of connections",
            "Derived from what has really moved and from what answered last, not from what is open.",
            f"sum by (instance, flow) (broker_connection_flows{{{SELECTED}}})",
            "{{instance}} {{flow}}",
        ),
        Panel(
            "Limits that were met",
            "Connections refused or ended, and pauses in reading from a peer, by the setting of [limits].",
            (
                Query(rate("broker_connections_refused_total", "instance, limit"), "{{instance}} refused: {{limit}}"),
                Query(rate("broker_connection_pauses_total", "instance, limit"), "{{instance}} paused: {{limit}}"),
            ),
            "cps",
        ),
        line(
            "Peers that break the protocol",
            "By the rule that was broken, since the start of the instance.",
            gauge("broker_peer_faults_total"),
            "{{instance}} {{error}}",
        ),
    ),
)
