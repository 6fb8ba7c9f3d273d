"""Who may connect and send: default deny, DENY before GRANT, patterns, and the reason of every ruling."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.security.grants import OPEN, PROFILES_MAX, Grants, Permission, PermissionRule, PermissionState
from broker.security.principal import NOBODY, Who, parse_principal, who_is

ORDERS, BILLING = who_is("CN=orders"), who_is("CN=billing")


def rule(state: str, permission: str, securable: str, principal: str) -> PermissionRule:
    return PermissionRule(Permission(permission), securable, parse_principal(principal), PermissionState(state))


def send(state: str, service: str, principal: str) -> PermissionRule:
    return rule(state, "SEND", service, principal)


@pytest.mark.parametrize("who", [NOBODY, ORDERS])
def test_what_nobody_grants_is_denied_and_the_missing_statement_is_named(who: Who) -> None:
    grants = Grants(is_default_deny=True, endpoint="gw")
    public = "" if who == NOBODY else " or public"

    connect, message = grants.connect(who), grants.send(who, "//a]b")

    assert (False, None) == (connect.is_permitted, connect.rule)
    assert f"no GRANT CONNECT ON ENDPOINT::[gw] TO [{who.name}]{public}" == connect.why
    assert f"no GRANT SEND ON SERVICE::[//a]]b] TO [{who.name}]{public}" == message.why


def test_where_nobody_proves_who_they_are_everything_is_permitted_until_something_is_stated() -> None:
    nothing = Grants()
    some = Grants([send("GRANT", "//a", "public")])

    assert nothing.connect(NOBODY).is_permitted
    assert "no rule says which peers may SEND, so all may" == nothing.send(NOBODY, "//b").why
    assert OPEN is nothing.profile(NOBODY)
    assert some.connect(NOBODY).is_permitted
    assert [True, False] == [some.send(NOBODY, service).is_permitted for service in ("//a", "//b")]


@pytest.mark.parametrize("principal", ["public", "orders", "CN=orders", "o*", "CN=*"])
def test_grant_permits_and_is_named(principal: str) -> None:
    grants = Grants([rule("GRANT", "CONNECT", "*", principal)], is_default_deny=True, endpoint="gw")

    ruling = grants.connect(ORDERS)

    assert ruling.is_permitted
    assert f"GRANT CONNECT ON ENDPOINT::[gw] TO [{principal}]" == ruling.why
    assert (principal == "public") == grants.connect(NOBODY).is_permitted


@pytest.mark.parametrize("denied", ["//a", "//*", "*"])
@pytest.mark.parametrize("granted", ["//a", "//*", "*"])
@pytest.mark.parametrize("to", ["public", "CN=orders", "*"])
def test_deny_wins_however_wide_it_is(denied: str, granted: str, to: str) -> None:
    grants = Grants([send("GRANT", granted, "CN=orders"), send("DENY", denied, to)], is_default_deny=True)

    ruling = grants.send(ORDERS, "//a")

    assert (False, f"DENY SEND ON SERVICE::[{denied}] TO [{to}]") == (ruling.is_permitted, ruling.why)


def test_those_about_whom_the_same_rules_are_share_a_profile() -> None:
    grants = Grants([send("GRANT", "//a", "CN=*"), send("GRANT", "//b", "CN=billing")])

    assert grants.profile(ORDERS) is grants.profile(who_is("CN=other"))
    assert grants.profile(ORDERS) is not grants.profile(BILLING)
    assert OPEN is not grants.profile(NOBODY)


def test_profiles_that_are_remembered_are_bounded() -> None:
    grants = Grants([send("GRANT", f"//{n}", f"CN=c{n}") for n in range(PROFILES_MAX + 10)])

    for n in range(PROFILES_MAX + 10):
        profile = grants.profile(who_is(f"CN=c{n}"))
        assert profile.permits(f"//{n}")

    assert len(grants._profiles) <= PROFILES_MAX


def test_whoever_is_granted_anything_is_told() -> None:
    grants = Grants([send("GRANT", "//a", "public"), rule("DENY", "CONNECT", "*", "public")])

    assert [True, False] == [grants.has_granted(one) for one in (Permission.SEND, Permission.CONNECT)]


rules = st.builds(
    send,
    st.sampled_from(["GRANT", "DENY"]),
    st.sampled_from(["a", "b", "ab", "*", "a*", "*b"]),
    st.sampled_from(["public", "x", "y", "*", "CN=x"]),
)


@given(
    rules=st.lists(rules),
    service=st.sampled_from(["a", "b", "ab"]),
    name=st.sampled_from(["CN=x", "CN=y", "public"]),
    is_default_deny=st.booleans(),
)
def test_profile_agrees_with_the_slow_and_obvious_rule(
    *, rules: list[PermissionRule], service: str, name: str, is_default_deny: bool
) -> None:
    who = who_is(name)
    about = [one for one in rules if one.principal.covers(who) and one.is_about(service)]
    is_granted = any(one.state is PermissionState.GRANT for one in about) and all(
        one.state is PermissionState.GRANT for one in about
    )
    expected = is_granted or (not rules and not is_default_deny)
    grants = Grants(rules, is_default_deny=is_default_deny)

    assert expected == grants.profile(who).permits(service) == grants.send(who, service).is_permitted


def test_grants_of_the_same_rules_are_equal() -> None:
    rules = [send("GRANT", "//a", "public"), send("DENY", "//b", "public")]

    assert Grants(rules) == Grants(rules[::-1])
    assert hash(Grants(rules)) == hash(Grants(rules[::-1]))
    assert Grants(rules) != Grants(rules, is_default_deny=True)
    assert Grants(rules) != rules
