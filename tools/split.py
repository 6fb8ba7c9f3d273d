# ruff: noqa: D103, S603, S607, PLW2901 - goes with the restructuring
"""Move names of one module into a new one: python -m tools.split broker/a.py broker/b.py NAME ..."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

from tools.moves import RUFF, dotted, names_of, tracked


def main() -> None:
    source, target, *names = sys.argv[1:]
    text = Path(source).read_text(encoding="utf-8")
    lines = text.splitlines(keepends=True)
    tree = ast.parse(text)
    wanted = set(names)
    head, spans, own = [], [], set()
    first = True
    for node in tree.body:
        begin = min([node.lineno, *(one.lineno for one in getattr(node, "decorator_list", []))])
        is_import = isinstance(node, ast.Import | ast.ImportFrom) or (
            isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
        )
        if is_import:
            head.append("".join(lines[begin - 1 : node.end_lineno]))
            continue
        found = set(names_of(node))
        if found & wanted:
            while lines[begin - 2].startswith("#"):
                begin -= 1
            end = node.end_lineno
            while end < len(lines) and isinstance(node, ast.Assign | ast.AnnAssign) and lines[end].startswith('"""'):
                end += 1
            spans.append((begin - 1, end))
            wanted -= found
        else:
            own |= found
        first = False
    if wanted:
        sys.exit(f"not in {source}: {wanted}")
    part = "\n\n".join("".join(lines[a:b]) for a, b in spans)
    rest = "".join(line for n, line in enumerate(lines) if not any(a <= n < b for a, b in spans))
    used = sorted(n for n in own if re.search(rf"\b{n}\b", part))
    moved = sorted(n for n in names if re.search(rf"\b{n}\b", rest))
    doc = ast.get_docstring(tree, clean=False)
    new = '"""Part of `' + dotted(source) + '`."""\n\n' + "".join(head)
    if used:
        new += f"from {dotted(source)} import {', '.join(used)}\n"
    Path(target).parent.mkdir(parents=True, exist_ok=True)
    Path(target).write_text(new + "\n\n" + part, encoding="utf-8")
    if moved:
        at = rest.rindex(head[-1]) + len(head[-1]) if not head[-1].startswith("if ") else rest.index(head[-1])
        rest = rest[:at] + f"from {dotted(target)} import {', '.join(moved)}\n" + rest[at:]
    Path(source).write_text(rest, encoding="utf-8")
    old, fresh = dotted(source), dotted(target)
    pattern = re.compile(rf"^(\s*)from {re.escape(old)} import ([^(\n]+|\([^)]*\))$", re.MULTILINE)

    def part_of(match: re.Match[str]) -> str:
        note = "".join(re.findall(r"  #[^\n]*", match[2])[:1])
        listed = [one.strip() for one in re.sub(r"#[^\n]*", "", match[2]).strip("() \n").split(",") if one.strip()]
        gone = [one for one in listed if one.split(" as ")[0] in names]
        stay = [one for one in listed if one not in gone]
        if not gone:
            return match[0]
        out = [f"{match[1]}from {fresh} import {', '.join(gone)}{note}"]
        if stay:
            out.append(f"{match[1]}from {old} import {', '.join(stay)}{note}")
        return "\n".join(out).replace("\n\n", "\n")

    for file in tracked():
        if file.suffix not in {".py", ".pyi", ".pyx"} or str(file) in {source, target}:
            continue
        before = file.read_text(encoding="utf-8")
        after = pattern.sub(part_of, before)
        for name in names:
            after = after.replace(f"{old}.{name}", f"{fresh}.{name}")
        if after != before:
            file.write_text(after, encoding="utf-8")
    subprocess.run(["git", "add", target], check=True)
    subprocess.run([RUFF, "check", "--fix", "-q", "--select", "I,F401", "broker", "tests", "bench"], check=False)
    del doc, first


if __name__ == "__main__":
    main()
