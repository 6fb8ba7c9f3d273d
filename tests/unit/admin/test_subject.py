"""An instance in this process, as the admin interface sees it."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import cast

import pytest

from broker.admin.subject import OneProcess, Subject
from broker.control.role_keeper import OwnStanding
from broker.daemon import Instance
from broker.mirror.role import Role
from broker.net.certificate import Identity
from broker.net.dialer import Attempts
from broker.net.tls import Encryption, Security
from broker.routing.address import NetworkAddress
from broker.routing.choose import Health
from broker.routing.facts import Facts

FAR = NetworkAddress("far", 4022)


async def test_it_tells_what_the_instance_tells(instance: Instance) -> None:
    subject: Subject = OneProcess(instance)

    status = await subject.status()
    reading = await subject.reading()
    await subject.settle()

    assert (subject.settings, subject.software) == (instance.settings, instance.software)
    assert (subject.catalog, subject.is_ready, subject.stopping) == (instance.catalog, True, instance.stopping)
    assert (status["name"], list(status["databases"])) == ("one", ["orders"])
    assert reading.samples["broker_ready"] == [((), True)]
    assert list(subject.backlog_paths()) == ["orders"]
    assert "sys.dm_broker_connections" in subject.views().by_view()


async def test_store_that_fails_is_a_part(instance: Instance) -> None:
    instance.endpoints["orders"].problem = "disk I/O error"

    assert OneProcess(instance).parts == {"store of orders": "disk I/O error", "configuration": ""}


async def test_frozen_place_stays_as_it_was(instance: Instance) -> None:
    """Another thread looks at it while the instance goes on."""
    subject = OneProcess(instance)
    attempts = Attempts()
    known = cast("dict[NetworkAddress, Attempts]", instance.peers.attempts)
    known[FAR] = attempts
    attempts.failed("Connection refused", now=1e9)
    attempts.suppressed_until = float("inf")
    facts = Facts("//far", b"t" * 16, b"c" * 16, is_from_target=False)
    instance.forwarder._decider.passed[facts] = None

    frozen, passed = await subject.frozen()
    live = await subject.place()
    del known[FAR]

    assert (frozen.surroundings.health_of(FAR), frozen.problem_of(FAR)) == (Health.SUPPRESSED, "Connection refused")
    assert (live.surroundings.health_of(FAR), live.problem_of(FAR)) == (Health.UNTRIED, "")
    assert frozen.surroundings.health_of(NetworkAddress("new", 1)) is Health.UNTRIED
    assert passed == [facts]


async def test_a_role_in_doubt_is_a_part(instance: Instance, monkeypatch: pytest.MonkeyPatch) -> None:
    standing = OwnStanding(None, Role.MIRROR, 1, 0.0, "lock", problem="the storage is gone")
    monkeypatch.setattr(instance, "standings", lambda: {"orders": standing})

    told = OneProcess(instance).parts
    assert {"store of orders": "", "role of orders": "the storage is gone", "configuration": ""} == told


async def test_certificate_and_its_files_are_told_where_there_are_any(instance: Instance) -> None:
    subject = OneProcess(instance)
    assert "" == subject.certificate_problem
    assert "certificate files" not in subject.parts
    now = datetime.now(UTC)
    own = Identity("CN=one", "ab", (), now, now)

    instance.certificates.security = Security(Encryption.REQUIRED, own=own)
    instance.certificates.problem = "endpoint.certificate: gone"

    assert "endpoint.certificate: gone" == subject.parts["certificate files"]
    assert "the certificate of this instance has expired" in subject.certificate_problem
