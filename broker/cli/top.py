"""The command top: what an instance does, second by second, on a screen, as text or as JSON."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from broker.cli.access import admin_client
from broker.cli.exit_code import with_exit_code
from broker.cli.option import config_option, examples, output_option, socket_option
from broker.errors import DaemonUnreachableError

if TYPE_CHECKING:  # slow to import: see the docstring of broker.cli.group
    from rich.text import Text

    from broker.cli.top_news import News
    from broker.cli.top_screen import Line, Look

SILENT_SECONDS = 15.0  # after which a stream that gives nothing is given up; a snapshot comes each second to fifth
FIRST_SECONDS = 20.0  # for the first snapshot, where nobody is at a terminal to see why none comes
PAGE_COLUMNS = 160  # of what is no terminal
_TICK_SECONDS = 0.2  # between two looks at the news while no key is pressed


@examples("""
broker top -c config/gateway.toml
broker top --socket /run/broker/admin.sock -o json --interval 10
""")
@click.command()
@config_option
@socket_option
@click.option(
    "--interval", type=click.FloatRange(1, 3600), default=1.0, show_default=True, help="Seconds between two looks."
)
@click.option("--once", is_flag=True, help="Show it once and end.")
@output_option
@with_exit_code
def top(config: Path | None, socket: Path | str | None, interval: float, output: str, *, once: bool) -> None:
    """
    Show what a running instance does, live.

    Links and their rates, what is held and why, drops, databases, mirrors, the ledger. On a terminal: q ends it, p
    pauses it, the numbers and the arrows choose what is shown. Elsewhere it is text, and with -o json one snapshot a
    line. Rates are those of the last second. Exit codes: 0 ended, 4 daemon unreachable, 5 not permitted.
    """
    from broker.admin.event_stream import pulses  # noqa: PLC0415 - see the docstring of broker.cli.group
    from broker.cli.top_news import News  # noqa: PLC0415

    client = admin_client(config, socket, timeout=SILENT_SECONDS)
    news = News(partial(pulses, client))
    news.start()
    try:
        if output == "json":
            _each(news, client.where, interval, once=once, show=lambda: click.echo(json.dumps(news.pulse)))
        elif once or not (sys.stdout.isatty() and sys.stdin.isatty()):
            _each(news, client.where, interval, once=once, show=partial(_print, news))
        else:
            _live(news, interval)
    except KeyboardInterrupt:
        pass  # how it is ended
    finally:
        news.stop()


def _each(news: News, where: Path | str, interval: float, *, once: bool, show: Callable[[], None]) -> None:
    """
    Show a snapshot each so many seconds; the first one has no rates yet, and is passed over.

    Raises:
        DaemonUnreachableError: none has come yet, and none comes.
        ProblemError: the daemon refuses.
    """
    shown = 1
    while True:
        due = time.monotonic() + interval
        if news.wait(after=shown, seconds=FIRST_SECONDS):
            shown = news.number
            show()
            if once:
                return
        elif news.is_refused or news.number <= 1:
            raise news.error or DaemonUnreachableError(str(where), f"no snapshot within {FIRST_SECONDS:g} s")
        time.sleep(max(0.0, due - time.monotonic()))


def _print(news: News) -> None:
    from broker.cli.top_screen import Look, page  # noqa: PLC0415
    from broker.observe.terminal import Terminal  # noqa: PLC0415

    terminal = Terminal(elsewhere=PAGE_COLUMNS)
    for line in page(news.pulse, Look(), width=terminal.width):
        terminal.line(line.plain, line.style)
    terminal.line()


def _live(news: News, interval: float) -> None:
    """The screen, until somebody ends it."""
    from rich.console import Console  # noqa: PLC0415
    from rich.live import Live  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    from broker.cli.top_keys import pressed_one_by_one, wait_for_keys  # noqa: PLC0415
    from broker.cli.top_screen import Look, screen  # noqa: PLC0415

    console, look, shown, due = Console(highlight=False), Look(), news.pulse, 0.0
    with pressed_one_by_one(), Live(console=console, screen=True, auto_refresh=False) as live:
        while not news.is_refused:
            now = time.monotonic()
            if now >= due and news.pulse is not shown and not look.is_paused:
                shown, due = news.pulse, now + interval
            look = replace(look, age_s=now - news.came_at, problem=news.problem)
            width, height = console.size
            lines = map(_drawn, screen(shown, look, width=width, height=height))
            live.update(Text("\n").join(lines), refresh=True)
            for key in wait_for_keys(_TICK_SECONDS):
                changed = after_key(look, key)
                if changed is None:
                    return
                look = changed
    if news.error is not None:
        raise news.error


def _drawn(line: Line) -> Text:
    from rich.text import Text  # noqa: PLC0415

    drawn = Text(line.plain, style=line.style)
    if line.stands_out != (0, 0):
        drawn.stylize("bold not dim reverse", *line.stands_out)
    return drawn


def after_key(look: Look, key: str) -> Look | None:
    """How it looks after a key; None when it ends. A key that means nothing changes nothing."""
    from broker.cli.top_keys import END  # noqa: PLC0415
    from broker.cli.top_screen import PANELS  # noqa: PLC0415

    names = list(PANELS)
    here = names.index(look.panel)
    if key in {"q", "Q", "\x04", END}:
        return None
    if key in {"p", " "}:
        return replace(look, is_paused=not look.is_paused)
    if key in {"left", "right", "\t"}:
        return replace(look, panel=names[(here + (-1 if key == "left" else 1)) % len(names)], offset=0)
    if key.isdecimal() and 1 <= int(key) <= len(names):
        return replace(look, panel=names[int(key) - 1], offset=0)
    steps = {"up": -1, "down": 1, "k": -1, "j": 1, "page up": -10, "page down": 10, "home": -look.offset}
    return replace(look, offset=max(0, look.offset + steps[key])) if key in steps else look
