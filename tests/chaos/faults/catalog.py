"""All faults by name, in the order in which a run goes through them."""

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

TRIED = {
    "An application dies": "kill-application",
    "A daemon of a database dies": "kill freeze restart",
    "A gateway dies": "rolling-restart memory descriptors",
    "A disk is full": "full-disk",
    "The network is cut, or bad": "partition isolate one-way reset delay loss scramble slow-link small-mtu"
    " mtu-black-hole",
    "A clock is wrong": "clock-step",
    "The principal of a mirrored pair is lost": "failover lost-principal failover-frozen failover-overtaken"
    " failover-isolated",
    "Routes or settings are changed in operation": "reload routes rotation",
}
"""The faults that try a promise of docs/delivery-guarantees.md, each fault once, even if it tries several."""
