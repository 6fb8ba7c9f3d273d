"""Who somebody is, what they may do, and what only they can read."""
