"""The committed pages are what the code says, and say all that it has; only parts between markers are renewed."""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path

import click
import pytest

import broker
import broker.aio
from broker.admin.operations import OPERATIONS
from broker.config.schema import settings_of
from broker.config.settings import Settings
from broker.errors import ConversationError, StatementError
from broker.observe.message_catalogue import MessageChannel, catalogue
from tools.pages.commands import codes_of, commands
from tools.pages.example import Example
from tools.pages.figures import DIRECTORY
from tools.pages.markers import markers, renew, table
from tools.pages.site import PARTS, error_pages, renewed
from tools.pages.tables import settings

ROOT = Path(__file__).parents[3]
DOCS = ROOT / "docs"
# A number where an error is made of it: its first argument, or `number=` or `code=`.
GIVEN = re.compile(
    r"(?:\w*(?:Error|Fault|Refusal|Ending)|_?error\w*|_?mistake)\(\s*(-?\d{3,5}),|\b(?:number|code)=(-?\d{3,5})\b"
)
CODES = {"0", "1", "2", "3", "4", "5", "6", "7", "75", "78", "130", "143"}


@pytest.fixture(scope="module")
def made() -> Mapping[Path, str]:
    return error_pages(DOCS)


@pytest.mark.parametrize("name", PARTS)
def test_the_committed_page_is_what_the_code_says(name: str) -> None:
    assert renewed(DOCS, name) == (DOCS / name).read_text(encoding="utf-8"), "make docs, and commit it"


def test_every_marker_is_renewed() -> None:
    pages = {path.relative_to(DOCS).as_posix(): path.read_text(encoding="utf-8") for path in DOCS.rglob("*.md")}
    found = {name: re.findall(r"<!-- ([\w-]+): begin, made by", text) for name, text in pages.items()}

    assert {name: sorted(words) for name, words in found.items() if words} == {
        name: sorted(parts) for name, parts in PARTS.items()
    }


# --- settings ---


@pytest.mark.parametrize(
    "part",
    [
        "### `[databases.NAME]`\n",
        "\n| `name` | the host name | name of 1 to 128 characters | restart | ",
        "\n| `path` | required | path of",
        '\n| `heartbeat` | `"15s"` | 100ms to 1h (time) | reconnect | ',
        "\n| `message_forwarding` | `false` | true, false | live | ",
    ],
)
def test_a_row_has_default_range_and_reload(part: str) -> None:
    assert part in settings()


# --- commands ---


@pytest.mark.parametrize("name", [name for name, _ in commands()])
def test_help_names_known_codes_only(name: str) -> None:
    codes = re.findall(r"(?:^|, |; | and )(\d+)\b", codes_of(dict(commands())[name]))

    assert codes
    assert set(codes) <= CODES


def test_every_command_is_on_the_page_with_each_of_its_options() -> None:
    page = (DOCS / "cli.md").read_text(encoding="utf-8")
    for name, command in commands():
        section = re.search(rf"^#+ {re.escape(name)}\n(.*?)(?=^#|\Z)", page, re.MULTILINE | re.DOTALL)
        assert section is not None, name
        options = [one for one in command.params if isinstance(one, click.Option) and not one.hidden]
        assert [] == [one.opts[0] for one in options if one.opts[0] not in section[1]], name
        assert "```sh\n" in section[1], name


def test_commands_in_texts_and_tables_exist() -> None:
    known = {name for name, _ in commands()}
    groups = {name.rpartition(" ")[0] for name in known}
    for page in DOCS.rglob("*.md"):
        for first, second in re.findall(r"`(broker [a-z-]+)( [a-z][a-z-]*)?", page.read_text(encoding="utf-8")):
            assert {first, first + second} & (known | (set() if second else groups)), (page.name, first + second)


def test_every_exit_code_is_explained() -> None:
    page = (DOCS / "exit-codes.md").read_text(encoding="utf-8")
    explained = re.findall(r"^\| ([\d, ]+) \|", page, re.MULTILINE)

    assert {code for cell in explained for code in cell.split(", ")} == CODES


# --- the Python API ---


@pytest.mark.parametrize("name", [*broker.__all__, *(f"aio.{name}" for name in broker.aio.__all__)])
def test_every_public_name_is_on_its_page(name: str) -> None:
    page = (DOCS / "api.md").read_text(encoding="utf-8")

    assert f"### broker.{name}\n" in page


# --- operations of the admin API, figures ---


def test_each_operation_has_a_section_with_its_role() -> None:
    page = (DOCS / "admin.md").read_text(encoding="utf-8")
    for one in OPERATIONS:
        section = page.partition(f"### {one.method} {one.path}\n")[2].partition("\n### ")[0]
        assert f"Role: `{one.role.word}`." in section


def test_every_stored_result_has_a_table() -> None:
    pages = (DOCS / "performance.md", DOCS / "contributors" / "results.md")
    text = "".join(page.read_text(encoding="utf-8") for page in pages)

    assert [] == [path.name for path in DIRECTORY.glob("*.json") if f"*`docs/performance/{path.name}`" not in text]


# --- errors ---


def test_the_committed_pages_are_what_the_catalogue_says(made: Mapping[Path, str]) -> None:
    stale = [path.name for path, text in made.items() if not path.exists() or path.read_text(encoding="utf-8") != text]

    assert [] == stale, "make docs, and commit them"
    assert {DOCS / "errors" / "index.md"} == set((DOCS / "errors").glob("*")) - made.keys()


def test_every_number_of_the_code_is_in_the_catalogue() -> None:
    known = {entry.number for entry in catalogue().values()}
    told = {
        (abs(int(number)), path.name)
        for path in (ROOT / "broker").rglob("*.py")
        for number in filter(None, (one for found in GIVEN.findall(path.read_text(encoding="utf-8")) for one in found))
    }

    assert len({number for number, _ in told}) > 50
    assert [] == sorted(one for one in told if one[0] not in known)


def test_a_page_has_what_people_and_machines_get(made: Mapping[Path, str]) -> None:
    page = made[DOCS / "errors" / "9744.md"]

    for part in (
        "# 9744: ",
        "| Statements | ",
        "| Severity | 16 |",
        "| HTTP status | 400 Bad Request |",
        "| Exit code of a command | 1 |",
        "```text\nMsg 9744, Level 16, -:1:",
        "## In the original",
    ):
        assert part in page
    dropped = made[DOCS / "errors" / "11285.md"]
    assert '| Metric | `broker_messages_dropped_total{reason="hops exhausted"}` |' in dropped
    assert "<summary>What <code>broker why</code> proposes</summary>" in dropped
    assert "| Notification | The peer that sent the frame gets REJECTED" in dropped


def test_every_setting_has_a_row() -> None:
    rows = [line for line in settings().splitlines() if line.startswith("| `")]

    assert [str(one.path[-1]) for one in settings_of(Settings)] == [row.split("`")[1] for row in rows]


# --- markers ---

BEGIN, END = markers("numbers")
OTHER_BEGIN, OTHER_END = markers("words")


def test_only_the_parts_between_the_markers_are_renewed() -> None:
    page = f"before\n{BEGIN}\nold\n{END}\nbetween\n{OTHER_BEGIN}{OTHER_END}\nafter\n"

    new = renew(page, {"words": "two", "numbers": "1"})

    assert f"before\n{BEGIN}\n\n1\n\n{END}\nbetween\n{OTHER_BEGIN}\n\ntwo\n\n{OTHER_END}\nafter\n" == new
    assert new == renew(new, {"words": "two", "numbers": "1"})


@pytest.mark.parametrize("page", ["", BEGIN, f"{END} {BEGIN}", f"{OTHER_BEGIN}{OTHER_END}"])
def test_a_page_without_its_markers_is_refused(page: str) -> None:
    with pytest.raises(ValueError, match="lacks a marker of numbers"):
        renew(page, {"numbers": ""})


def test_a_table_has_a_row_for_each_line_and_no_bar_in_a_cell() -> None:
    assert table(("Name", ""), [("a|b", ""), ("c", "d")]) == "| Name |  |\n|---|---|\n| a&#124;b |  |\n| c | d |"


# --- examples ---


@pytest.fixture(scope="module")
def example(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Example]:
    with Example(tmp_path_factory.mktemp("example")) as example:
        yield example


@pytest.mark.parametrize(
    ("place", "text", "number"),
    [
        (MessageChannel.STATEMENT, "DROP ROUTE Nowhere", 15151),
        (MessageChannel.SELECT, "SELECT nothing FROM sys.routes", 207),
        (MessageChannel.APPLICATION, "broker.receive(db, queue='Nowhere')", 208),
    ],
)
def test_an_example_is_answered_with_its_number(
    example: Example, place: MessageChannel, text: str, number: int
) -> None:
    error = example.told(place, text)

    assert isinstance(error, StatementError | ConversationError)
    assert number == error.number


def test_what_a_program_did_before_its_error_is_forgotten(example: Example) -> None:
    begin = "dialog = broker.begin_dialog(db, from_service='//shop/Orders', to_service='//far')\n"
    example.told(MessageChannel.APPLICATION, begin + "dialog.send(None)")

    count = "assert db.execute('SELECT count(*) FROM broker_conversation').fetchone() == (0,)\n"
    error = example.told(MessageChannel.APPLICATION, count + "broker.receive(db, queue='')")

    assert isinstance(error, ConversationError)
