"""
A page of the documentation, executed block by block in the order in which it is read.

| Block | What becomes of it |
|---|---|
| `toml`, `sql`, `python` whose first line is a comment with a path | written to that file |
| `sh` | carried out line by line; each line has to end with 0, or with what `# exit code N` at its end says |
| `text` behind `sh` | what it has to print, apart from how it is wrapped; see `matches` |

A block of another kind, and a `text` behind nothing that prints, is a mistake of the page. So is Python without a path:
a prompt takes no statement right behind a loop, and prints the value of every call.

A line of the shell that only calls `broker` runs inside of the test, but for Spark, `broker serve ... &` from the fork
server, and anything else in bash. Nobody waits for a daemon unless the page does, by `broker health --wait`: its reader
has nobody either. `kill -KILL %2` kills the second daemon of the page, `wait %2` waits for its end. A question is asked
again until its answer is that of the page, for SECONDS at most. Ports `127.0.0.1:4022` of the page are replaced by free
ones, in what is written and what is printed.
"""

import os
import re
import shlex
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from examples.demo.topology import Process, free_port
from tests.support.command import run
from tests.support.forked import FORK_SERVER

DOCS = Path(__file__).parents[2] / "docs"
SECONDS = 60.0
POLL_SECONDS = 0.1
QUESTIONS = {"sql", "status", "explain", "why", "health"}  # they change nothing, so they may be asked again
GUID = re.compile(r"[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")
PASSING = (
    (re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d(?::\d\d(?:\.\d+)?)?\b"), "INSTANT"),
    (re.compile(r"\b\d+(?:\.\d+)? (?:ms|s)\b"), "DURATION"),
    (re.compile(r"\b[0-9a-f]{64}\b"), "FINGERPRINT"),
)
PORT = re.compile(r"(?<=127\.0\.0\.1:)\d{4,5}\b")
PATH = re.compile(r"(?:#|--) (?P<path>[\w./-]+\.(?:toml|sql|py))\n")
CODE = re.compile(r"\s+# exit code (\d+)$")
CAT = re.compile(r"\$\(cat ([\w./-]+)\)")
PLAIN = re.compile(r"broker (?!pipeline )(?P<words>[^|;&<>`$]+?)(?: > (?P<file>[\w./-]+))?")
JOB = re.compile(r"(?P<what>kill -KILL|wait) %(?P<number>\d+)")
SERVE = re.compile(r"broker (?P<words>serve [^|;&<>`$]+) &")


@dataclass(frozen=True, slots=True)
class Block:
    """A fenced block. Shape: `line` is that of its first line in the page, from 1."""

    language: str
    text: str
    line: int


def blocks(page: str) -> list[Block]:
    """The fenced blocks of a page, those in lists too, without their indentation."""
    fence = re.compile(r"^(?P<indent> *)```(?P<language>\w*)\n(?P<text>.*?)^(?P=indent)```$", re.MULTILINE | re.DOTALL)
    return [
        Block(
            found["language"],
            re.sub(f"^{found['indent']}", "", found["text"], flags=re.MULTILINE),
            page.count("\n", 0, found.start("text")) + 1,
        )
        for found in fence.finditer(page)
    ]


def section_of(page: Path, heading: str, directory: Path) -> Path:
    """A file in a directory with one section of a page, for pages of which the rest is no session."""
    text = page.read_text(encoding="utf-8").partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    file = directory / page.name
    file.write_text(text, encoding="utf-8")
    return file


def matches(expected: str, printed: str, *, fixed: frozenset[str] = frozenset()) -> bool:
    """
    Whether a command printed what the page shows.

    `...` on the page stands for any text. Blanks, line breaks and the frames of tables count as one blank, instants and
    durations as one word each, and so do GUIDs but for those in `fixed`: what the files of the page say.
    """
    pattern = re.escape(_lasting(expected, fixed)).replace(re.escape("..."), ".*?")
    return re.fullmatch(pattern, _lasting(printed, fixed), re.DOTALL) is not None


def _lasting(text: str, fixed: frozenset[str]) -> str:
    """A text without what is another one at every run."""
    text = GUID.sub(lambda found: found[0].lower() if found[0].lower() in fixed else "GUID", text)
    for pattern, word in PASSING:
        text = pattern.sub(word, text)
    return " ".join(re.sub("[─-╿]+", " ", text).split())


class Reading:
    """
    One reading of a page in a directory, which is the working directory of the process meanwhile.

    Daemons that the page leaves running are killed at its end. What it has put into the background must end by itself,
    with 0.

    Args:
        page: The file of the page.
        ports: What stands for a port of the page, where it is no free one.
        environ: Of what runs in bash.
    """

    def __init__(
        self, page: Path, *, ports: Mapping[str, str] | None = None, environ: Mapping[str, str] | None = None
    ) -> None:
        self.name = page.name
        text = page.read_text(encoding="utf-8")
        self._blocks = blocks(text)
        self._ports = {port: str(free_port()) for port in sorted(set(PORT.findall(text)))} | dict(ports or {})
        files = "".join(block.text for block in self._blocks if PATH.match(block.text))
        self._fixed = frozenset(guid.lower() for guid in GUID.findall(files))
        self._daemons: list[Process] = []
        self._background: list[subprocess.Popen[bytes]] = []
        self._environ = {**(environ or os.environ), "PYTHONPATH": str(DOCS.parent), "COLUMNS": "100"}
        self._environ["PATH"] = f"{Path(sys.executable).parent}:{os.environ['PATH']}"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for process in self._background:
            if error is not None:
                process.kill()
        codes = [process.wait(SECONDS) for process in self._background]
        for daemon in self._daemons:
            daemon.kill()  # a page that is about the end of a daemon ends it itself
            daemon.wait(SECONDS)
        if error is not None:
            for log in Path.cwd().rglob("*.toml.log"):
                sys.stdout.write(f"{log.name}:\n{log.read_text(encoding='utf-8')}")
        assert error is not None or not any(codes), f"{self.name}: in the background: ended with {codes}"

    def read(self) -> int:
        """
        Execute the page from top to bottom; how many blocks it has.

        Raises:
            AssertionError: a line of it does not do what the page says; names page and line.
        """
        following = [*self._blocks[1:], Block("", "", 0)]
        for block, behind in zip(self._blocks, following, strict=True):
            expected = behind.text if behind.language == "text" else None
            if path := PATH.match(block.text):
                file = Path(path["path"])
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_text(self._with_free_ports(block.text), encoding="utf-8")
            elif block.language == "sh":
                self._carry_out(block, expected)
            else:
                assert block.language == "text", f"{self.name}:{block.line}: a block that nothing executes"
        behind_what = zip([Block("", "", 0), *self._blocks], self._blocks, strict=False)
        for before, block in behind_what:
            if block.language == "text":
                assert before.language == "sh", f"{self.name}:{block.line}: printed by nothing"
        return len(self._blocks)

    def _carry_out(self, block: Block, expected: str | None) -> None:
        """Every line of a block of the shell; where it is one question, until it is answered as the page says."""
        lines = list(_lines(block.text))
        is_question = all(line.split()[:1] == ["broker"] and line.split()[1] in QUESTIONS for line in lines)
        deadline = time.monotonic() + SECONDS
        while True:
            results = []
            for line in lines:
                results.append((line, *self._line(line)))
                if results[-1][1] != results[-1][3]:
                    break  # what follows needs it
            told = "".join(printed for _, _, printed, _ in results)
            is_good = all(code == wanted for _, code, _, wanted in results)
            is_told = expected is None or matches(expected, told, fixed=self._fixed)
            if (is_good and is_told) or not is_question or time.monotonic() > deadline:
                break
            time.sleep(POLL_SECONDS)
        for line, code, printed, wanted in results:
            assert code == wanted, f"{self.name}:{block.line}: {line}: ended with {code}\n{printed}"
        self._judge(block, expected, told)

    def _judge(self, block: Block, expected: str | None, printed: str) -> None:
        if expected is not None:
            assert matches(expected, printed, fixed=self._fixed), f"{self.name}:{block.line}: printed\n{printed}"

    def _line(self, line: str) -> tuple[int, str, int]:
        """Carry out one line: its exit code, what it printed, and the exit code that the page says."""
        found = CODE.search(line)
        wanted = int(found[1]) if found else 0
        line = re.sub(r"\s+# .*$", "", line)
        command = CAT.sub(lambda cat: Path(cat[1]).read_text(encoding="utf-8").strip(), self._with_free_ports(line))
        if serve := SERVE.fullmatch(command):
            words = shlex.split(serve["words"])
            log = Path(f"{words[-1]}.log").absolute()
            self._daemons.append(FORK_SERVER.start(words, log, self._environ, directory=Path.cwd()))
            return 0, "", wanted
        if job := JOB.fullmatch(command):
            daemon = self._daemons[int(job["number"]) - 1]
            if job["what"] != "wait":
                daemon.kill()
            daemon.wait(SECONDS)
            return 0, "", wanted
        if plain := PLAIN.fullmatch(command):
            result = run(*shlex.split(plain["words"]))
            if plain["file"]:
                Path(plain["file"]).write_text(result.stdout, encoding="utf-8")
                return result.exit_code, result.stderr, wanted
            return result.exit_code, self._with_ports_of_the_page(result.output), wanted
        if command.endswith(" &"):
            self._background.append(subprocess.Popen(["bash", "-c", f"exec {command[:-2]}"], env=self._environ))
            return 0, "", wanted
        done = subprocess.run(
            ["bash", "-c", command],
            env=self._environ,
            check=False,
            timeout=4 * SECONDS,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        return done.returncode, self._with_ports_of_the_page(done.stdout), wanted

    def _with_free_ports(self, text: str) -> str:
        return PORT.sub(lambda found: self._ports.get(found[0], found[0]), text)

    def _with_ports_of_the_page(self, text: str) -> str:
        shown = {free: port for port, free in self._ports.items()}
        return PORT.sub(lambda found: shown.get(found[0], found[0]), text)


def _lines(text: str) -> Iterator[str]:
    """The commands of a block: lines that end with a backslash go on, comments and empty lines are none."""
    for line in text.replace("\\\n", " ").splitlines():
        if line.strip() and not line.startswith("#"):
            yield line.strip()
