"""
Parts of advice in messages: the name that was probably meant, and the statement to run, always in the same form.

`broker.ddl.render` writes whole statements with the same names and texts.
"""

from __future__ import annotations

from collections.abc import Iterable
from difflib import SequenceMatcher, get_close_matches
from itertools import islice

FOLDED_MAX = 5000  # names that are compared without case and outer blanks
NEAR_MAX = 3  # spellings that are compared a second time
SPELLINGS_MAX = 500  # names that are compared by their spelling, 0.1 ms each
ADDRESS_GAP = "tcp://HOST:PORT"  # in a statement, where the address is not known


def near_name(name: str, known: Iterable[str], *, cutoff: float = 0.8) -> str:
    """
    Return the known name that a misspelt one probably means; empty when none is near. Cost: bounded, some 50 ms.

    Args:
        name: As it was written.
        known: The names that exist.
        cutoff: Of `difflib`, 0 to 1; 0.8 is a slip in a word of five letters.
    """
    by_folded = {one.strip().casefold(): one for one in islice(known, FOLDED_MAX) if one != name}
    folded = name.strip().casefold()
    compared = [folded] if folded in by_folded else list(islice(by_folded, SPELLINGS_MAX))
    near = get_close_matches(folded, compared, n=NEAR_MAX, cutoff=cutoff)
    return next((by_folded[one] for one in near if _are_near_behind_a_path(folded, one, cutoff)), "")


def _are_near_behind_a_path(one: str, other: str, cutoff: float) -> bool:
    """Whether names are still near without a path that they share, such as //shop/."""
    path = one[: one.rfind("/") + 1]
    ends = (one[len(path) :], other[len(path) :]) if path and other.startswith(path) else (one, other)
    return one == other or SequenceMatcher(None, *ends).ratio() >= cutoff


def render_name(name: str) -> str:
    """A name in brackets, as statements write it."""
    return "[" + name.replace("]", "]]") + "]"


def render_text(text: str) -> str:
    """A text in quotes, as statements write it."""
    return ("'" if text.isascii() else "N'") + text.replace("'", "''") + "'"


def create_route(service: str, instance: str = "", address: str = ADDRESS_GAP) -> str:
    """The statement that makes a route to a service, or to a broker instance of it."""
    name, text = render_name(f"{service} {instance[:8]}".rstrip()), render_text(service)
    option = f" BROKER_INSTANCE = '{instance}'," if instance else ""
    return f"CREATE ROUTE {name} WITH SERVICE_NAME = {text},{option} ADDRESS = '{address}';"


def to_install(extra: str) -> str:
    """The command that installs an extra of this distribution, from an index and in a checkout."""
    return f"pip install 'service-broker[{extra}]' (in a checkout, pip install '.[{extra}]')"


def to_run(statement: str, *, database: str, instance: str = "", is_scripted: bool = True, option: str = "") -> str:
    """
    How a statement is run: where, with which command, and the text to copy.

    Args:
        statement: With its `;`.
        database: The database that it is about.
        instance: The instance, as a sentence names it; empty where the context does.
        is_scripted: Whether the statement belongs into the script of the database as well.
        option: Names the configuration, after a blank; empty where it is not known.
    """
    where = f"at {instance}, " if instance else ""
    script = ", and in its script if it has one" if is_scripted else ""
    return f"{where}with broker sql{option}{script}: USE {render_name(database)}; {statement}"


def run_at(instance: str, hint: str) -> str:
    """What `to_run` gives, perhaps after a condition, with the instance where it is run."""
    return hint.replace("with broker sql", f"at {instance}, with broker sql", 1)
