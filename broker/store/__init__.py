"""The file of a database: what is kept in it, and every statement that reads or changes it for the daemon."""
