"""Commands of the system, run to their end."""

from __future__ import annotations

import subprocess

from tests.chaos.network.impairment import NetworkError

SECONDS = 30.0


def run(*words: str, lines: list[str] | None = None) -> None:
    """
    Run a command; `lines` are its standard input.

    Raises:
        NetworkError: it is not there, or says that it failed; with its last words.
    """
    told = None if lines is None else "".join(f"{line}\n" for line in lines)
    try:
        done = subprocess.run(words, input=told, capture_output=True, text=True, timeout=SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NetworkError(f"{' '.join(words)}: {error}") from error
    if done.returncode:
        raise NetworkError(f"{' '.join(words)}: {(done.stderr or done.stdout).strip() or done.returncode}")
