"""Bytes to frames and back: protocol version 1, pure."""
