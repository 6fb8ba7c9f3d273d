"""What every database has without any statement."""

from xml.etree import ElementTree as ET

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.conversation.body_check import (
    DEPTH_MAX,
    JSON_MAX_BYTES,
    MARK_MAX_BYTES,
    error_body,
    error_parts,
    refusal_of_body,
    validator,
    violation,
)
from broker.conversation.message_types import Rule, SentBy, Validation

BOMB = b'<!DOCTYPE a [<!ENTITY x "xx"><!ENTITY y "&x;&x;">]><a>&y;</a>'
SPACE = b" " * (3 * MARK_MAX_BYTES)
TEXT = b"t" * (3 * MARK_MAX_BYTES)

GOOD = {
    "any": ("NONE", b"\xff<"),
    "any large": ("NONE", TEXT),
    "empty": ("EMPTY", b""),
    "xml": ("WELL_FORMED_XML", '<?xml version="1.0"?>\n<å b="1">text<!-- --><c/></å>\n'.encode()),
    "xml utf-16": ("WELL_FORMED_XML", "<a>é</a>".encode("utf-16")),
    "xml latin-1": ("WELL_FORMED_XML", '<?xml version="1.0" encoding="iso-8859-1"?><a>é</a>'.encode("latin-1")),
    "xml namespaces": ("WELL_FORMED_XML", b'<n:a xmlns:n="urn:n"><n:b/></n:a>'),
    "xml as deep as can be": ("WELL_FORMED_XML", b"<a>" * DEPTH_MAX + b"</a>" * DEPTH_MAX),
    "xml siblings": ("WELL_FORMED_XML", b"<a>" + b"<b/>" * 1000 + b"</a>"),
    "xml long text": ("WELL_FORMED_XML", b"<a>" + TEXT + b"</a>"),
    "xml long section": ("WELL_FORMED_XML", b"<a><![CDATA[" + TEXT + b"]]></a>"),
    "xml long end": ("WELL_FORMED_XML", b"<a/>" + SPACE),
    "json": ("JSON", ' {"a": [1, -2.5e3, true, null, "é\\u00e9\\n"]} '.encode()),
    "json number": ("JSON", b"0"),
    "json as deep as can be": ("JSON", b"[" * DEPTH_MAX + b"]" * DEPTH_MAX),
    "json brackets in texts": ("JSON", b'["\\"[[", ' * 100 + b"1" + b"]" * 100),
    "json siblings": ("JSON", b"[" + b"{}," * 1000 + b"{}]"),
    "json as long as can be": ("JSON", b'"' + b"x" * (JSON_MAX_BYTES - 2) + b'"'),
}
BAD = {
    "empty": ("EMPTY", b" ", "must be empty"),
    "xml nothing": ("WELL_FORMED_XML", b"", "no element"),
    "xml text": ("WELL_FORMED_XML", b"text", "syntax error, line 1"),
    "xml not closed": ("WELL_FORMED_XML", b"<a>\n<b>", "line 2"),
    "xml two roots": ("WELL_FORMED_XML", b"<a/><b/>", "junk after"),
    "xml prefix": ("WELL_FORMED_XML", b"<n:a/>", "unbound prefix"),
    "xml document type": ("WELL_FORMED_XML", BOMB, "document type"),
    "xml encoding unknown": ("WELL_FORMED_XML", b'<?xml version="1.0" encoding="nope"?><a/>', "unknown encoding"),
    "xml encoding of several bytes": ("WELL_FORMED_XML", b'<?xml version="1.0" encoding="big5"?><a/>', "multi-byte"),
    "xml too deep": ("WELL_FORMED_XML", b"<a>" * (DEPTH_MAX + 1), "nested more than 128"),
    "xml long attribute": ("WELL_FORMED_XML", b'<a b="' + TEXT + b'"/>', "more than 2097152 bytes"),
    "xml long comment": ("WELL_FORMED_XML", b"<a><!--" + TEXT + b"--></a>", "more than 2097152 bytes"),
    "json nothing": ("JSON", b"", "not JSON"),
    "json comma": ("JSON", b"[1,]", "not JSON"),
    "json not a number": ("JSON", b"NaN", "not JSON"),
    "json bytes": ("JSON", b'"\xff"', "not JSON"),
    "json mark": ("JSON", b"\xef\xbb\xbf1", "not JSON"),
    "json too deep": ("JSON", b"[" * (DEPTH_MAX + 1) + b"]" * (DEPTH_MAX + 1), "nested more than 128"),
    "json much too deep": ("JSON", b"[" * 100_000, "nested more than 128"),
    "json too long": ("JSON", b'"' + b"x" * (JSON_MAX_BYTES - 1) + b'"', "1048576 bytes"),
}


@pytest.mark.parametrize(("validation", "body"), GOOD.values(), ids=GOOD)
def test_body_that_is_what_its_type_says_passes(validation: str, body: bytes) -> None:
    assert violation(validation, body) is None


@pytest.mark.parametrize(("validation", "body", "why"), BAD.values(), ids=BAD)
def test_body_that_is_not_is_refused_with_the_reason(validation: str, body: bytes, why: str) -> None:
    problem = violation(validation, body)

    assert problem is not None
    assert why in problem


@pytest.mark.parametrize("size", [1, 7, 262_144])
def test_body_in_pieces_is_judged_like_the_whole(size: int) -> None:
    cases = {**{name: (*case, "") for name, case in GOOD.items()}, **BAD}
    for name, (validation, body, _) in cases.items():
        if len(body) // size > 5000:
            continue
        check = validator(validation)
        problems = (check.feed(body[at : at + size]) for at in range(0, len(body), size))

        found = next(filter(None, problems), None) or check.close()

        assert (violation(validation, body) is None) == (found is None), name


@given(st.binary(max_size=60), st.sampled_from(Validation))
def test_any_body_is_judged_without_an_exception(body: bytes, validation: Validation) -> None:
    problem = violation(validation, body)

    assert problem is None or problem


INITIATOR, TARGET = True, False
RULES = [
    (Rule("t", SentBy.ANY), TARGET, None, None),
    (Rule("t", SentBy.INITIATOR), INITIATOR, None, None),
    (Rule("t", SentBy.TARGET), TARGET, None, None),
    (Rule("t", SentBy.TARGET), INITIATOR, 8432, 8457),
    (Rule("t", SentBy.INITIATOR), TARGET, 8434, 8437),
    (Rule("t", None), INITIATOR, 8431, 8498),
    (Rule("t", None, is_declared=False), TARGET, 8428, 8428),
]


@pytest.mark.parametrize(("rule", "is_initiator", "here", "there"), RULES)
def test_type_is_refused_with_the_number_of_its_side(
    rule: Rule, *, is_initiator: bool, here: int | None, there: int | None
) -> None:
    to_send = rule.refusal_to_send(is_initiator=is_initiator)
    arrived = rule.refusal_of_arrival(is_from_initiator=is_initiator)

    assert (to_send and to_send.number, arrived and arrived.number) == (here, there)
    assert all("'t'" in refusal.problem for refusal in (to_send, arrived) if refusal)


@pytest.mark.parametrize(("validation", "number"), [("EMPTY", 8430), ("WELL_FORMED_XML", 9616), ("JSON", 8430)])
def test_body_is_refused_with_the_number_of_its_validation(validation: str, number: int) -> None:
    rule = Rule("//shop/Invoice", SentBy.ANY, Validation(validation))

    refusal = refusal_of_body(rule, b"<a")

    assert refusal is not None
    assert (number, True) == (refusal.number, "'//shop/Invoice' failed validation" in refusal.problem)
    assert refusal_of_body(Rule("t", SentBy.ANY), b"<a") is None


@pytest.mark.parametrize("description", ["", "plain", "<&>\"'", "żółw 🐢"])
def test_error_body_is_the_documented_xml(description: str) -> None:
    root = ET.fromstring(error_body(42, description))

    namespace = "{http://schemas.microsoft.com/SQL/ServiceBroker/Error}"
    assert f"{namespace}Error" == root.tag
    assert [(f"{namespace}Code", "42"), (f"{namespace}Description", description or None)] == [
        (child.tag, child.text) for child in root
    ]


@pytest.mark.parametrize(
    ("body", "parts"),
    [
        (error_body(-8490, 'no <service> & "more"'), (-8490, 'no <service> & "more"')),
        (b"<Code> 7 </Code><Description>&#65;&#x42;&apos;&nope;&#0;</Description>", (7, "AB'&nope;\ufffd")),
        (b"<Code>7<Description>one<Description>two</Description></Description>", (None, "one<Description>two")),
        (b"<Description>" * 100_000, (None, "")),  # one pass: a search from each of them would take minutes
        (
            b"<Description>&#" + b"9" * 5000 + b";</Description>",
            (None, f"&#{'9' * 5000};"),
        ),  # no number that Python reads
        (b"<Code>" + b" " * 100_000, (None, "")),
        (b"\xff", (None, "")),
    ],
    ids=range(7),
)
def test_error_body_of_whomever_is_read_in_one_pass(body: bytes, parts: tuple[int | None, str]) -> None:
    assert parts == error_parts(body)


@pytest.mark.parametrize("bad", ["\0", "\x0b", "\x1f", "\ud800", "\ufffe", "\uffff"])
def test_character_that_xml_does_not_have_is_told_as_the_replacement_character(bad: str) -> None:
    root = ET.fromstring(error_body(1, f"a{bad}\t\n{bad}b\U0010ffff"))

    assert "a\ufffd\t\n\ufffdb\U0010ffff" == root[1].text
