"""The command `broker`: the outermost layer, for people and scripts."""

from broker.cli.group import main

__all__ = ["main"]
