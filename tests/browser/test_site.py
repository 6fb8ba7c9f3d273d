"""The site of the documentation in a real browser: its reader chooses light or dark, for text and pictures."""

import shutil
from pathlib import Path

import pytest
from mkdocs.commands.build import build
from mkdocs.config import load_config

from tests.docs.page import DOCS
from tests.support.chromium import Browser

MODES = [("dark", "light"), ("light", "dark"), ("dark", "auto")]


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize(("system", "chosen"), MODES, ids=[" ".join(mode) for mode in MODES])
async def test_a_reader_chooses_light_or_dark(browser: Browser, system: str, chosen: str, tmp_path: Path) -> None:
    source, site = tmp_path / "docs", tmp_path / "site"
    source.mkdir()
    source.joinpath("index.md").write_text("# A page\n", encoding="utf-8")
    shutil.copy(DOCS / "site.css", source)
    config = load_config(str(DOCS.parent / "mkdocs.yml"), docs_dir=str(source), site_dir=str(site), plugins=["search"])
    config.nav = None
    build(config)

    tab = await browser.open((site / "index.html").as_uri(), dark=system == "dark")
    await tab.evaluate(f"document.querySelector('[data-bs-theme-value={chosen}]').click()")
    shown = await tab.evaluate("getComputedStyle(document.documentElement).colorScheme")

    assert (system if chosen == "auto" else chosen) == shown
