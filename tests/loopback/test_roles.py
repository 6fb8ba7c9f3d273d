"""Two real daemons on one database file: who is the principal, and what happens when that changes."""

from __future__ import annotations

import json
import shutil
import sqlite3
import urllib.request
import uuid
from collections.abc import Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

import broker
from broker.admin.client import ProblemError
from broker.daemon.roles import boot_time
from broker.flow import Disposition
from broker.protocol.frame import Probe, ProbeReply, Rejected
from broker.routing.address import NetworkAddress
from examples.demo.topology import Daemon, Topology, wait_for
from tests.support.command import run
from tests.support.loopback import message, raw

SECONDS = 30.0
INSTANCE = "11111111-1111-4111-8111-111111111111"
SERVICES = "CREATE QUEUE Inbox; CREATE SERVICE [//orders] ON QUEUE Inbox;"
FAIL_OVER = "ALTER DATABASE orders SET PARTNER FAILOVER"


@pytest.fixture
def net(tmp_path: Path) -> Iterator[Topology]:
    (tmp_path / "shared").mkdir()
    with Topology(tmp_path / "net") as topology:
        yield topology


def shared(net: Topology) -> Path:
    """The file that both have."""
    return net.directory.parent / "shared" / "orders.db"


def add(net: Topology, name: str, **settings: Any) -> Daemon:
    values = {"path": str(shared(net)), "mirroring": "lock", **settings}
    daemon = net.add(name, databases=["orders"], settings={"databases.orders": values})
    net.script(name, "orders", SERVICES)
    return daemon


def add_pair_and_sender(net: Topology) -> tuple[Daemon, Daemon, Daemon]:
    """Two instances of one database, and one with a database shop that has a mirrored route to them."""
    settings = {"broker_instance": INSTANCE}
    first, second = add(net, "first", **settings), add(net, "second", **settings)
    sender = net.add("sender", databases=["shop"])
    way = f"ADDRESS = '{first.address}', MIRROR_ADDRESS = '{second.address}'"
    net.script(
        "sender",
        "shop",
        "CREATE QUEUE Outbox; CREATE SERVICE [//shop] ON QUEUE Outbox;"
        f" CREATE ROUTE pair WITH SERVICE_NAME = '//orders', BROKER_INSTANCE = '{INSTANCE}', {way};",
    )
    return first, second, sender


def pair(net: Topology, **settings: Any) -> tuple[Daemon, Daemon]:
    """The first one is the principal."""
    first, second = add(net, "first", **settings), add(net, "second", **settings)
    first.start()
    second.start()
    return first, second


def standing(daemon: Daemon) -> Mapping[str, Any]:
    found: Mapping[str, Any] = daemon.status()["mirroring"]["orders"]
    return found


def role(daemon: Daemon) -> tuple[str, int]:
    found = standing(daemon)
    return found["role"], found["epoch"]


def becomes(daemon: Daemon, wanted: str, epoch: int) -> None:
    wait_for(lambda: (wanted, epoch) == role(daemon), seconds=SECONDS, what=f"{daemon.name} {wanted} {epoch}")


def serves(daemon: Daemon) -> bool:
    return "orders" in daemon.status()["databases"]


def sql(daemon: Daemon, statement: str) -> list[str]:
    told: list[str] = daemon.admin.sql(statement, None)["messages"]
    return told


def refused(daemon: Daemon, statement: str, database: str | None = None) -> tuple[int, str]:
    with pytest.raises(ProblemError) as caught:
        daemon.admin.sql(statement, database)
    return caught.value.problem["number"], caught.value.problem["problem"]


def stored(path: Path, column: str) -> Any:
    with closing(sqlite3.connect(path)) as db:
        return db.execute(f"SELECT {column} FROM broker_database").fetchone()[0]


def events(daemon: Daemon) -> list[str]:
    return [json.loads(line)["event"] for line in daemon.log.read_text(encoding="utf-8").splitlines()]


async def answer(daemon: Daemon, instance: bytes) -> tuple[str, int]:
    """What it answers to PROBE."""
    async with raw(NetworkAddress("127.0.0.1", daemon.port), name="asker") as peer:
        await peer.say(Probe(id=1, service="//orders", broker_instance=instance))
        reply = await peer.hear(ProbeReply)
        return reply.role, reply.epoch


# --- who is the principal -----------------------------------------------------------------------------------


async def test_the_first_is_principal_and_the_second_is_ready_as_a_mirror(net: Topology) -> None:
    first, second = pair(net)

    assert (("principal", 1), ("mirror", 1)) == (role(first), role(second))
    assert (True, False) == (serves(first), serves(second))
    assert ("lock", "first", "") == tuple(standing(second)[key] for key in ("source", "principal", "problem"))
    instance = stored(shared(net), "broker_instance")
    assert ("principal", 1) == await answer(first, instance)
    assert ("mirror", 1) == await answer(second, instance)
    assert ("unknown", 0) == await answer(second, b"?" * 16)
    health = second.admin.get("/v1/status")
    assert health["ready"]


async def test_a_killed_principal_is_followed_at_once(net: Topology) -> None:
    first, second = pair(net)
    instance = stored(shared(net), "broker_instance")

    first.kill()
    becomes(second, "principal", 2)

    assert 2 == stored(shared(net), "epoch")
    assert ("principal", 2) == await answer(second, instance)
    with closing(sqlite3.connect(shared(net), timeout=SECONDS)) as db:
        with db:
            broker.begin_dialog(db, from_service="//orders", to_service="//orders").send("hello")
        with db:
            assert ["hello"] == [one.body.decode() for one in broker.receive(db, queue="Inbox", wait=SECONDS)]
    first.start()
    assert ("mirror", 2) == role(first)


def test_both_may_be_started_again_in_any_order(net: Topology) -> None:
    first, second = pair(net)

    second.stop()
    first.stop()
    second.start()
    first.start()

    assert (("mirror", 2), ("principal", 2)) == (role(first), role(second))


def test_a_frozen_principal_keeps_the_lock(net: Topology) -> None:
    """It is alive: whether it should be killed is for whoever watches it."""
    first, second = pair(net)

    first.freeze()
    mark = second.status()["uptime_s"]
    wait_for(lambda: second.status()["uptime_s"] > mark + 0.5, seconds=SECONDS, what="ten attempts to take the lock")
    still = role(second)
    first.thaw()

    assert ("mirror", 1) == still
    assert ("principal", 1) == role(first)


# --- planned ------------------------------------------------------------------------------------------------


def test_a_database_is_handed_over_and_back(net: Topology) -> None:
    first, second = pair(net)

    there = sql(first, FAIL_OVER)
    between = role(first), role(second), serves(second)
    back = sql(second, f"USE orders; {FAIL_OVER.replace('orders', 'CURRENT')}")

    assert ["database orders handed over: second is the principal, epoch 2"] == there
    assert (("mirror", 2), ("principal", 2), True) == between
    assert ["database orders handed over: first is the principal, epoch 3"] == back
    becomes(first, "principal", 3)


def test_a_database_that_nobody_takes_over_comes_back_and_says_so(net: Topology) -> None:
    first = add(net, "first")
    first.start()

    told = sql(first, FAIL_OVER)

    again = "no instance took it over within 5 s, so this instance is the principal again, epoch 2"
    alone = f"{again}; see the log and sys.database_mirroring of its partner for the reason"
    assert [f"database orders: {alone}"] == told
    assert serves(first)


def test_who_may_not_hand_over_is_told_why(net: Topology) -> None:
    _, second = pair(net)
    alone = net.add("alone", databases=["orders"])
    alone.start()

    assert (1416, "the database 'orders' is not mirrored: its mirroring is off") == refused(alone, FAIL_OVER)
    assert (1416, "the database 'msdb' is not mirrored: its mirroring is off") == refused(
        alone, FAIL_OVER.replace("orders", "msdb")
    )
    assert (1470, "the database 'orders' is a mirror here: say this to its principal, 'first'") == refused(
        second, FAIL_OVER
    )
    assert 911 == refused(alone, FAIL_OVER.replace("orders", "nothing"))[0]


def test_nothing_else_is_said_to_a_mirror(net: Topology) -> None:
    _, second = pair(net)

    assert 954 == refused(second, "CREATE QUEUE Other", "orders")[0]
    assert 954 == refused(second, "SELECT name FROM sys.services", "orders")[0]
    told = run("status", "-c", second.config)
    assert "Mirrored databases" in told.stdout
    assert "first" in told.stdout
    why = run("why", "-c", second.config, "22222222-2222-4222-8222-222222222222")
    assert "this database is a mirror here; ask its partner" in " ".join((why.stdout + why.stderr).split())


def test_what_it_is_stands_in_views_and_metrics(net: Topology) -> None:
    first, second = pair(net)
    columns = "database_name, mirroring_role_desc, mirroring_state_desc, mirroring_partner_name, role_source"
    question = f"SELECT {columns}, mirroring_role_sequence AS epoch FROM sys.database_mirroring"

    (there,), (here,) = first.query(question), second.query(question)

    assert ["orders", "PRINCIPAL", "SYNCHRONIZED", None, "lock", 1] == list(there.values())
    assert ["orders", "MIRROR", "SYNCHRONIZED", "first", "lock", 1] == list(here.values())

    for daemon, principal in ((first, 1), (second, 0)):
        with urllib.request.urlopen(f"http://127.0.0.1:{daemon.observe_port}/metrics") as answered:
            lines = answered.read().decode().splitlines()
        assert f'broker_database_principal{{database="orders"}} {principal}.0' in lines
        assert 'broker_database_epoch{database="orders"} 1.0' in lines


# --- under traffic ------------------------------------------------------------------------------------------


def test_conversations_within_the_database_survive_every_change_of_roles(net: Topology) -> None:
    """Applications are on the file all the time; planned, back, and a kill."""
    first, second = pair(net)
    with closing(sqlite3.connect(shared(net), timeout=SECONDS)) as db:
        with db:
            dialog = broker.begin_dialog(db, from_service="//orders", to_service="//orders")
        number = 0
        for change in (lambda: sql(first, FAIL_OVER), lambda: sql(second, FAIL_OVER), first.kill, first.start):
            for _ in range(20):
                with db:
                    dialog.send(str(number))
                number += 1
            change()
        got: list[str] = []
        while len(got) < number:
            with db:
                got += [one.body.decode() for one in broker.receive(db, queue="Inbox", wait=SECONDS)]
        with db:
            more = broker.receive(db, queue="Inbox", wait=0.2)

    assert ([str(one) for one in range(number)], []) == (got, more)


def test_what_is_sent_to_a_pair_arrives_once_and_in_order_whoever_is_principal(net: Topology) -> None:
    first, second, sender = add_pair_and_sender(net)
    for name in ("first", "second"):
        back = f" CREATE ROUTE back WITH SERVICE_NAME = '//shop', ADDRESS = '{sender.address}';"
        net.script(name, "orders", SERVICES + back)
    first.start()
    second.start()
    sender.start()
    with closing(sender.connect("shop")) as db, closing(sqlite3.connect(shared(net), timeout=SECONDS)) as pair_db:
        with db:
            dialog = broker.begin_dialog(
                db, from_service="//shop", to_service="//orders", broker_instance=uuid.UUID(INSTANCE)
            )
        number = 0
        got: list[str] = []

        def take() -> None:
            with pair_db:
                got.extend(one.body.decode() for one in broker.receive(pair_db, queue="Inbox", wait=SECONDS))

        for change in (lambda: sql(first, FAIL_OVER), lambda: sql(second, FAIL_OVER), first.kill, first.start):
            for _ in range(20):
                with db:
                    dialog.send(str(number))
                number += 1
            take()
            change()
        while len(got) < number:
            take()
        with pair_db:
            more = broker.receive(pair_db, queue="Inbox", wait=0.2)

    assert ([str(one) for one in range(number)], []) == (got, more)


# --- fencing ------------------------------------------------------------------------------------------------


def test_whoever_has_a_stale_epoch_commits_nothing_and_steps_down(net: Topology) -> None:
    first = add(net, "first")
    first.start()

    with closing(sqlite3.connect(shared(net), timeout=SECONDS)) as db, db:
        db.execute("UPDATE broker_database SET epoch = 7")
        broker.begin_dialog(db, from_service="//orders", to_service="//orders").send("hello")
    wait_for(lambda: "mirror" == role(first)[0], seconds=SECONDS, what="demoted")
    with closing(sqlite3.connect(shared(net))) as db:
        delivered = db.execute("SELECT count(*) FROM broker_message").fetchone()[0]
    problem = standing(first)["problem"]

    assert 0 == delivered
    assert "another daemon has taken it over: its epoch is 7, ours was 1" == problem
    wait_for(lambda: "database demoted" in events(first), seconds=SECONDS, what="told, once the file is closed")
    becomes(first, "principal", 8)  # for nobody else has it


def test_a_lock_that_is_lost_lets_nobody_write_twice(net: Topology) -> None:
    """The file of the lock is removed, so the second gets one of its own while the first has the database."""
    first, second = pair(net)

    Path(f"{shared(net)}.lock").unlink()

    becomes(second, "principal", 2)
    wait_for(lambda: ("mirror", 2) == role(first), seconds=SECONDS, what="the first steps down")
    assert "second" == standing(first)["principal"]


async def test_nothing_comes_into_a_mirror(net: Topology) -> None:
    _, second = pair(net)
    instance = stored(shared(net), "broker_instance")

    async with raw(NetworkAddress("127.0.0.1", second.port), name="sender") as peer:
        await peer.say(message("//orders", to_broker_instance=instance))
        rejected = await peer.hear(Rejected)

    assert (28018, "database is a mirror") == (rejected.code, rejected.reason)
    assert {Disposition.DATABASE_IS_MIRROR.value: 1} == second.status()["forwarding"]["dropped"]


# --- a command that tells the role --------------------------------------------------------------------------


def told_by(path: Path, *, after: str = "0") -> dict[str, Any]:
    """Settings with which the role is what a file says, told so many seconds later."""
    command = ["sh", "-c", f"said=$(cat '{path}') && sleep {after} && echo $said"]
    return {"mirroring": "command", "role_command": command, "role_interval": "100ms", "role_timeout": "2500ms"}


def test_a_command_makes_and_ends_a_principal(net: Topology, tmp_path: Path) -> None:
    word = tmp_path / "role"
    word.write_text("mirror", encoding="utf-8")
    daemon = add(net, "first", **told_by(word))
    daemon.start()
    begins = role(daemon)

    word.write_text("principal 12", encoding="utf-8")
    becomes(daemon, "principal", 12)
    word.write_text("mirror", encoding="utf-8")
    becomes(daemon, "mirror", 12)
    word.write_text("principal 3", encoding="utf-8")
    becomes(daemon, "principal", 13)

    assert ("mirror", 0) == begins
    assert (50000, "the roles of 'orders' are decided by role_command: fail over where that gets them from") == refused(
        daemon, FAIL_OVER
    )


def test_a_principal_that_nothing_confirms_steps_down(net: Topology, tmp_path: Path) -> None:
    word = tmp_path / "role"
    word.write_text("principal", encoding="utf-8")
    daemon = add(net, "first", **told_by(word))
    daemon.start()
    assert ("principal", 1) == role(daemon)

    word.unlink()

    becomes(daemon, "mirror", 1)
    assert "has failed with exit code 1" in standing(daemon)["problem"]
    word.write_text("what", encoding="utf-8")
    wait_for(lambda: "printed 'what" in standing(daemon)["problem"], seconds=SECONDS, what="another problem")


def test_a_principal_that_stood_still_and_was_overtaken_stores_sends_and_acknowledges_nothing(
    net: Topology, tmp_path: Path
) -> None:
    """Nothing has told it so when it goes on: what its role command says was read before it stood still."""
    word = tmp_path / "role"
    word.write_text("principal", encoding="utf-8")
    first = add(net, "first", **told_by(word, after="0.3"))
    sender = net.add("sender", databases=["shop"])
    for name, database, far, address in (("sender", "shop", "orders", first), ("first", "orders", "shop", sender)):
        way = f"CREATE ROUTE far WITH SERVICE_NAME = '//{far}', ADDRESS = '{address.address}'"
        net.script(name, database, f"CREATE QUEUE Inbox; CREATE SERVICE [//{database}] ON QUEUE Inbox; {way};")
    first.start()
    sender.start()

    with closing(sender.connect("shop")) as shop:
        dialog = broker.begin_dialog(shop, from_service="//shop", to_service="//orders", encryption=False)
        dialog.send(b"before")
        shop.commit()
        wait_for(lambda: 0 == waiting(shop), seconds=SECONDS, what="an acknowledgement")
        with closing(sqlite3.connect(shared(net))) as orders:
            orders.execute("BEGIN IMMEDIATE")  # it stands still between two transactions
            first.freeze()
        stands_since = boot_time()
        word.write_text("mirror", encoding="utf-8")
        for number in range(5):
            dialog.send(b"%d" % number)
            shop.commit()
        wait_for(lambda: boot_time() > stands_since + 3.0, seconds=SECONDS, what="a role that holds no more")
        first.thaw()
        wait_for(lambda: "mirror" == role(first)[0] and not serves(first), seconds=SECONDS, what="a mirror")

        assert (1, 5) == (received(net), waiting(shop))
        word.write_text("principal", encoding="utf-8")
        wait_for(lambda: 0 == waiting(shop), seconds=SECONDS, what="all acknowledgements")
        assert 6 == received(net)


def waiting(shop: sqlite3.Connection) -> int:
    """Messages that are not acknowledged."""
    found: int = shop.execute("SELECT count(*) FROM broker_transmission").fetchone()[0]
    return found


def received(net: Topology) -> int:
    with closing(sqlite3.connect(shared(net))) as orders:
        found: int = orders.execute("SELECT count(*) FROM broker_message").fetchone()[0]
        return found


# --- what stands in the way ---------------------------------------------------------------------------------


def test_a_told_role_that_was_damaged_is_a_problem_and_no_more(net: Topology) -> None:
    first, second = pair(net)
    Path(f"{shared(net)}.role").write_text("{", encoding="utf-8")

    wait_for(lambda: standing(second)["problem"], seconds=SECONDS, what="a problem")
    assert "it does not hold what the principal wrote into it: remove it" in standing(second)["problem"]
    first.kill()

    becomes(second, "principal", 2)
    assert "" == standing(second)["problem"]
    assert "second" == json.loads(Path(f"{shared(net)}.role").read_text(encoding="utf-8"))["principal"]


def test_storage_that_is_not_there_keeps_a_daemon_from_starting_and_is_not_made(net: Topology) -> None:
    daemon = add(net, "first")
    shutil.rmtree(shared(net).parent)

    daemon.start(wait=False)
    wait_for(lambda: not daemon.is_running, seconds=SECONDS, what="the end")

    assert f'the directory "{shared(net).parent}" does not exist' in daemon.last_words()
    assert not shared(net).parent.exists()


def test_storage_that_goes_away_is_told_by_the_mirror(net: Topology) -> None:
    first, second = pair(net)
    away = shared(net).parent.with_name("away")

    shared(net).parent.rename(away)
    wait_for(lambda: standing(second)["problem"], seconds=SECONDS, what="a problem")
    problem = standing(second)["problem"]
    away.rename(shared(net).parent)
    first.kill()

    assert "No such file or directory" in problem
    becomes(second, "principal", 2)


def test_a_role_that_cannot_be_told_is_not_taken_and_costs_no_epoch(net: Topology) -> None:
    first, second = pair(net)
    told = Path(f"{shared(net)}.role")
    told.unlink()
    told.mkdir()

    first.kill()
    wait_for(lambda: "Is a directory" in standing(second)["problem"], seconds=SECONDS, what="a problem")
    mark = second.status()["uptime_s"]
    wait_for(lambda: second.status()["uptime_s"] > mark + 2.5, seconds=SECONDS, what="two more attempts")
    still = role(second)
    told.rmdir()

    assert ("mirror", 1) == still
    becomes(second, "principal", 2)


@pytest.mark.parametrize("lost", [("", "-wal", "-shm"), ("",)])
def test_a_mirror_makes_no_new_database_where_one_was(net: Topology, lost: tuple[str, ...]) -> None:
    """Though it never was principal itself, and has the identity in its configuration."""
    first, second = pair(net, broker_instance=INSTANCE)

    for log in lost:
        Path(f"{shared(net)}{log}").rename(f"{shared(net)}{log}.away")
    first.kill()
    wait_for(lambda: standing(second)["problem"], seconds=SECONDS, what="a problem")
    problem, is_made = standing(second)["problem"], shared(net).exists()
    for log in lost:
        Path(f"{shared(net)}{log}.away").rename(f"{shared(net)}{log}")

    assert ("put the file or a backup back" if "-wal" in lost else "put the file back beside it") in problem
    assert not is_made
    becomes(second, "principal", 2)


def test_many_databases_are_taken_over_at_once_without_damage_to_what_the_instance_knows(net: Topology) -> None:
    names = [f"d{number}" for number in range(12)]
    settings = {
        f"databases.{name}": {"path": str(shared(net).with_name(f"{name}.db")), "mirroring": "lock"} for name in names
    }
    first, second = (net.add(name, databases=names, settings=settings) for name in ("first", "second"))
    first.start()
    second.start()

    first.kill()

    def taken() -> bool:
        return all(one["role"] == "principal" for one in second.status()["mirroring"].values())

    wait_for(taken, seconds=SECONDS, what="all are taken over")
    second.stop()
    records = [
        json.loads(next(daemon.directory.rglob("databases.json")).read_text(encoding="utf-8"))
        for daemon in (first, second)
    ]
    assert [13, 13] == [len(record) for record in records]  # and msdb


def test_a_backup_that_was_put_back_and_kept_is_believed_by_those_who_send(net: Topology) -> None:
    first, second, sender = add_pair_and_sender(net)
    for daemon in (first, second, sender):
        daemon.start()
    backup = shared(net).with_name("backup.db")
    with closing(sqlite3.connect(shared(net), timeout=SECONDS)) as db:
        db.execute("VACUUM INTO ?", (str(backup),))

    def arrives(text: str) -> None:
        """Sent by the sender; what was sent before may come again."""
        with closing(sender.connect("shop")) as db, db:
            instance = uuid.UUID(INSTANCE)
            broker.begin_dialog(db, from_service="//shop", to_service="//orders", broker_instance=instance).send(text)
        got: list[str] = []
        with closing(sqlite3.connect(shared(net), timeout=SECONDS)) as db:
            while text not in got:
                with db:
                    some = broker.receive(db, queue="Inbox", wait=SECONDS)
                assert some, f"{text} has not come"
                got += [one.body.decode() for one in some]

    told = sql(first, FAIL_OVER), sql(second, FAIL_OVER)
    arrives("before")
    known = sender.query("SELECT epoch FROM sys.dm_broker_mirrors")
    second.stop()
    first.stop()
    for log in ("", "-wal", "-shm"):
        Path(f"{shared(net)}{log}").unlink(missing_ok=True)
    backup.replace(shared(net))  # moved, not copied: a copy may get the number of the file that has just gone

    refused = run("check", "-c", second.config)
    kept = [run("database", "keep", "orders", "-c", daemon.config) for daemon in (first, second)]
    first.start()
    second.start()
    arrives("behind")

    assert "epoch 3" in told[1][0]
    assert [{"epoch": 3}] == known
    assert "the file is a copy" in refused.stdout + refused.stderr
    assert [0, 0] == [one.exit_code for one in kept]
    assert ("principal", 4) == role(first)


def test_storage_in_which_nothing_can_be_made_keeps_a_daemon_from_starting(net: Topology) -> None:
    daemon = add(net, "first")
    Path(f"{shared(net)}.lock").mkdir()

    daemon.start(wait=False)
    wait_for(lambda: not daemon.is_running, seconds=SECONDS, what="the end")

    assert "Is a directory" in daemon.last_words()
    assert "Traceback" not in daemon.last_words()
