"""Every kind of principal, whom it covers and whom not; what is no principal; and values that pretend to be more."""

import pytest
from cryptography import x509
from cryptography.x509.oid import NameOID
from hypothesis import given
from hypothesis import strategies as st

from broker.security.principal import (
    NOBODY,
    PRINCIPAL_MAX,
    PrincipalError,
    PrincipalKind,
    Who,
    covers_text,
    parse_principal,
    spelled,
    who_is,
)

PRINT = "0a" * 32
ORDERS = Who("CN=orders,OU=a,O=shop", "orders", ("spiffe://shop/orders", "spiffe://shop/old"), PRINT)


@pytest.mark.parametrize(
    ("text", "kind", "stored"),
    [
        ("public", PrincipalKind.PUBLIC, "public"),
        ("PUBLIC", PrincipalKind.PUBLIC, "public"),
        ("orders", PrincipalKind.COMMON_NAME, "orders"),
        (" or*ers ", PrincipalKind.COMMON_NAME, "or*ers"),
        ("cn = orders , O=shop", PrincipalKind.SUBJECT, "CN=orders,O=shop"),
        (r"CN=a\2cb,2.5.4.99=x+O=\ y\ ", PrincipalKind.SUBJECT, r"CN=a\,b,2.5.4.99=x+O=\ y\ "),
        ("2.5.4.3=x,s=y", PrincipalKind.SUBJECT, "CN=x,ST=y"),
        ("emailAddress=a@b,CN=x", PrincipalKind.SUBJECT, "1.2.840.113549.1.9.1=a@b,CN=x"),
        (r"CN=\2a*,*", PrincipalKind.SUBJECT, r"CN=\2a*,*"),
        ("URI=a:b,O=c", PrincipalKind.SUBJECT, "URI=a:b,O=c"),
        ("spiffe://shop/a=b", PrincipalKind.URI, "spiffe://shop/a=b"),
        ("SHA256:" + PRINT.upper(), PrincipalKind.FINGERPRINT, "sha256:" + PRINT),
    ],
)
def test_principal_has_one_kind_and_one_spelling(text: str, kind: PrincipalKind, stored: str) -> None:
    principal = parse_principal(text)

    assert (kind, stored) == (principal.kind, principal.text)
    assert principal == parse_principal(principal.text)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "1 to 1024"),
        (" ", "1 to 1024"),
        ("x" * (PRINCIPAL_MAX + 1), "1 to 1024"),
        ("sha256:0a", "is not a fingerprint"),
        ("sha256:" + "*" * 64, "is not a fingerprint"),
        ("CN=a,b", "is not a subject"),
        ("=a", "is not a subject"),
        ("CN=a+,O=b", "is not a subject"),
        (r"CN=\ff", "not UTF-8"),
        ("CN=a\\", "in the middle of an escape"),
    ],
)
def test_what_is_none_is_refused_with_what_would_be_one(text: str, problem: str) -> None:
    with pytest.raises(PrincipalError, match=problem):
        parse_principal(text)


@pytest.mark.parametrize(
    ("text", "is_covered"),
    [
        ("public", True),
        ("orders", True),
        ("Orders", False),
        ("order", False),
        ("o*s", True),
        ("*", True),
        ("o*x*s", False),
        ("CN=orders,OU=a,O=shop", True),
        ("CN=orders", False),
        ("CN=orders,*", True),
        ("*,O=shop", True),
        ("*,OU=b,O=shop", False),
        ("CN=*,OU=*,O=shop", True),
        ("CN=*,O=shop", False),
        ("CN=*,*,O=shop", True),
        ("CN=orders,OU=a,O=shop,*", True),
        ("O=shop,OU=a,CN=orders", False),
        ("CN=o*r*s,OU=a,O=shop", True),
        ("CN=o*e*e*s,OU=a,O=shop", False),
        ("CN=orders+OU=a,O=shop", False),
        ("spiffe://shop/orders", True),
        ("spiffe://shop/old", True),
        ("spiffe://shop/*", True),
        ("spiffe://*/orders", True),
        ("spiffe://shop", False),
        ("sha256:" + PRINT, True),
        ("sha256:" + "0b" * 32, False),
    ],
)
def test_principal_covers_who_it_names_and_nobody_else(text: str, *, is_covered: bool) -> None:
    assert is_covered == parse_principal(text).covers(ORDERS)


@pytest.mark.parametrize(
    ("subject", "pattern"),
    [
        (r"CN=evil\,O=shop", "CN=*,O=shop"),
        (r"CN=orders\,O=shop", "CN=orders,O=shop"),
        (r"CN=evil\+O=shop", "CN=*+O=shop"),
        (r"CN=\2a", "CN=orders"),
        (r"CN=orders\\,O=other", r"CN=orders\,O=other"),
    ],
)
def test_value_does_not_pretend_to_be_several(subject: str, pattern: str) -> None:
    assert not parse_principal(pattern).covers(Who(subject))


@pytest.mark.parametrize("name", ["sha256:" + PRINT, "spiffe://shop/orders", "CN=orders"])
def test_common_name_that_looks_like_another_kind_is_covered_by_none_of_them(name: str) -> None:
    who = Who(spelled(f"CN={name.replace('=', chr(92) + '3d')}"), name)

    assert not parse_principal(name).covers(who)


@pytest.mark.parametrize(
    ("name", "oid"),
    [
        ("CN", NameOID.COMMON_NAME),
        ("emailAddress", NameOID.EMAIL_ADDRESS),
        ("serialNumber", NameOID.SERIAL_NUMBER),
        ("GN", NameOID.GIVEN_NAME),
        ("SN", NameOID.SURNAME),
        ("title", NameOID.TITLE),
        ("DC", NameOID.DOMAIN_COMPONENT),
        ("UID", NameOID.USER_ID),
        ("organizationIdentifier", NameOID.ORGANIZATION_IDENTIFIER),
    ],
)
def test_every_type_that_certificates_have_is_covered_by_its_name_and_by_its_number(
    name: str, oid: x509.ObjectIdentifier
) -> None:
    subject = x509.Name([x509.NameAttribute(oid, "one")]).rfc4514_string()

    for text in (f"{name}=one", f"{oid.dotted_string}=one", f"{name}=o*,*"):
        assert parse_principal(text).covers(Who(subject)), text


ODD_URIS = ["public", "Public", " public", "billing", "*:*", "a:*", "CN=billing", " a:b", "sha256:" + "0" * 64]


@pytest.mark.parametrize(
    ("who", "name"),
    [
        (NOBODY, "public"),
        (ORDERS, "CN=orders,OU=a,O=shop"),
        (Who("CN=a*b"), r"CN=a\2ab"),
        (Who("", "", ("spiffe://a",), PRINT), "spiffe://a"),
        (Who("", "", (), PRINT), "sha256:" + PRINT),
        *((Who("", "", (uri,), PRINT), "sha256:" + PRINT) for uri in ODD_URIS),
        (Who("", "", ("public", "spiffe://a"), PRINT), "spiffe://a"),
        (Who("CN=" + "x" * PRINCIPAL_MAX, "x", (), PRINT), "sha256:" + PRINT),
    ],
)
def test_somebody_is_named_by_a_principal_that_covers_just_them(who: Who, name: str) -> None:
    assert name == who.name
    assert parse_principal(name).covers(who)


@pytest.mark.parametrize(
    ("text", "who"),
    [
        ("public", NOBODY),
        ("orders", Who("CN=orders", "orders")),
        ("a,b", Who(r"CN=a\,b", "a,b")),
        ("O=shop,CN=orders", Who("O=shop,CN=orders", "orders")),
        ("O=shop", Who("O=shop")),
        ("spiffe://a", Who(uris=("spiffe://a",))),
        ("sha256:" + PRINT, Who(fingerprint=PRINT)),
    ],
)
def test_one_may_ask_about_somebody_who_is_not_there(text: str, who: Who) -> None:
    assert who == who_is(text)
    assert parse_principal(text).covers(who_is(text))


@pytest.mark.parametrize("text", ["*", "CN=*", "spiffe://*"])
def test_one_may_not_ask_about_several(text: str) -> None:
    with pytest.raises(PrincipalError, match="more than one"):
        who_is(text)


@given(st.text("ab*", max_size=8), st.text("ab", max_size=8))
def test_pattern_agrees_with_the_slow_and_obvious_rule(pattern: str, text: str) -> None:
    def slow(pattern: str, text: str) -> bool:
        if not pattern:
            return not text
        if pattern[0] == "*":
            return any(slow(pattern[1:], text[n:]) for n in range(len(text) + 1))
        return text[:1] == pattern[0] and slow(pattern[1:], text[1:])

    assert slow(pattern, text) == covers_text(pattern, text)


@given(
    st.lists(st.sampled_from(["CN=a", "CN=b", "*"]), min_size=1, max_size=6),
    st.lists(st.sampled_from("ab"), min_size=1),
)
def test_pattern_of_parts_agrees_with_the_slow_and_obvious_rule(pattern: list[str], names: list[str]) -> None:
    def slow(pattern: list[str], parts: list[str]) -> bool:
        if not pattern:
            return not parts
        if pattern[0] == "*":
            return any(slow(pattern[1:], parts[n:]) for n in range(len(parts) + 1))
        return parts[:1] == pattern[:1] and slow(pattern[1:], parts[1:])

    parts = [f"CN={name}" for name in names]
    text = ",".join(pattern)

    assert (
        text == "*"
        or text == ",".join(["*"] * len(pattern))
        or slow(pattern, parts) == parse_principal(text).covers(Who(",".join(parts), names[0]))
    )


def test_parts_of_one_level_may_stand_in_any_order() -> None:
    assert parse_principal("OU=a+CN=b").covers(Who("CN=b+OU=a"))
    assert not parse_principal("OU=a+CN=b").covers(Who("CN=b+OU=c"))
