"""Spans of OpenTelemetry, made of what the journal is told: an extra, imported only where tracing is on."""
