"""What operators do in the middle of traffic."""

from tests.chaos.configuration import PARCELS, route
from tests.chaos.faults.fault import Fault
from tests.support.certificates import authority

NOTICED_SECONDS = 6.0  # two looks at files, two seconds apart, and some slack


class Reload(Fault):
    """Other settings for a while, at a few daemons, several times."""

    name = "reload"
    TIMES = 5
    CHANGES = (
        ('heartbeat = "500ms"', 'heartbeat = "700ms"'),
        ('resend_first = "300ms"', 'resend_first = "500ms"'),
        ('time_to_live = "10s"', 'time_to_live = "5s"'),
    )

    def choose(self) -> str:
        self._chosen = [self.take(self.fleet.names), self.take(self.fleet.names)]
        self._changed: set[str] = set()
        return " and ".join(self._chosen)

    def begin(self) -> None:
        for number in range(self.TIMES):
            for name in self._chosen:
                self._write(name, is_changed=number % 2 == 0)
            self.fleet.pause(0.3)

    def has_bitten(self) -> bool:
        return self._changed == set(self._chosen)

    def end(self) -> None:
        for name in self._chosen:
            self._write(name, is_changed=False)

    def _write(self, name: str, *, is_changed: bool) -> None:
        daemon = self.fleet.daemons[name]
        text = daemon.config.read_text(encoding="utf-8")
        for plain, changed in self.CHANGES:
            text = text.replace(plain, changed) if is_changed else text.replace(changed, plain)
        daemon.config.write_text(text, encoding="utf-8")
        if daemon.admin.request("POST", "/v1/reload", {})["changed"]:
            self._changed.add(name)


class RouteChange(Fault):
    """A gateway loses its route to a database, and an initiator one of its routes to the other."""

    name = "routes"

    def choose(self) -> str:
        fleet, between = self.fleet, self.fleet.traffic.between
        self._gateway = self.take(fleet.gateways)
        # Without its route to one of several databases of a service a gateway picks among the others: docs/routing.md.
        far = [home for home in fleet.homes if home.hosts[0] not in PARCELS]
        self._far = self.pick(far, lambda home: between(self._gateway, fleet.serving(home)))
        self._home = self.dice.choice(fleet.initiators)
        self._host = self.take(self._home.hosts)
        others = [name for name in fleet.gateways if name != self._gateway]
        self._by = self.pick(others, lambda name: between(self._host, name))
        self.ways = [(self._gateway, fleet.serving(self._far)), (self._host, self._by)]
        self._lost = self.dice.choice(fleet.targets)
        return f"{self._gateway} to {self._far.name}, {self._host} to {self._lost.name} by {self._by}"

    def begin(self) -> None:
        self.fleet.daemons[self._gateway].admin.sql(f"DROP ROUTE [{self._far.name}];")
        statement = f"DROP ROUTE [{self._lost.name} by {self._by}];"
        self.fleet.daemons[self._host].admin.sql(statement, self._home.name)

    def end(self) -> None:
        self.fleet.daemons[self._gateway].admin.sql(route(self.fleet, self._gateway, self._far))
        statement = route(self.fleet, self._host, self._lost, by=self._by)
        self.fleet.daemons[self._host].admin.sql(statement, self._home.name)


class Rotation(Fault):
    """
    A new CA: first trusted beside the old one, then all certificates are issued by it, then it alone is trusted; and
    meanwhile new keys of the databases whose dialogs are sealed, known to the others first, then used.
    """

    name = "rotation"

    def choose(self) -> str:
        return "all hosts, a new CA, new keys of databases"

    def begin(self) -> None:
        fleet = self.fleet
        self._new = authority(f"fault run CA {self.dice.randrange(1000)}")
        fleet.trust(fleet.authority, self._new)
        fleet.sealing.prepare()
        fleet.pause(NOTICED_SECONDS)
        for name in fleet.names:
            fleet.certify(name, self._new)
        fleet.sealing.renew()
        fleet.pause(NOTICED_SECONDS)

    def end(self) -> None:
        self.fleet.authority = self._new
        self.fleet.trust(self._new)
