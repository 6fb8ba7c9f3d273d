"""Rows about what there is: mirrored pairs, databases and the ledger, the journal, certificates, processes."""

from __future__ import annotations

from tools.dashboard.panel import (
    DAY,
    FAULT,
    GREEN,
    ORANGE,
    RED,
    SELECTED,
    WARNING,
    Kind,
    Panel,
    Query,
    Row,
    gauge,
    line,
    rate,
)

_ENDS = "broker_tls_certificate_expiry_timestamp_seconds"

MIRRORS = Row(
    "Mirrored pairs",
    (
        Panel(
            "Mirrored routes",
            "As the instance that has the route sees both partners.",
            (Query(gauge("broker_mirror_state"), "{{instance}} {{route}}"),),
            kind=Kind.STATES,
            names=((1, "operational", GREEN), (2, "principal only", ORANGE), (3, "not operational", RED)),
            width=12,
        ),
        Panel(
            "Where messages of the pair go",
            "The address that is believed to be the principal.",
            (Query(gauge("broker_mirror_principal"), "{{instance}} {{route}}: {{address}}"),),
            kind=Kind.STATES,
            names=((0, "mirror", "blue"), (1, "principal", GREEN)),
            width=12,
        ),
        Panel(
            "Roles of databases here",
            "What each instance is for its own database.",
            (Query(gauge("broker_database_principal"), "{{instance}} {{database}}"),),
            kind=Kind.STATES,
            names=((0, "mirror", "blue"), (1, "principal", GREEN)),
        ),
        line(
            "Epoch", "Grows by one with every take-over.", gauge("broker_database_epoch"), "{{instance}} {{database}}"
        ),
        Panel(
            "Probes and answers",
            "The partners of a pair are asked who is the principal.",
            (
                Query(rate("broker_mirror_probes_total", "instance"), "{{instance}} asked"),
                Query(rate("broker_mirror_answers_total", "instance, role"), "{{instance}} answered {{role}}"),
            ),
            "cps",
        ),
    ),
)

DATABASES = Row(
    "Databases and the ledger",
    (
        line(
            "Unacknowledged messages",
            "Messages of applications that the far side has not acknowledged.",
            gauge("broker_transmission_queue_messages"),
            "{{instance}} {{database}}",
        ),
        line(
            "Dialogs",
            "By service and state.",
            f"sum by (instance, service, state) (broker_dialogs{{{SELECTED}}})",
            "{{instance}} {{service}} {{state}}",
        ),
        line(
            "Messages to be received",
            "In the queues of applications.",
            gauge("broker_queue_messages"),
            "{{instance}} {{database}} {{queue}}",
        ),
        line(
            "Oldest to be received",
            "When this grows the application does not read its queue.",
            gauge("broker_queue_oldest_seconds"),
            "{{instance}} {{database}} {{queue}}",
            "s",
            thresholds=((300, ORANGE),),
        ),
        line(
            "Oldest dialog",
            "By state. Dialogs that nobody ends grow old here.",
            gauge("broker_dialog_oldest_age_seconds"),
            "{{instance}} {{state}}",
            "s",
        ),
        line(
            "Dialogs in quarantine",
            "By service.",
            gauge("broker_quarantined_dialogs"),
            "{{instance}} {{service}}",
            thresholds=WARNING,
        ),
        Panel(
            "Ledger",
            "What became of every message that applications have sent; all but `sent` add up to `sent`.",
            (Query(f"sum by (instance, database, entry) (broker_ledger_messages{{{SELECTED}}})", ""),),
            kind=Kind.TABLE,
            width=16,
        ),
        line(
            "Unaccounted",
            "What the ledger cannot explain: 0.",
            gauge("broker_ledger_unaccounted_messages"),
            "{{instance}} {{database}}",
            thresholds=FAULT,
        ),
    ),
)

JOURNAL = Row(
    "Journal",
    (
        line(
            "Visits written",
            "Records in files that have appeared.",
            rate("broker_journal_records_total", "instance"),
            "{{instance}}",
            "cps",
        ),
        line(
            "Visits not in a file yet",
            "A crash would lose these.",
            gauge("broker_journal_pending_records"),
            "{{instance}}",
        ),
        line(
            "Visits lost",
            "There was no room, or they could not be written. Messages are not affected.",
            rate("broker_journal_shed_total", "instance"),
            "{{instance}}",
            "cps",
            thresholds=((0.001, RED),),
        ),
        line(
            "Bytes written",
            "Size of files that have appeared.",
            rate("broker_journal_bytes_total", "instance"),
            "{{instance}}",
            "Bps",
        ),
        Panel(
            "Files",
            "Since the start of the instance.",
            (
                Query(gauge("broker_journal_files_total"), "{{instance}} appeared"),
                Query(gauge("broker_journal_removed_files_total"), "{{instance}} removed"),
            ),
        ),
        line(
            "Errors",
            "Files that could not be written or removed, since the start.",
            gauge("broker_journal_errors_total"),
            "{{instance}}",
            thresholds=FAULT,
        ),
        Panel(
            "Spans of traced messages",
            "What a collector has taken, what waits for it and what was dropped; 0 without tracing.",
            (
                Query(rate("broker_tracing_spans_total", "instance"), "{{instance}} taken"),
                Query(gauge("broker_tracing_pending_spans"), "{{instance}} waiting"),
                Query(rate("broker_tracing_dropped_spans_total", "instance"), "{{instance}} dropped"),
            ),
        ),
    ),
)

CERTIFICATES = Row(
    "Certificates",
    (
        Panel(
            "Time left",
            "Of every certificate that is shown, trusted or shown by a connected peer.",
            (
                Query(
                    f"min by (instance, role, name) ({gauge(_ENDS)}) - time()",
                    "",
                ),
            ),
            "s",
            Kind.TABLE,
            ((7 * DAY, ORANGE), (30 * DAY, GREEN)),
            RED,
            width=12,
        ),
        Panel(
            "Changed certificate files",
            "How often they were put to use and could not be, since the start; and 1 while they are in use.",
            (
                Query(gauge("broker_tls_last_reload_successful"), "{{instance}} in use"),
                Query(gauge("broker_tls_reloads_total"), "{{instance}} used"),
                Query(gauge("broker_tls_reload_failures_total"), "{{instance}} failed"),
            ),
            width=6,
        ),
        line(
            "Handshakes under way", "With those who connect.", gauge("broker_tls_handshakes"), "{{instance}}", width=6
        ),
    ),
)

PROCESS = Row(
    "Processes",
    (
        line("Processor", "1 is one core.", rate("process_cpu_seconds_total", "instance"), "{{instance}}", "none"),
        Panel(
            "Memory",
            "Resident, and address space.",
            (
                Query(gauge("process_resident_memory_bytes"), "{{instance}} resident"),
                Query(gauge("process_virtual_memory_bytes"), "{{instance}} virtual"),
            ),
            "bytes",
        ),
        Panel(
            "File descriptors",
            "Open, and how many there may be.",
            (
                Query(gauge("process_open_fds"), "{{instance}} open"),
                Query(gauge("process_max_fds"), "{{instance}} limit"),
            ),
        ),
        line(
            "Tasks that died",
            "By task, since the start.",
            gauge("broker_task_failures_total"),
            "{{instance}} {{task}}",
            thresholds=FAULT,
        ),
        Panel(
            "Configuration in use",
            "Whether the last reload was taken.",
            (Query(gauge("broker_config_last_reload_successful"), "{{instance}}"),),
            kind=Kind.STATES,
            names=((0, "refused", RED), (1, "taken", GREEN)),
        ),
        Panel(
            "Reloads of the configuration",
            "By what became of them since the start, and settings whose new values wait for a restart.",
            (
                Query(gauge("broker_config_reloads_total"), "{{instance}} {{result}}"),
                Query(gauge("broker_config_keys_waiting"), "{{instance}} keys wait"),
            ),
        ),
        line(
            "Age of the configuration",
            "Since the configuration in use was taken.",
            "time() - " + gauge("broker_config_last_reload_success_timestamp_seconds"),
            "{{instance}}",
            "s",
        ),
        line("Uptime", "A drop is a restart.", gauge("broker_uptime_seconds"), "{{instance}}", "s"),
        Panel(
            "What runs",
            "Version, Python, event loop and kernel of each instance.",
            (Query(f"max by (instance, software, python, loop, kernel) (broker_build_info{{{SELECTED}}})", ""),),
            kind=Kind.TABLE,
        ),
        line("Threads", "Of the interpreter.", gauge("process_threads"), "{{instance}}"),
        Panel(
            "Garbage collection",
            "Runs, and objects freed, by generation.",
            (
                Query(rate("python_gc_collections_total", "instance, generation"), "{{instance}} {{generation}} runs"),
                Query(
                    rate("python_gc_objects_collected_total", "instance, generation"),
                    "{{instance}} {{generation}} objects",
                ),
            ),
            "cps",
        ),
        line(
            "Lines of the log lost",
            "Nobody took them in time; since the start.",
            gauge("broker_log_lines_dropped_total"),
            "{{instance}}",
            thresholds=FAULT,
        ),
        line(
            "Age of processes",
            "Since the process was started.",
            "time() - " + gauge("process_start_time_seconds"),
            "{{instance}}",
            "s",
        ),
        line(
            "Label values folded",
            'Values told as "other", because a label had 500 others.',
            gauge("broker_metrics_label_overflow_total"),
            "{{instance}}",
        ),
    ),
)
