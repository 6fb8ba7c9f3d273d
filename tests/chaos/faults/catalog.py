"""All faults by name, in the order in which a run goes through them."""

from __future__ import annotations

from tests.chaos.faults import handover, machine, network, operator, overtaking, process
from tests.chaos.faults.fault import Fault

_KINDS: tuple[type[Fault], ...] = (
    process.Kill,
    process.KillApplication,
    process.Freeze,
    process.Restart,
    process.RollingRestart,
    network.Partition,
    network.Isolate,
    network.OneWay,
    network.Reset,
    *network.EVERYWHERE,
    machine.FullDisk,
    machine.ClockStep,
    machine.Exhaustion,
    machine.MemoryLimit,
    operator.Reload,
    operator.RouteChange,
    operator.Rotation,
    operator.FailOver,
    operator.LostPrincipal,
    handover.FrozenPartner,
    handover.IsolatedPartner,
    overtaking.Overtaken,
)
FAULTS = {kind.name: kind for kind in _KINDS}
