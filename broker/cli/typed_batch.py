"""
What has been typed so far: whether it is a whole statement, and whether it holds a secret.

As sqlcmd does, a line with GO ends what was typed before it; as other prompts do, so does a `;` at the end of a line,
unless it stands in a text, a name in brackets or a comment.
"""

from __future__ import annotations

import re

# What hides a `;`: texts, names, comments; the last alternative of each pair is one that is not closed.
_HIDING = re.compile(
    r"""'(?:[^']|'')*+' | "(?:[^"]|"")*+" | \[(?:[^\]]|\]\])*+\] | --[^\n]*+ | /\*.*?\*/""", re.DOTALL | re.VERBOSE
)
_OPENING = re.compile(r"""['"\[]|/\*""")
_GO = re.compile(r"[ \t]*GO[ \t]*;?[ \t]*", re.IGNORECASE)
_USE = re.compile(r"\s*USE\s+(?:\[((?:[^\]]|\]\])+)\]|([^\s\[;]+))\s*;?\s*", re.IGNORECASE)
_SECRET = re.compile(r"PASSWORD|PASSPHRASE|SECRET|TOKEN|PRIVATE[\s_]*KEY|\bBEARER\b", re.IGNORECASE)


def is_go(line: str) -> bool:
    """Whether a line ends the batch before it."""
    return _GO.fullmatch(line) is not None


def is_open(text: str) -> bool:
    """Whether a text, a name or a comment in it is not closed yet, so that the next line belongs to it."""
    return _OPENING.search(_HIDING.sub(" ", text)) is not None


def is_whole(text: str) -> bool:
    """Whether a `;` ends it."""
    bare = _HIDING.sub(" ", text)
    return bare.rstrip().endswith(";") and _OPENING.search(bare) is None


def is_blank(text: str) -> bool:
    """Whether there is nothing in it but blanks, comments and semicolons."""
    return not re.sub(r"--[^\n]*+|/\*.*?\*/|[\s;]", "", text, flags=re.DOTALL)


def is_secret(text: str) -> bool:
    """Whether it may hold what must not be kept: a password, a token, a key; or it begins with a blank."""
    return text[:1] in {" ", "\t"} or _SECRET.search(text) is not None


def used_database(text: str) -> str | None:
    """The database of a `USE name` that stands alone; else None."""
    found = _USE.fullmatch(text)
    return None if found is None else (found[1] or found[2]).replace("]]", "]")
