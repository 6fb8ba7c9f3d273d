"""The journal: one row for each visit of a dialog frame to this instance, in Parquet files."""
