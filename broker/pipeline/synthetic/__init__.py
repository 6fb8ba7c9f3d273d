"""A history that is made up, and the truth about it."""
