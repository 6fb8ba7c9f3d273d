from __future__ import annotations

import re
from hashlib import sha256
from pathlib import Path

import pytest

import broker.admin
from broker.admin.app import page_files
from broker.daemon.instance import Instance
from tests.support.admin import ask

STATIC = Path(broker.admin.__file__).parent / "static"
# Of dist/uPlot.iife.min.js in the package uplot 1.6.32 of npm.
UPLOT_SHA256 = "19c8d4c6ad88929a79f4ae49d6f7161566dfd0ba3d15cc495e974f787eb78f1f"
# As in the report of the pipeline: what would be fetched from elsewhere, or run though nobody wrote it here.
ELSEWHERE = re.compile(r"""(?:src|href|url|import|from|fetch)\s*[=(]?\s*["'(]\s*(?:https?:)?//""")
INLINE = re.compile(r"<script(?![^>]*\bsrc=)|<style|\son\w+=|style=|javascript:", re.IGNORECASE)
MARKUP = re.compile(r"innerHTML|outerHTML\s*=|insertAdjacentHTML|document\.write|eval\(|new Function|\.cssText")


def own_files() -> list[Path]:
    return [
        path
        for path in STATIC.iterdir()
        if path.suffix in {".html", ".css", ".js", ".svg"} and "uplot" not in path.name
    ]


def test_every_file_that_the_page_loads_is_served() -> None:
    served = page_files()
    wanted = set(re.findall(r'(?:src|href)="(/[^"]*)"', served["/"][0].decode()))
    for path in own_files():
        if path.suffix == ".js":
            wanted |= {f"/page/{name}" for name in re.findall(r'from "\./([^"]+)"', path.read_text())}

    assert wanted | {"/"} == served.keys()


@pytest.mark.parametrize("path", own_files(), ids=lambda path: path.name)
def test_a_file_of_the_page_asks_nobody_else_and_makes_no_markup(path: Path) -> None:
    text = path.read_text(encoding="utf-8").replace("http://www.w3.org/2000/svg", "")

    assert [] == ELSEWHERE.findall(text)
    assert [] == INLINE.findall(text)
    assert [] == MARKUP.findall(text)


def test_the_library_is_the_one_that_was_published() -> None:
    assert UPLOT_SHA256 == sha256((STATIC / "uplot.js").read_bytes()).hexdigest()
    assert b"v1.6.32" in (STATIC / "uplot.js").read_bytes()[:100]
    assert (
        "MIT" in (STATIC / "uplot.LICENSE").read_text()
        or "Permission is hereby granted" in (STATIC / "uplot.LICENSE").read_text()
    )


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/", "text/html; charset=utf-8"),
        ("/page/main.js", "text/javascript; charset=utf-8"),
        ("/page/page.css", "text/css; charset=utf-8"),
        ("/page/icon.svg", "image/svg+xml; charset=utf-8"),
    ],
)
async def test_a_file_has_its_type_and_its_policy(instance: Instance, path: str, kind: str) -> None:
    address = instance.admin.admin_address
    assert address is not None

    answer = await ask(address, "GET", path)

    assert (200, kind) == (answer.status, answer.headers["content-type"])
    policy = answer.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert ("nosniff", "DENY", "no-cache") == (
        answer.headers["x-content-type-options"],
        answer.headers["x-frame-options"],
        answer.headers["cache-control"],
    )


async def test_a_file_that_is_known_is_not_sent_again(instance: Instance) -> None:
    address = instance.admin.admin_address
    assert address is not None
    first = await ask(address, "GET", "/page/page.css")

    again = await ask(address, "GET", "/page/page.css", headers={"If-None-Match": first.headers["etag"]})

    assert (304, b"") == (again.status, again.body)


@pytest.mark.parametrize(
    ("method", "path", "headers", "status"),
    [
        ("HEAD", "/", {}, 200),
        ("POST", "/", {}, 405),
        ("GET", "/page/", {}, 400),
        ("GET", "/page/absent.js", {}, 404),
        ("GET", "/page/../server.py", {}, 400),
        ("GET", "/page/%2e%2e/server.py", {}, 400),
        ("GET", "/page/uplot.LICENSE", {}, 404),
        ("GET", "/", {"Host": "evil.example"}, 403),
        ("GET", "/", {"Origin": "http://evil.example"}, 403),
        ("GET", "/", {"Sec-Fetch-Site": "cross-site"}, 403),
        ("GET", "/page/main.js", {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "no-cors"}, 403),
        ("GET", "/", {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "iframe"}, 403),
        ("GET", "/", {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "document"}, 200),
        (
            "GET",
            "/v1/status",
            {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "document"},
            403,
        ),
    ],
)
async def test_who_may_come_to_the_page(
    instance: Instance, method: str, path: str, headers: dict[str, str], status: int
) -> None:
    """A link of another site may lead to it; a script, a frame or another name of this machine may not."""
    address = instance.admin.admin_address
    assert address is not None

    answer = await ask(address, method, path, headers=headers)

    assert status == answer.status
