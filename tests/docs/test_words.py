"""Plain words: the texts of `broker`, its TOML files among them, and the README have no word of the list."""

import ast
import io
import re
import tokenize
import tomllib
from collections.abc import Iterator
from inspect import cleandoc
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

# Each is a habit that makes a sentence hard to read. Say who does what instead; docs/contributing has the plain words.
WORDS = {
    "tell": r"\b(?:told|tells?)\b",
    "whoever": r"\b[Ww]hoever\b",
    "nobody": r"\b(?:[Nn]obody|[Ss]omebody|[Ee]verybody)\b",
    "bare who": r"\b(?:for|of|by|to) who (?:is|are|has|may|can|[a-z]+s)\b|(?:[.;:] |^)[Ww]ho [a-z]+s\b",
    "behind": r"\b(?:behind|beside)\b(?! (?:a |the )?(?:NAT|proxy|load balancer))",
    "anew": r"\banew\b",
    "is no": r"(?<![Tt]here )\b(?:is|are|was|were) no (?!longer\b|more\b|such\b|need\b)[a-z]+",
    "no more": r"\b(?:no|any) more\b(?! than)(?! [a-z]+ than)",
    "of its own": r"\bof (?:its|their|your|our|one's) (?:very )?own\b",
    "stands": r"\bstands? (?:in|still|for|beside|behind|there|on|below|first|alone|at|where|as)\b",
    "looked at": r"\blooked at\b|\b(?:a|two|next|each|every) looks?\b",
    "give way": r"\bgives? way\b|\bmakes? room\b|\bfinds? no room\b|\bplaces? (?:are|is) taken\b",
    "turn": r"\b(?:takes?|its|their) turns?\b|\bturns? of the loop\b|\bin turns\b",
    "headless": (
        r"(?m)(?:^|(?<=[.!:] ))(?:That|What|Whose|Whom) "
        r"(?!is\b|are\b|does\b|do\b|to\b|happen|this\b|it (?:means|is|does|says)\b)[a-z]"
    ),
    "way": r"\bon the way\b|\bfinds? (?:no|a|its) way\b|\bother ways\b|\bthe way of\b",
    "what comes": r"\b[Ww]hat (?:comes?|came|goes|went|leaves?|waits?|arrives?|stands?|fits?)\b",
    "else": r"[;,] else\b",
    "believe": r"\b(?:hears?|heard|believed?|believes)\b",
    "adverb": r"\b(?:meanwhile|all the same|alike|at last)\b",
    "private": r"\b(?:crowds?|strangers?|deaf|mended?|spoilt|unwise|nagged|heeds?)\b",
    "phrasal": r"\b(?:carr(?:y|ies|ied) out|put aside|taken back|spelled out|thrown away)\b",
    "very": r"\bvery (?:certificate|instance|process|server|file|database|connection)s?\b|\bthis very\b",
    "tests": r"Held so by",
    "shape": r"\bShape:",
}
PATTERNS = {name: re.compile(pattern) for name, pattern in WORDS.items()}
BROKER = ROOT / "broker"
PARTS = sorted(
    path for path in BROKER.iterdir() if path.suffix == ".py" or (path.is_dir() and path.name != "__pycache__")
)
# What people wrote elsewhere and we only repeat, or what scripts read: the text with the reason.
EXCEPTIONS: frozenset[str] = frozenset(
    {
        "certificate files not looked at",  # a log event
        "clock is behind",  # a log event
        "database made anew",  # a log event
        "instance state not told",  # a log event
        "nobody may connect",  # a log event
        "nobody-may-connect",  # a lint code
        "nobody-may-send",  # a lint code
        "service manager not told",  # a log event
        "setting is unwise",  # a log event
    }
)


def texts(path: Path) -> Iterator[tuple[str, str]]:
    """Every text of a module or of a TOML file, with its line or key."""
    source = path.read_text(encoding="utf-8")
    if path.suffix == ".toml":
        yield from values("", tomllib.loads(source))
    else:
        yield from ((str(line), text) for line, text in module_texts(source))


def values(key: str, value: object) -> Iterator[tuple[str, str]]:
    """The texts among the values of a TOML table, with their keys."""
    if isinstance(value, str):
        yield key, value
    elif isinstance(value, dict):
        for name, one in value.items():
            yield from values(f"{key}.{name}".lstrip("."), one)
    elif isinstance(value, list):
        for one in value:
            yield from values(key, one)


def module_texts(source: str) -> Iterator[tuple[int, str]]:
    """The texts of a module: docstrings, other strings but SQL and patterns, and comments."""
    tree = ast.parse(source)
    inside = {id(part) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in ast.walk(node)}
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            parts = [str(part.value) if isinstance(part, ast.Constant) else "{}" for part in node.values]
            yield node.lineno, "".join(parts)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in inside:
            yield node.lineno, cleandoc(node.value)
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string.lstrip("# ")


def found_in(text: str) -> Iterator[str]:
    """The names of the habits that a text has."""
    if re.search(
        r"\b(?:SELECT|INSERT|UPDATE|DELETE|CREATE)\b.*\b(?:FROM|INTO|SET|TABLE|VIEW|TRIGGER|INDEX)\b", text, re.DOTALL
    ):
        return
    for name, pattern in PATTERNS.items():
        for match in pattern.finditer(text):
            yield f"{name}: {match[0].strip()}"


def habits(path: Path) -> list[str]:
    """The sentences to rewrite in a file, with their lines or keys."""
    return [
        f"{path.relative_to(ROOT)}:{place}: {found}"
        for place, text in texts(path)
        if text not in EXCEPTIONS
        for found in found_in(text)
    ]


@pytest.mark.parametrize("part", PARTS, ids=lambda path: path.stem)
def test_a_part_speaks_plainly(part: Path) -> None:
    files = sorted([*part.rglob("*.py"), *part.rglob("*.toml")]) if part.is_dir() else [part]

    assert [] == [one for path in files for one in habits(path)]


def test_the_readme_speaks_plainly() -> None:
    text = re.sub(r"```.*?```|`[^`]*`", "", (ROOT / "README.md").read_text(encoding="utf-8"), flags=re.DOTALL)

    assert [] == list(found_in(text))
