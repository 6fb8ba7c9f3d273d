"""The metrics of a run: what runs, since when, whether it serves, and whether its loop keeps time."""

from __future__ import annotations

import platform
import time
from collections.abc import Mapping

from broker.observe.described import MetricDefinition, Reader, Samples, single
from broker.observe.instance import Running
from broker.observe.logs import dropped_lines
from broker.observe.status import loop_name

LAG = "broker_event_loop_lag_seconds"

RUN_METRICS = (
    MetricDefinition(
        "broker_build_info",
        "Always 1; the labels tell what runs.",
        ("software", "python", "loop", "kernel"),
    ),
    MetricDefinition("broker_uptime_seconds", "Time since the instance was started."),
    MetricDefinition("broker_ready", "1 while the instance serves, 0 while it starts or stops."),
    MetricDefinition(
        "broker_task_failures_total",
        "How often a task that lasts as long as the instance has died and was begun anew.",
        ("task",),
    ),
    MetricDefinition(
        "broker_config_last_reload_successful",
        "1 while the last reload of the configuration was successful, or there was none; 0 when it failed.",
    ),
    MetricDefinition(
        "broker_config_last_reload_success_timestamp_seconds",
        "When the configuration in force was taken over, at the start or by a reload, as seconds since 1970.",
    ),
    MetricDefinition(
        "broker_config_reloads_total", "Reloads of the configuration, by what became of them.", ("result",)
    ),
    MetricDefinition("broker_config_keys_waiting", "Settings whose new values wait for a restart."),
    MetricDefinition(
        "broker_log_lines_dropped_total", "Lines of the log that were lost because nobody took them in time."
    ),
    MetricDefinition(LAG, "By how much the event loop was late at worst in the last 15 s."),
)


def run_readers() -> Mapping[str, Reader]:
    """What reads each of them on the loop."""
    return {
        "broker_build_info": _build,
        "broker_uptime_seconds": single(lambda instance: time.time() - instance.started_at),
        "broker_ready": single(lambda instance: instance.is_ready),
        "broker_task_failures_total": _failures,
        "broker_config_last_reload_successful": single(lambda instance: instance.reloads.is_successful),
        "broker_config_last_reload_success_timestamp_seconds": single(
            lambda instance: instance.reloads.last_success_at
        ),
        "broker_config_reloads_total": _reloads,
        "broker_config_keys_waiting": single(lambda instance: len(instance.reloads.waiting)),
        "broker_log_lines_dropped_total": single(lambda _: dropped_lines()),
        LAG: single(lambda instance: instance.lag.seconds),
    }


def _reloads(instance: Running) -> Samples:
    yield ("succeeded",), instance.reloads.succeeded
    yield ("failed",), instance.reloads.failed


def _failures(instance: Running) -> Samples:
    yield from (((task,), count) for task, count in instance.supervision.failures.items())
    if instance.journal is not None:
        yield ("journal",), instance.journal.status()["failures"]


def _build(instance: Running) -> Samples:
    yield (instance.software, platform.python_version(), loop_name(), instance.forwarder.kernel_name), 1
