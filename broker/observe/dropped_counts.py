"""Part of `broker.observe.status`."""

from __future__ import annotations

from collections import Counter

from broker.flow import Disposition
from broker.observe.instance import Running


def dropped_by_reason(instance: Running) -> Counter[Disposition]:
    """What ended here for another reason than arriving, in the pass or at the end of the way."""
    dropped = instance.forwarder.dropped + instance.past.dropped
    for endpoint in instance.endpoints.values():
        dropped.update(endpoint.dropped)
    return dropped
