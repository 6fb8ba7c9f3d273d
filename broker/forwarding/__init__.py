"""The one pass of a frame through an instance. Pure."""
