# ruff: noqa: D102, D103, E501, PLW2901, S603, S607, SIM114 - goes with the restructuring  # noqa: RUF100
"""
Move and join modules by a table, and rewrite what imports them. For the restructuring; it goes when that is done.

    python -m tools.moves MAP.tsv broker/dialog/send_queue.py [NEW ...]     join the old files of each new one
    python -m tools.moves MAP.tsv --tests broker/dialog/send_queue.py       then join their unit tests
    python -m tools.moves MAP.tsv --classes broker/dialog/send_queue.py     rename its classes as the table says, before or after

A line of the table is: old path, new path or `-`, note. A note may say `class Old -> New`. Old files that go to one new
file are joined in the order of their imports. The docstring of the one with the stem of the new file stays; those of the
others become headings. Names that clash stop a join of the product; in tests the later one gets the stem of its file.
The text is moved as it is: the result is to be rewritten as one module afterwards.
"""

from __future__ import annotations

import ast
import io
import re
import subprocess
import sys
import textwrap
import tokenize
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path.cwd()
RUFF = str(Path(sys.executable).parent / "ruff")
TEXTS = {".md", ".toml", ".py", ".pyx", ".pxi", ".yaml", ".yml", ".sh", ".json", ".cfg", ".in", ".txt", ".pml", ""}


@dataclass
class Module:
    """An old file, taken apart. Shape: `body` its text without docstring and imports; `typed` imports for types alone."""

    path: Path
    docstring: str = ""
    imports: list[ast.Import | ast.ImportFrom] = field(default_factory=list)
    typed: list[ast.Import | ast.ImportFrom] = field(default_factory=list)
    body: str = ""
    names: dict[str, str] = field(default_factory=dict)  # top-level name: its text

    @property
    def dotted(self) -> str:
        return dotted(self.path)


def dotted(path: Path | str) -> str:
    """`broker.dialog.alarm` of `broker/dialog/alarm.py`; of an `__init__.py` its package."""
    return str(path).removesuffix(".py").replace("/", ".").removesuffix(".__init__")


def read_map(path: str) -> list[tuple[str, str, str]]:
    lines = [line.split("\t") for line in Path(path).read_text(encoding="utf-8").splitlines() if line.strip()]
    return [(line[0], line[1], line[2] if len(line) > 2 else "") for line in lines]


def tracked() -> list[Path]:
    done = subprocess.run(["git", "ls-files"], capture_output=True, text=True, check=True)
    return [Path(line) for line in done.stdout.splitlines() if (ROOT / line).is_file()]


def take_apart(path: Path) -> Module:
    text = (ROOT / path).read_text(encoding="utf-8")
    tree = ast.parse(text)
    lines = text.splitlines(keepends=True)
    module = Module(path, ast.get_docstring(tree, clean=True) or "")
    gone: set[int] = set()
    for index, node in enumerate(tree.body):
        span = range(node.lineno - 1, node.end_lineno or node.lineno)
        if index == 0 and module.docstring:
            gone.update(span)
        elif isinstance(node, ast.ImportFrom) and node.module == "__future__":
            gone.update(span)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            module.imports.append(node)
            gone.update(span)
        elif isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            module.typed += [one for one in node.body if isinstance(one, ast.Import | ast.ImportFrom)]
            gone.update(span)
        else:
            for name in names_of(node):
                module.names[name] = ast.unparse(node)
    module.body = "".join(line for number, line in enumerate(lines) if number not in gone).strip("\n") + "\n"
    return module


def test_of(module: str) -> str:
    """Where the unit test of a module is."""
    parts = Path(module).parts
    where = ("tests", "spark", *parts[2:-1]) if parts[1] == "pipeline" else ("tests", "unit", *parts[1:-1])
    return str(Path(*where, f"test_{parts[-1]}"))


def names_of(node: ast.stmt) -> Iterator[str]:
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        yield node.name
    elif isinstance(node, ast.Assign):
        parts = [one for target in node.targets for one in (target.elts if isinstance(target, ast.Tuple) else [target])]
        yield from (one.id for one in parts if isinstance(one, ast.Name))
    elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
        yield node.target.id


def in_order(modules: list[Module]) -> list[Module]:
    """Those that others of them import come first."""
    own = {module.dotted: module for module in modules}
    done: list[Module] = []

    def visit(module: Module, path: tuple[str, ...] = ()) -> None:
        if module in done or module.dotted in path:
            return
        for node in module.imports:
            for name in modules_named(node):
                if name in own:
                    visit(own[name], (*path, module.dotted))
        done.append(module)

    for module in modules:
        visit(module)
    return done


def modules_named(node: ast.Import | ast.ImportFrom) -> Iterator[str]:
    """Modules that an import may mean."""
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    elif node.module and not node.level:
        yield node.module
        yield from (f"{node.module}.{alias.name}" for alias in node.names)


def rename(text: str, old: str, new: str) -> str:
    """Another name for a name, but not where it is an attribute or a keyword of a call."""
    out: list[tuple[int, int, int]] = []
    tokens = list(tokenize.generate_tokens(io.StringIO(text).readline))
    for index, token in enumerate(tokens):
        if token.type == tokenize.NAME and token.string == old and (not index or tokens[index - 1].string != "."):
            out.append((token.start[0], token.start[1], token.end[1]))
        elif (
            token.type == tokenize.STRING
            and token.string[:2].lower() in {'f"', "f'", "rf", "fr"}
            and token.start[0] == token.end[0]
        ):
            for part in re.finditer(r"\{[^{}]*\}", token.string):  # Python 3.11 does not take f-strings apart
                for name in re.finditer(rf"(?<![\w.]){old}\b", part[0]):
                    at = token.start[1] + part.start() + name.start()
                    out.append((token.start[0], at, at + len(old)))
    lines = text.splitlines(keepends=True)
    for row, start, stop in reversed(out):
        lines[row - 1] = lines[row - 1][:start] + new + lines[row - 1][stop:]
    return "".join(lines)


def join(modules: list[Module], new: Path) -> str:
    """The text of the new file."""
    modules = in_order(modules)
    own = {module.dotted for module in modules}
    seen: dict[str, str] = {}
    bound: dict[str, str] = {}  # what is imported under a name
    imported = {  # by each module: the names that others of them import
        module.path: {
            alias.asname or alias.name
            for other in modules
            if other is not module
            for node in other.imports
            if not isinstance(node, ast.ImportFrom) or node.module not in own
            for alias in node.names
        }
        for module in modules
    }
    bodies, imports, typed = [], [], []
    main = next((module for module in modules if module.path.stem == new.stem), modules[0])
    for module in modules:
        body = module.body
        for name, text in module.names.items():
            if name == "_":
                continue
            if name == "_":
                continue
            if name not in seen and name not in imported.get(module.path, ()):
                seen[name] = text
            elif (
                seen.get(name) == text
                and "\n" not in text
                and all(seen.get(one) == text for one, its in module.names.items() if its == text)
            ):  # a logger, a type variable: once is enough
                node = next((one for one in ast.parse(body).body if name in names_of(one)), None)
                if node is not None:
                    rows = body.splitlines(keepends=True)
                    body = "".join(rows[: node.lineno - 1] + rows[node.end_lineno or node.lineno :])
            elif str(new).startswith("tests/"):
                stem = module.path.stem.removeprefix("test_")
                other = (
                    stem.title().replace("_", "") + name
                    if name[0].isupper() and not name.isupper()
                    else f"{name}_of_{stem}"
                )
                body, seen[other] = rename(body, name, other), text
            else:
                sys.exit(f"{new}: {name} stands in {module.path} and in another one: rename it first")
        if len(modules) > 1 and module is not main and module.docstring:
            lines = [part for line in module.docstring.splitlines() for part in textwrap.wrap(line, 116) or [""]]
            heading = "\n".join(f"# {line}".rstrip() for line in lines)
            body = f"# --- {module.path.stem} ---\n{heading}\n\n\n{body}"
        for node in module.imports:
            for text in foreign(node, own):
                name = re.split(r" as | import |^import ", text)[-1].strip()
                before = bound.setdefault(name, text)
                if before != text:  # the same name for two things: the later one is called by its module as well
                    other = f"{text.split()[1].rpartition('.')[2]}_{name}"
                    body, text = rename(body, name, other), f"{text.partition(' as ')[0]} as {other}"
                imports.append(text)
        bodies.append(body)
        typed += [text for node in module.typed for text in foreign(node, own)]
    head = f'"""{main.docstring}\n"""\n' if "\n" in main.docstring else f'"""{main.docstring}"""\n'
    head = head.replace('"""', '"""\n', 1) if "\n" in main.docstring else head
    text = head + "\nfrom __future__ import annotations\n\n" + "\n".join(dict.fromkeys(imports)) + "\n"
    left = [line for line in dict.fromkeys(typed) if line not in imports]
    if left:
        text += "from typing import TYPE_CHECKING\n\nif TYPE_CHECKING:\n" + "".join(f"    {line}\n" for line in left)
    return text + "\n\n" + "\n\n".join(bodies)


def foreign(node: ast.Import | ast.ImportFrom, own: set[str]) -> Iterator[str]:
    """An import as lines, without what is in the same new file."""
    if isinstance(node, ast.Import):
        yield from (f"import {alias.name}" + (f" as {alias.asname}" if alias.asname else "") for alias in node.names)
    elif node.module not in own:
        names = [alias for alias in node.names if f"{node.module}.{alias.name}" not in own]
        for alias in names:
            yield f"from {node.module} import {alias.name}" + (f" as {alias.asname}" if alias.asname else "")


def rewrite(files: Iterable[Path], moved: dict[str, str]) -> None:
    """Whatever names one of these modules, by import or as text, names the new one."""
    by_package = re.compile(r"^(\s*)from (broker(?:\.\w+)*|tests(?:\.\w+)*) import ([^(\n]+|\([^)]*\))$", re.MULTILINE)

    def parted(match: re.Match[str]) -> str:
        """`from package import module` where the module has moved: a line for each."""
        indent, package, listed = match[1], match[2], re.sub(r"#[^\n]*", "", match[3]).strip("() \n").split(",")
        out, stay = [], []
        for one in filter(None, (part.strip() for part in listed)):
            name, _, alias = one.partition(" as ")
            target = moved.get(f"{package}.{name}")
            if target is None:
                stay.append(one)
                continue
            parent, _, stem = target.rpartition(".")
            local = alias or name
            out.append(f"{indent}from {parent} import {stem}" + (f" as {local}" if local != stem else ""))
        if not out:
            return match[0]
        return "\n".join(([f"{indent}from {package} import {', '.join(stay)}"] if stay else []) + out)

    names = sorted(moved, key=len, reverse=True)
    as_module = re.compile(rf"(?<![\w.])({'|'.join(map(re.escape, names))})(?!\w)(?!/)")
    paths = {name.replace(".", "/") + ".py": target.replace(".", "/") + ".py" for name, target in moved.items()}
    as_path = re.compile("|".join(re.escape(path) for path in sorted(paths, key=len, reverse=True)))
    for file in files:
        if file.suffix not in TEXTS or file == Path("tools/moves.py") or file.name == "CHANGELOG.md":
            continue
        try:
            text = (ROOT / file).read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue
        new = by_package.sub(parted, text) if file.suffix in {".py", ".pyx", ".pxi"} else text
        new = as_module.sub(lambda match: moved[match[1]], new)
        new = as_path.sub(lambda match: paths[match[0]], new)
        if new != text:
            (ROOT / file).write_text(new, encoding="utf-8")


def main() -> None:
    table, *words = sys.argv[1:]
    is_classes = "--classes" in words
    wanted = [word for word in words if not word.startswith("--")]
    rows = [(old, new, note) for old, new, note in read_map(table) if new in wanted]
    if "--tests" in words:
        rows = [(test_of(old), test_of(new), "") for old, new, _ in rows if (ROOT / test_of(old)).exists()]
        wanted = list(dict.fromkeys(new for _, new, _ in rows))
    if is_classes:
        for new in wanted:
            for source, target, note in rows:
                for old_name, new_name in re.findall(r"class (\w+) -> (\w+)", note if target == new else ""):
                    rename_class(source if (ROOT / source).exists() else new, old_name, new_name)
        return
    moved: dict[str, str] = {}
    for new in wanted:
        olds = [Path(old) for old, target, _ in rows if target == new and (ROOT / old).exists()]
        modules = [take_apart(old) for old in olds if old.name != "__init__.py" or Path(new).name == "__init__.py"]
        text = join(modules, Path(new)) if len(modules) > 1 else (ROOT / olds[0]).read_text(encoding="utf-8")
        keep = next((old for old in olds if old.stem == Path(new).stem), olds[0])
        (ROOT / new).parent.mkdir(parents=True, exist_ok=True)
        if str(keep) != new:
            subprocess.run(["git", "mv", str(keep), new], check=True)
        for old in olds:
            if old != keep and str(old) != new:
                subprocess.run(["git", "rm", "-q", "-f", str(old)], check=True)
        (ROOT / new).write_text(text, encoding="utf-8")
        moved |= {dotted(old): dotted(new) for old in olds if dotted(old) != dotted(new)}
    if moved:
        rewrite(tracked(), moved)
    subprocess.run(
        [RUFF, "check", "--fix", "-q", "--select", "I,F401,F811", "broker", "tests", "bench", "tools", "examples"],
        check=False,
    )
    subprocess.run([RUFF, "format", "-q", "broker", "tests", "bench", "tools", "examples"], check=False)


def rename_class(new: str, old_name: str, new_name: str) -> None:
    """In the module and in all that import the class from it."""
    module = dotted(new)
    for file in tracked():
        if file.suffix not in {".py", ".pyx", ".pxi"}:
            continue
        text = (ROOT / file).read_text(encoding="utf-8")
        if str(file) != new and not re.search(
            rf"from {re.escape(module)} import (?:[^(\n]*|\([^)]*)\b{old_name}\b(?! as)", text
        ):
            continue
        (ROOT / file).write_text(rename(text, old_name, new_name), encoding="utf-8")


if __name__ == "__main__":
    main()
