"""
The settings of the journal, and whether a journal can be kept by them.

What writes it needs pyarrow, which is an extra of the installation; nothing here imports it, so that an instance
without a journal neither needs nor loads it.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from broker.control import value
from broker.control.section import Section
from broker.control.setting import Reload, setting

if TYPE_CHECKING:
    pass

ARROW_LIBRARY = "pyarrow"
_DIRECTORY = ("journal", "directory")


class JournalSettings(Section):
    """`[journal]`: a record of every visit of a message to this instance, in Parquet files."""

    directory: Annotated[Path | None, value.path(may_be_off=True)] = setting(
        "",
        "Directory for the files of the journal, created if missing; needs `pip install broker[journal]`. A relative "
        "path is relative to `instance.state_dir`. A reload takes another directory; to begin or end a journal takes a "
        "restart.",
        reason="Off: what happened to messages is data about those who send them, and takes room.",
        reload=Reload.LIVE,
    )
    sample: Annotated[float, value.fraction()] = setting(
        1.0,
        "Fraction of the dialogs whose messages are recorded, the same dialogs on every instance. Messages that are "
        "dropped, or carry the TRACE flag, are always recorded.",
        reason="A whole journal answers every question, at some 25 bytes of disk for each visit. 0.01 is enough for "
        "the times of routes that carry thousands of messages a second.",
        reload=Reload.LIVE,
    )
    buffer_size: Annotated[int, value.size(4 << 20, 4 << 30)] = setting(
        "32MiB",
        "Memory for records that are not in a file yet. A record that finds no room is shed and "
        "counted; the message goes on.",
        reason="150,000 records: what a busy gateway writes in the tenths of a second that a slow disk takes.",
        reload=Reload.RESTART,
    )
    file_size: Annotated[int, value.size(1 << 20, 4 << 30)] = setting(
        "64MiB",
        "Size at which a file is ended and appears.",
        reason="Small files cost their readers more than their rows do; larger ones are read by one core for long.",
        reload=Reload.LIVE,
    )
    file_age: Annotated[float, value.duration("1s", "1d")] = setting(
        "15m",
        "Time after which a file is ended and appears, however small it is. A crash loses what was recorded since.",
        reason="A hundred files a day and instance are read in seconds; nobody waits longer than this for news.",
        reload=Reload.LIVE,
    )
    keep_age: Annotated[float, value.duration("0s", "3650d")] = setting(
        "30d",
        "Age at which files of this instance are removed; 0s: none is for its age.",
        reason="A month is what capacity and incidents are usually looked at for.",
        reload=Reload.LIVE,
    )
    keep_size: Annotated[int, value.size(0, 1 << 50)] = setting(
        "10GiB",
        "Size of all files of this instance above which the oldest are removed; 0: none is for their size.",
        reason="Some 400 million visits; a journal must not fill the disk that the databases are on.",
        reload=Reload.LIVE,
    )
