"""The README shows nothing that does not work: its program, its configuration, its commands and its links."""

import re
import sqlite3
import tomllib
from contextlib import closing
from pathlib import Path

import pytest

from examples.demo.topology import Topology
from tests.docs.page import DOCS, PATH, blocks
from tests.support.command import run
from tests.support.loopback import service

README = DOCS.parent / "README.md"
TEXT = README.read_text(encoding="utf-8")
LINK = re.compile(r"\]\((?!https?:)(?P<path>[^)#]+)(?:#[^)]*)?\)")


def test_its_program_sends_and_receives(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (program,) = [block.text for block in blocks(TEXT) if block.language == "python"]
    with Topology(tmp_path) as net:
        shop = net.add("shop", databases=["orders", "billing"])
        for name in ("orders", "billing"):
            net.script("shop", name, service(f"//shop/{name.title()}", queue=f"{name.title()}Queue"))
        net.start()
        with closing(shop.connect("orders")) as db:
            db.execute("CREATE TABLE orders (id INTEGER PRIMARY KEY, state TEXT)")
            db.execute("INSERT INTO orders VALUES (7, 'new')")
            db.commit()
        monkeypatch.chdir(shop.directory)

        exec(compile(program, README.name, "exec"), {})

        with closing(sqlite3.connect("orders.db")) as db:
            assert [("billing",)] == db.execute("SELECT state FROM orders").fetchall()


def test_its_configuration_is_a_good_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for block in blocks(TEXT):
        if path := PATH.match(block.text):
            Path(path["path"]).write_text(block.text, encoding="utf-8")

    checked = run("check", "-c", "gateway.toml", "--offline")

    assert 0 == checked.exit_code, checked.output


def test_its_commands_are_targets_that_make_has() -> None:
    makefile = (DOCS.parent / "Makefile").read_text(encoding="utf-8")
    project = tomllib.loads((DOCS.parent / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    commands = [line for block in blocks(TEXT) if block.language == "sh" for line in block.text.splitlines()]
    targets = [line.split()[1] for line in commands if line.startswith("make ")]
    extras = [line.partition("[")[2].partition("]")[0].split(",") for line in commands if line.startswith("pip ")]

    assert ["demo", "test"] == targets
    assert all(re.search(f"^{target}:", makefile, re.MULTILINE) for target in targets)
    assert set(project["optional-dependencies"]) == {extra for one in extras for extra in one if extra}


def test_the_page_about_installing_has_every_extra() -> None:
    project = tomllib.loads((DOCS.parent / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    page = (DOCS / "install.md").read_text(encoding="utf-8")

    assert set(project["optional-dependencies"]) == set(re.findall(r"^\| `(\w+)` \|", page, re.MULTILINE))
    assert project["name"] in page


def test_its_links_lead_somewhere() -> None:
    links = {found["path"] for found in LINK.finditer(TEXT)}

    assert len(links) > 20
    assert [] == sorted(link for link in links if not (README.parent / link).exists())
