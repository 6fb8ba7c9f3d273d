"""
The pages do what they say. The tutorial and every how-to are sessions, executed from top to bottom; the commands and
statements of other pages run against three instances: see `reference.md`.
"""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from broker.cli.journal import journal
from tests.docs.page import DOCS, PATH, Block, Reading, blocks, section_of
from tests.support.histories import generate

SESSIONS = [
    DOCS / "tutorial.md",
    DOCS / "from-sql-server.md",
    DOCS / "routing-by-example.md",
    *sorted((DOCS / "how-to").glob("*.md")),
]
SETUP = Path(__file__).with_name("reference.md")
NOT_HERE = {
    "applications.md": "tests/loopback/test_application_pages.py",
    "deploying.md": "containers, clusters, services of the system: tests/shipping",
    "install.md": "the package index and containers: tests/shipping",
    "journal.md": "test_the_commands_about_a_journal_print_what_their_section_shows",
    "pipeline.md": "tests/spark/test_cluster.py",
    "readers.md": "tests/loopback/test_application_pages.py",
    "reliability.md": "targets of make, each hours long",
    "views.md": "test_examples.py",
}
PAGES = [
    page
    for page in sorted(DOCS.glob("*.md"))
    if page not in SESSIONS and page.name not in NOT_HERE
    if {"sh", "sql"} & {block.language for block in blocks(page.read_text(encoding="utf-8"))}
]
UNEXECUTED = {
    r"^(?:export|BROKER_ADMIN_\w+=.*) ": "another machine",
    r"broker partner ": "test_commands_about_partners_work",
    r"bench\.run|^make ": "minutes of measuring",
    r"broker pipeline ": "Spark: tests/spark/test_cluster.py",
    r"completion zsh": "another shell",
}
ENDLESS = re.compile(r"broker (?:serve|top|run) |--watch|--follow|curl -N")
AGAIN = """\
broker serve --set admin.listen=127.0.0.1:9422 --set admin.loopback_role=viewer -c gateway.toml &
broker health ready -c gateway.toml --wait 30"""
LOSE = {"orders": "rm -f orders.db*", "msdb": "broker drain -c gateway.toml\nrm -f gateway/msdb.db*"}
AROUND = {  # commands before and after a line
    r"broker serve -c (?:config/)?gateway": ("broker drain -c gateway.toml", AGAIN),
    r"^broker drain (?!.*--dry-run)": ("", AGAIN),
    r"broker bench dialogs": (
        "broker serve -c endpoint.toml &\nbroker health ready -c endpoint.toml --wait 30",
        "broker drain -c endpoint.toml",
    ),
}
PLACES = re.compile(
    r"/(?:var/lib/broker|run/broker|etc/broker|run/secrets|etc/bash_completion\.d|etc/logrotate\.d|mnt)/"
)
HOSTS = re.compile(r"(?<=tcp://)(?:gateway|sender)(?=:)")


def commands(block: Block) -> list[str]:
    """The lines of a block that are executed, with files in the working directory; what has no end, for two seconds."""
    lines = block.text.replace("\\\n", " ").splitlines()
    return [
        executed(HOSTS.sub("127.0.0.1", PLACES.sub("", line)))
        for line in lines
        if not any(re.search(one, line) for one in UNEXECUTED)
    ]


def executed(line: str) -> str:
    """A line, with what it needs to be carried out here."""
    if "bench forwarding" in line and "--listen" not in line:
        line += " --listen tcp://127.0.0.1:5022"  # the default, here a free port
    if "broker bench " in line and "--messages" not in line:
        line += " --messages 3000"  # the default takes half a minute
    before, after = next((both for one, both in AROUND.items() if re.search(one, line)), ("", ""))
    if ENDLESS.search(line):
        line = f"timeout -s INT 2 env {line.partition(' # ')[0].rstrip()}; test $? -eq 124"
    return "\n".join(filter(None, [before, re.sub("^tail -f", "timeout 1 tail -f", line), after]))


def session(page: Path) -> Iterator[str]:
    """The blocks of a page as one session, after the files of the tutorial."""
    for block in blocks((DOCS / "tutorial.md").read_text(encoding="utf-8")):
        if PATH.match(block.text):
            yield f"```{block.language}\n{block.text}```"
    yield SETUP.read_text(encoding="utf-8")
    last = []
    for block in blocks(page.read_text(encoding="utf-8")):
        if block.language == "sql":
            yield f"```sql\n-- line-{block.line}.sql\n{block.text}```"
            yield f"```sh\nbroker sql -c orders.toml -d shop < line-{block.line}.sql\n```"
        elif block.language == "python" and not block.text.startswith("async with"):  # a part of a program
            yield f"```python\n# line-{block.line}.py\n{block.text}```"
            yield f"```sh\npython line-{block.line}.py\n```"
        elif block.language == "sh" and (lines := commands(block)):
            made = [line for line in lines if line.startswith("broker database create ")]
            last += [text for line in made for text in (LOSE[line.split()[3]], line)]
            lines = [line for line in lines if line not in made]
            prepared = ["python prepare.py"] if re.search(r"\b(?:quarantine|dialogs|receive|why)\b", block.text) else []
            yield "\n".join(["```sh", *prepared, *lines, "```"])
    yield "\n".join(["```sh", *last, "```"])


@pytest.mark.timeout(600)
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_commands_of_a_reference_page_work(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setenv("BROKER_CONFIG", "orders.toml")
    generate(tmp_path / "journal", messages=50)
    file = tmp_path / page.name
    file.write_text("\n".join(session(page)), encoding="utf-8")

    with Reading(file) as reading:
        reading.read()


def test_commands_about_partners_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After the set-up of the how-to, each next to the configuration that it names."""
    monkeypatch.chdir(tmp_path)
    setup = (DOCS / "how-to" / "two-organizations.md").read_text(encoding="utf-8").partition("\n## Introduce")[0]
    page = (DOCS / "cli.md").read_text(encoding="utf-8")
    shown = re.findall(r"^(broker partner .*-c (\w+)\.toml.*)$", page, re.MULTILINE)
    # Without a terminal an import that would ask ends with 2.
    asking = {line for line, _ in shown if " import " in line and not re.search("--yes|--dry-run", line)}
    services = "--service //shop/Billing --to //shop/Orders"
    lines = [
        "for one in orders gateway; do ln -s broker.toml $one/$one.toml; done",
        "broker partner export -c gateway/broker.toml > orders/gateway.partner",
        f"broker partner export -c billing/broker.toml {services} > orders/billing.partner",
        *(f"cd {name} && {line}{'  # exit code 2' if line in asking else ''}" for line, name in shown),
    ]
    file = tmp_path / "partners.md"
    file.write_text("\n".join([setup, "```sh", *lines, "```"]), encoding="utf-8")

    with Reading(file) as reading:
        reading.read()

    assert len(shown) > 5


# --- sessions ---


@pytest.mark.parametrize("page", SESSIONS, ids=lambda page: page.stem)
def test_everything_a_page_shows_is_so(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "100")

    with Reading(page) as reading:
        executed_blocks = reading.read()

    assert executed_blocks > 0


def test_the_commands_about_a_journal_print_what_their_section_shows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rest of that page is no session: only the section is executed."""
    monkeypatch.chdir(tmp_path)
    section = section_of(DOCS / "journal.md", "Looking at one", tmp_path)
    generate(tmp_path / "history", messages=200)

    with Reading(section) as reading:
        executed_blocks = reading.read()

    assert executed_blocks > 2
    assert {"tail"} == set(journal.commands)


@pytest.mark.parametrize("page", SESSIONS, ids=lambda page: page.stem)
def test_a_page_is_found_from_the_navigation(page: Path) -> None:
    name = str(page.relative_to(DOCS))

    assert f": {name}\n" in (DOCS.parent / "mkdocs.yml").read_text(encoding="utf-8")
