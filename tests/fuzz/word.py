"""Short texts: names, addresses, amounts, times, subjects; bodies of own messages; the file of a partner."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

from broker.catalog.partner import export, read_partner
from broker.config.admin_access import parse_holder
from broker.config.units import parse_duration, parse_size, render_duration, render_size
from broker.config.values import parse_listen
from broker.conversation.message_types import error_body, error_parts
from broker.dialog.route_requests import Inquiry, parse_inquiry, render_inquiry
from broker.errors import PartnerFileError
from broker.routing.address import parse_address, transport_address
from broker.security.principal import NOBODY, covers_text, parse_principal, who_is
from tests.fuzz.target import KIB, Target
from tests.support.partners import instance

PLAIN = 64 * KIB  # as long as a body that is looked at as XML


def _refused(read: Callable[[], object]) -> None:
    """Every refusal of a short text is a ValueError, and says something."""
    try:
        read()
    except ValueError as error:
        assert str(error)  # noqa: PT017 - most inputs are refused, and the other readers are asked as well


# --- names, addresses, amounts ---


def _word(data: bytes) -> None:
    """Whatever a text is taken for, it is that, or a ValueError; what is read can be written and read again."""
    text = data.decode("utf-8", "replace")
    _refused(lambda: parse_listen(text))
    _refused(lambda: parse_holder(text))
    _refused(lambda: _same_address(text))
    _refused(lambda: _same_amounts(text))
    transport_address(text)
    pattern, _, subject = text.partition("\n")
    assert covers_text(pattern, subject) in {True, False}
    _refused(lambda: parse_principal(pattern).covers(who_is(subject)))
    _refused(lambda: parse_principal(text).covers(NOBODY))


def _same_address(text: str) -> None:
    address = parse_address(text)
    assert address == parse_address(str(address))


def _same_amounts(text: str) -> None:
    for read, render in ((parse_size, render_size), (parse_duration, render_duration)):
        try:
            value = read(text)
        except ValueError:
            continue
        assert value == read(render(value))  # type: ignore[arg-type]


WORDS = [
    "tcp://gateway.example:4022",
    "tcp://[::1]:4022",
    "[fe80::1%eth0]:4022",
    "LOCAL",
    "10.5s",
    "64MiB",
    "CN=billing,O=shop\nCN=billing,O=shop",
    "CN=*,OU=\\2C\\+x+O=y\nCN=a,OU=\\,+O=y",
    "sha256:" + "0" * 64,
    "spiffe://shop.example/billing\nspiffe://shop.example/billing",
    "certificate:CN=deploy,O=shop",
    "user:alice",
    "*" * 40 + "\n" + "a" * 80 + "b",
    "CN=" + "*a" * 30 + "\nCN=" + "a" * 90,
    ",".join(["CN=*"] * 20) + "\n" + ",".join(["CN=a"] * 30),
    "//shop/Billing",
    "net.tcp://user@host.example:1/x",
    "9" * 5000 + "s",
    "xn--\u00e4.\u00df.example",
    "CN=\\",
    "CN=#30",
]


# --- bodies of the broker's own messages ---


def _told(data: bytes) -> None:
    """An Error message of any application is read in one pass; a request for a route is one, or a ValueError."""
    code, text = error_parts(data)
    assert error_parts(error_body(code or 0, text))[0] == (code or 0)
    inquiry = parse_inquiry(data)
    assert inquiry == parse_inquiry(render_inquiry(inquiry))


def _told_seeds() -> list[bytes]:
    return [
        error_body(-8490, "no <service> & more"),
        b"<Description>" * 4000,
        b"<Code>" + b" " * 60_000,
        b"<Description>&#" + b"9" * 5000 + b";</Description>",
        b"<Code>1</Code><Description>&#0;&#x110000;&#55296;&lt;&nope;</Description>",
        render_inquiry(Inquiry("//shop/Billing")),
        render_inquiry(Inquiry("//a&<b>\r\n")).replace(b"http:", b"https:"),
        b'<?xml version="1.0" encoding="utf-16"?><MissingRoute/>',
    ]


# --- a partner file ---


def _partner(data: bytes) -> None:
    """The file that a partner has sent."""
    assert read_partner(data).endpoint


def _partner_seeds() -> list[bytes]:
    with TemporaryDirectory() as directory:
        settings = instance(Path(directory) / "fuzzed")
        text = export(settings, "fuzzed", ["//a"], ["//b"], ["tcp://a.example"]).encode()
    unread = text.replace(b"-----END", b"AAAA-----END")
    return [text, text[:900], text.replace(b"version = 1", b"version = 2"), unread, b"a = " + b"[" * 900]


@cache
def targets() -> tuple[Target, ...]:
    """The targets of this file."""
    return (
        Target("word", _word, (), lambda: [one.encode() for one in WORDS]),
        Target("told", _told, (ValueError,), _told_seeds, input_max=PLAIN),
        Target("partner", _partner, (PartnerFileError,), _partner_seeds, input_max=PLAIN),
    )
