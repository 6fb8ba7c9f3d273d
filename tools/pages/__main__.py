"""`python -m tools.pages`: write every page and file that is made of the code, and remove pages of old numbers."""

from pathlib import Path

from tools.pages.site import written

DOCS = Path(__file__).parents[2] / "docs"

if __name__ == "__main__":
    pages = written(DOCS)
    for path, text in pages.items():
        path.write_text(text, encoding="utf-8")
    for path in {*(DOCS / "errors").glob("*.md")} - pages.keys():
        path.unlink()
