"""A running instance: its parts put together, started, reloaded and ended."""
