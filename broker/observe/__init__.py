"""Observability: logs, metrics, system views, status, events and diagnosis."""
