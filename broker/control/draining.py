"""The settings of how an instance leaves."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from broker.control import value
from broker.control.section import Section
from broker.control.setting import Reload, setting

if TYPE_CHECKING:
    pass


class DrainSettings(Section):
    """`[drain]`: what SIGTERM and `broker drain` begin."""

    announce: Annotated[float, value.duration("0s", "10m")] = setting(
        "5s",
        "How long an instance that drains takes new connections as before, while `/readyz` says that it is not ready. "
        "Only where `/readyz` was asked within the last minute; else nobody waits.",
        reason="Load balancers and orchestrators ask every few seconds, and send nobody more then.",
        reload=Reload.LIVE,
    )
    timeout: Annotated[float, value.duration("0s", "1h")] = setting(
        "25s",
        "How long a drain takes at most, `announce` included. What has not left then is dropped; its senders have it.",
        reason="Kubernetes kills after 30 s, and closing what is open takes a second or two.",
        reload=Reload.LIVE,
    )
