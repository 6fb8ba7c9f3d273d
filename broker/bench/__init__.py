"""Measurements of running instances."""
