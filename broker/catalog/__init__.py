"""Everything that reads or changes definitions: running statements, checking configurations, scripts, partner files."""
