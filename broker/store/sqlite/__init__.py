"""The store on SQLite: one file for each database."""
