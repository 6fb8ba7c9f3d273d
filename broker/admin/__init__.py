"""The admin API over HTTP."""
