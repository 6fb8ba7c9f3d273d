"""
A Dockerfile as stages of steps, the context that its COPYs see, and the image that it describes.

Read with dockerfile-parse, which joins lines and leaves out comments. Understood is what the Dockerfiles here use; any
other instruction, flag or form is an error and not passed over. Source: Dockerfile reference, Docker documentation.

    python -m tests.shipping.dockerfile Dockerfile

prints it as JSON, and the files of the context that its COPYs take.
"""

import json
import re
import shlex
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from fnmatch import translate
from pathlib import Path
from string import Template

from tools.lock import ROOT


class DockerfileError(Exception):
    """A line that is not understood; its text says which."""


@dataclass(frozen=True)
class Step:
    """
    One instruction that changes the files of a stage.

    Shape: `kind` RUN or COPY; `words` of RUN the command line as an argument vector, of COPY sources and target;
    `source` the stage that is copied from, "" = the context; `environ`, `folder` and `user` as they stand there.
    """

    kind: str
    words: tuple[str, ...]
    line: int
    source: str = ""
    environ: Mapping[str, str] = field(default_factory=dict)
    folder: str = "/"
    user: str = ""


@dataclass
class Stage:
    """
    One FROM and what follows, and what an image says of itself that ends with it; `base` the image it begins with,
    `health_timeout` in seconds.
    """

    base: str
    name: str
    steps: list[Step] = field(default_factory=list)
    environ: dict[str, str] = field(default_factory=dict)
    arguments: dict[str, str] = field(default_factory=dict)
    labels: dict[str, str] = field(default_factory=dict)
    folder: str = "/"
    user: str = ""
    ports: list[int] = field(default_factory=list)
    volumes: list[str] = field(default_factory=list)
    entrypoint: list[str] = field(default_factory=list)
    command: list[str] = field(default_factory=list)
    health: list[str] = field(default_factory=list)
    health_timeout: float = 0.0
    stop_signal: str = ""


def parse(path: Path) -> list[Stage]:
    """
    The stages of a Dockerfile.

    Raises:
        DockerfileError: something that is not understood, or a variable that nothing sets.
    """
    from dockerfile_parse import DockerfileParser

    found = DockerfileParser(fileobj=path.open("rb")).structure
    stages: list[Stage] = []
    before: dict[str, str] = {}
    for one in found:
        kind, value, line = one["instruction"], one["value"], one["startline"] + 1
        try:
            if kind == "COMMENT":
                continue
            if kind == "FROM":
                words = Template(value).substitute(before).split()
                stages.append(Stage(words[0], words[2] if len(words) == 3 else str(len(stages))))
            elif kind == "ARG":
                name, _, default = value.partition("=")
                (stages[-1].arguments if stages else before)[name] = default
            else:
                _apply(stages[-1], kind, value, line)
        except (DockerfileError, ValueError, LookupError) as error:  # KeyError: a variable that nothing sets
            raise DockerfileError(f"{path}:{line}: {kind} {value}: {type(error).__name__}: {error}") from error
    return stages


def _apply(stage: Stage, kind: str, value: str, line: int) -> None:
    """Carry one instruction out on what is known of a stage."""
    known = {**stage.arguments, **stage.environ}
    if kind == "RUN":
        words = tuple(json.loads(value)) if value.startswith("[") else ("/bin/sh", "-c", value)
        stage.steps.append(Step(kind, words, line, "", known, stage.folder, stage.user))
    elif kind == "COPY":
        flags, names = _flags(Template(value).substitute(known).split())
        source = flags.pop("from", "")
        if flags:
            raise DockerfileError(f"the flag {next(iter(flags))} is not understood")
        stage.steps.append(Step(kind, tuple(names), line, source, known, stage.folder, stage.user))
    elif kind in {"ENV", "LABEL"}:
        among = stage.environ if kind == "ENV" else stage.labels
        for word in shlex.split(Template(value).substitute(known)):
            name, equals, text = word.partition("=")
            if not equals:
                raise DockerfileError("say NAME=value")
            among[name] = text
    elif kind == "WORKDIR":
        stage.folder = str(Path(stage.folder, Template(value).substitute(known)))
    elif kind == "USER":
        stage.user = Template(value).substitute(known)
    elif kind == "EXPOSE":
        stage.ports += map(int, value.split())
    elif kind == "VOLUME":
        stage.volumes += json.loads(value)
    elif kind == "STOPSIGNAL":
        stage.stop_signal = value
    elif kind == "ENTRYPOINT":
        stage.entrypoint = _vector(value)
    elif kind == "CMD":
        stage.command = _vector(value)
    elif kind == "HEALTHCHECK":
        options, _, command = value.partition("CMD")
        flags, _ = _flags(options.split())
        stage.health, stage.health_timeout = _vector(command.strip()), float(flags["timeout"].removesuffix("s"))
    else:
        raise DockerfileError("this instruction is not understood")


def _vector(value: str) -> list[str]:
    if not value.startswith("["):
        raise DockerfileError("the shell form needs a shell: say it as a list")
    words: list[str] = json.loads(value)
    return words


def _flags(words: list[str]) -> tuple[dict[str, str], list[str]]:
    flags = {}
    while words and words[0].startswith("--"):
        name, _, text = words.pop(0).removeprefix("--").partition("=")
        flags[name] = text
    return flags, words


def context_files(root: Path, ignored: Path, names: Iterable[str]) -> Iterator[Path]:
    """
    The files of the context behind these names, relative to it: all but those that .dockerignore leaves out.

    Source: Docker documentation, "Build context", ".dockerignore files".
    """
    rules = [line.strip() for line in ignored.read_text(encoding="utf-8").splitlines()]
    patterns = [
        (not rule.startswith("!"), re.compile(_pattern(rule.removeprefix("!"))))
        for rule in rules
        if rule and not rule.startswith("#")
    ]
    for name in names:
        for path in sorted([root / name, *(root / name).rglob("*")]):
            relative = path.relative_to(root)
            if path.is_file() and not _is_left_out(relative, patterns):
                yield relative


def _pattern(rule: str) -> str:
    """A rule as a regular expression: `*` stays within a name, `**/` is any number of folders."""
    parts = [
        ".*" if part == "**" else translate(part).removesuffix(r"\Z").replace(".*", "[^/]*") for part in rule.split("/")
    ]
    return "/".join(parts).replace(".*/", "(?:.*/)?") + r"\Z"


def _is_left_out(name: Path, patterns: list[tuple[bool, re.Pattern[str]]]) -> bool:
    """The last rule that fits it, or a folder it is in, decides."""
    names = [str(name), *(str(parent) for parent in name.parents if parent != Path())]
    is_out = False
    for leaves_out, pattern in patterns:
        if any(pattern.match(one) for one in names):
            is_out = leaves_out
    return is_out


def main(arguments: list[str]) -> int:
    """Print a Dockerfile, as it is understood."""
    (path,) = arguments
    stages = parse(Path(path))
    named = {
        word
        for stage in stages
        for step in stage.steps
        if step.kind == "COPY" and not step.source
        for word in step.words[:-1]
    }
    context = sorted({str(name) for name in context_files(ROOT, ROOT / ".dockerignore", named)})
    told = {"stages": [asdict(stage) for stage in stages], "copied": sorted(named), "context": context}
    json.dump(told, sys.stdout, indent=2)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
