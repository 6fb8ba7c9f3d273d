"""Remedies: one for each reason that an operator can do something about, with the names of the case."""

import re

import pytest
from msgspec.structs import replace

from broker.errors import TLS_ONLY
from broker.flow import Disposition
from broker.observe.drops import DEFINITIONS_CHANGED, DropSnapshot, remedy_of_drop
from broker.observe.message_catalogue import TakenRoute, WaitingDialog, remedy_of, remedy_of_error, remedy_of_unreached
from tests.support.records import frame as dialog_frame

RUN = "with broker sql, and in its script if it has one: USE"
# What heals by itself, or is no end of a message.
NOTHING_TO_DO = {
    Disposition.FORWARDED,
    Disposition.DELIVERED,
    Disposition.MALFORMED,
    Disposition.SHUTDOWN,
    Disposition.DUPLICATE,
    Disposition.OUT_OF_SEQUENCE,
    Disposition.CONVERSATION_ENDED,
    Disposition.CORRUPTED,
}


@pytest.mark.parametrize("disposition", sorted(Disposition))
def test_every_reason_has_a_remedy_of_its_own_without_gaps_or_leads_to_the_page(disposition: Disposition) -> None:
    text = remedy_of(disposition, instance="gateway-a", service="//S", table="orders")

    is_general = text == "see the page on dispositions, and the log of gateway-a"
    assert (disposition in NOTHING_TO_DO) == is_general
    assert not re.search(r"[{}]|the page on dispositions", "" if is_general else text)


@pytest.mark.parametrize(
    ("dialog", "question"),
    [
        (WaitingDialog(), "is the name right? A sent message cannot be readdressed: if the name is wrong, end the"),
        (WaitingDialog("END;", near=["//s", "T"]), "is the name right? Known there: //s, T. A sent message cannot be"),
        (WaitingDialog(is_known=True), f"if the service is elsewhere, at gateway, {RUN} [msdb]; CREATE ROUTE"),
    ],
)
def test_where_a_local_route_led_nowhere_the_name_is_asked_for_first(dialog: WaitingDialog, question: str) -> None:
    """AutoCreatedLocal takes what no other route matches, so a misspelt name ends so."""
    text = remedy_of(Disposition.SERVICE_NOT_HERE, instance="gateway", service="//S'", dialog=dialog)

    assert text.startswith(question)
    assert "USE [msdb]; CREATE ROUTE [//S'] WITH SERVICE_NAME = '//S''', ADDRESS = 'tcp://HOST:PORT';" in text


def test_names_are_filled_in_and_never_a_format() -> None:
    text = remedy_of(Disposition.NO_ROUTE, instance="{service}", service="{0}{x", table="orders")

    assert f"at {{service}}, {RUN} [orders]; CREATE ROUTE [{{0}}{{x]" in text
    assert "WITH SERVICE_NAME = '{0}{x'" in text


@pytest.mark.parametrize("code", [-8408, -8428, -8430, -8437, -8457, -8462, -8489, -8490, -8495, -8498, -9616])
def test_every_number_of_the_broker_has_a_remedy_that_ends_the_dialog(code: int) -> None:
    text = remedy_of_error(code, service="//S")

    assert text.endswith("; RECEIVE the Error message and END CONVERSATION here")
    assert "{" not in text


@pytest.mark.parametrize(
    ("code", "text"),
    [
        (None, "RECEIVE the Error message and END CONVERSATION here"),
        (
            -8494,
            "if that is not done since (broker why with --admin asks there), at the instance of //S, with broker sql",
        ),
        (-1, "RECEIVE the Error message and END CONVERSATION here"),
        (17, "the far application ended the dialog with its own error 17: ask there"),
    ],
)
def test_other_errors(code: int | None, text: str) -> None:
    said = "no GRANT SEND ON SERVICE::[//S] TO [CN=a] or public" if code == -8494 else ""
    assert remedy_of_error(code, service="//S", text=said).startswith(text)


@pytest.mark.parametrize(
    ("problem", "remedy"),
    [
        ("Connection refused", "start the instance at tcp://a:1"),
        ("FATAL from CN=a: CN=b may not connect: no GRANT", "at the instance at tcp://a:1, with broker sql"),
        ("CN=b may not connect: no GRANT", "at this instance, with broker sql"),
        ("handshake refused: no HELLO within 10 s", "if its port is wrong, correct the route to tcp://a:1."),
        ("TLS refused: the peer does not speak TLS", "if its port is wrong, correct the route to tcp://a:1."),
        (f"FATAL from the peer: {TLS_ONLY}", "set endpoint.encryption of this instance"),
        ("TLS refused: the certificate of the peer is for a: correct the route, or x", "correct the route, or x"),
        (
            "TLS refused: the peer speaks plain text: set encryption there, or",
            "set encryption there, or. Or, if another instance is meant, correct the route to tcp://a:1.",
        ),
        ("TLS refused: its certificate is not trusted: name it", "name it. Or, if another instance is meant, correct"),
        ("not a frame: it looks like the answer of an HTTP server", "another program answers there: correct the route"),
        ("TLS refused: TLS failed (unexpected message)", "start the instance at tcp://a:1"),
    ],
)
def test_next_hop_that_is_not_reached_is_started_or_permitted(problem: str, remedy: str) -> None:
    assert remedy_of_unreached("tcp://a:1", problem).startswith(remedy)


def test_another_host_of_a_route_that_is_known_is_given_by_a_statement() -> None:
    problem = "TLS refused: the certificate of the peer is for a: correct the route, or make it again"

    text = remedy_of_unreached("tcp://a:1", problem, TakenRoute("R", "near"), "near")

    assert text.endswith("ALTER ROUTE [R] WITH ADDRESS = 'tcp://HOST:PORT'; Or make it again")


REASON = "CN=a may not send: no GRANT SEND ON SERVICE::[//S] TO [CN=a] or public"
LACKING = DropSnapshot(Disposition.NOT_PERMITTED, None, 1, 0.0, None, REASON)


@pytest.mark.parametrize(("database", "table"), [(None, "msdb"), ("d]b", "d]]b")])
def test_a_drop_for_want_of_a_permission_has_the_statement_that_gives_it(database: str | None, table: str) -> None:
    drop = replace(LACKING, database=database)

    statement = f"at gw, {RUN} [{table}]; GRANT SEND ON SERVICE::[//S] TO [CN=a];"
    assert statement == remedy_of_drop(drop, "gw")
    assert DEFINITIONS_CHANGED == remedy_of_drop(replace(drop, is_past=True), "gw")
    astray = " Or, if messages to SERVICE are not to arrive at gw, correct the route to it."
    renamed = " Or, if the name is wrong, end the dialog at its sender (broker why ID there says how) and begin another"
    lost = remedy_of_drop(replace(drop, leads_nowhere=True), "gw")
    assert lost.startswith(f"{statement}{astray}{renamed}")


LOST = replace(LACKING, leads_nowhere=True)
FRAME = dialog_frame(to_service="//S", to_broker_instance=bytes(16)[:-1] + b"\x07")
NAMES_ANOTHER = DropSnapshot(Disposition.INSTANCE_NOT_HERE, None, 1, 0.0, FRAME, "")
EXPIRED = DropSnapshot(Disposition.EXPIRED_HERE, None, 1, 0.0, None, "", unreached=("tcp://a:1", "refused"))


@pytest.mark.parametrize(
    ("drop", "remedy"),
    [
        (replace(LOST, other_instance="NEW"), "SERVICE is broker instance NEW here, and the messages name"),
        (replace(LOST, is_back=True), "a route leads it back: broker explain --to SERVICE --through"),
        (NAMES_ANOTHER, "CREATE ROUTE [//S 00000000] WITH SERVICE_NAME = '//S', BROKER_INSTANCE = '00000000-0000-"),
        (EXPIRED, "tcp://a:1 is not reached: start the instance at tcp://a:1"),
        (replace(EXPIRED, unreached=("tcp://a:1", "")), "make tcp://a:1, its next hop, accept messages"),
    ],
)
def test_a_drop_says_what_to_do_by_where_its_way_ends(drop: DropSnapshot, remedy: str) -> None:
    assert remedy in remedy_of_drop(drop, "gw")


@pytest.mark.parametrize(
    ("disposition", "remedy"),
    [
        (Disposition.NO_ROUTE, f"at far, {RUN} [msdb]; CREATE ROUTE [//S]"),
        (Disposition.FORWARDING_DISABLED, "set endpoint.message_forwarding = true at far"),
    ],
)
def test_the_route_that_may_be_wrong_is_asked_for_before_what_is_missing_where_it_leads(
    disposition: Disposition, remedy: str
) -> None:
    route = TakenRoute("To]S", "near", "orders")

    text = remedy_of(disposition, instance="far", service="//S", dialog=WaitingDialog(is_known=True), route=route)

    led = f"at near, {RUN} [orders]; ALTER ROUTE [To]]S] WITH ADDRESS = 'tcp://HOST:PORT';"
    assert text.startswith(f"if route To]S of near is not to lead to far, {led} Otherwise, {remedy}")


def test_a_route_of_a_partner_is_in_no_script() -> None:
    scripted, imported = (TakenRoute(name, "near").led_elsewhere() for name in ("To", "partner:far://S"))

    assert f"at near, {RUN} [msdb]; ALTER ROUTE [To]" in scripted
    assert "at near, with broker sql: USE [msdb]; ALTER ROUTE [partner:far://S]" in imported


def test_names_that_are_known_are_in_the_remedy_of_an_error() -> None:
    refused = "the service '//S' does not accept the contract '//C'"

    text = remedy_of_error(-8408, service="//S", text=refused, target="far", database="billing")

    assert f"at far, {RUN} [billing]; ALTER SERVICE [//S] (ADD CONTRACT [//C]);" in text
    text = remedy_of_error(-9727, service="//S", here="at near, with broker sql: USE [orders];")
    assert "at near, with broker sql: USE [orders]; CREATE REMOTE SERVICE BINDING [//S] TO SERVICE '//S' WITH" in text
