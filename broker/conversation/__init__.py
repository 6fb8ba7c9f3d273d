"""The rules of a conversation: states, places, windows, names. Pure."""
