"""Statements carried out, configurations checked, scripts and partner files: whatever reads or changes definitions."""
