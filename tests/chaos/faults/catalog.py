"""All faults by name, in the order in which a run goes through them."""

from __future__ import annotations

from tests.chaos.faults import host, network, operator, pair
from tests.chaos.faults.fault import Fault

_KINDS: tuple[type[Fault], ...] = (
    host.Kill,
    host.KillApplication,
    host.Freeze,
    host.Restart,
    host.RollingRestart,
    network.Partition,
    network.Isolate,
    network.OneWay,
    network.Reset,
    *network.EVERYWHERE,
    host.FullDisk,
    host.ClockStep,
    host.Exhaustion,
    host.MemoryLimit,
    operator.Reload,
    operator.RouteChange,
    operator.Rotation,
    pair.FailOver,
    pair.LostPrincipal,
    pair.FrozenPartner,
    pair.IsolatedPartner,
    pair.Overtaken,
)
FAULTS = {kind.name: kind for kind in _KINDS}
