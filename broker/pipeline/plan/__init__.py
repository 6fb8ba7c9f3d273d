"""What another set of routes would have done to the history."""
