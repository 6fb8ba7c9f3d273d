"""The command `broker`: the outermost layer, for people and scripts."""

from broker.cli.main import main

__all__ = ["main"]
