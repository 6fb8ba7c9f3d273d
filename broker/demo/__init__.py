"""Whole topologies of real daemons on loopback, and the story that `broker demo` tells with one."""
