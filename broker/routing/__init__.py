"""Which way: the seven steps of matching, then the choice. Pure."""
