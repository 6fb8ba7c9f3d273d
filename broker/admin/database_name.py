"""Part of `broker.admin.message`."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

DatabaseName = Annotated[
    str | None, Meta(description="The database; left out: the only one the instance hosts, else msdb.")
]
