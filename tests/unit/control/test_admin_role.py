from __future__ import annotations

import pytest

from broker.config.values import ROLE_WORDS, AdminRole, HolderError, HolderKind, parse_holder, role_of
from broker.security.principal import NOBODY, Who


@pytest.mark.parametrize("role", AdminRole)
def test_a_role_is_the_one_of_its_word(role: AdminRole) -> None:
    assert role is role_of(role.word)


def test_roles_come_one_above_the_other() -> None:
    assert ("none", "viewer", "operator", "admin") == ROLE_WORDS
    assert sorted(AdminRole) == list(AdminRole)


@pytest.mark.parametrize(
    ("text", "kind", "name"),
    [
        ("user:alice", HolderKind.USER, "alice"),
        ("user:1000", HolderKind.USER, "1000"),
        ("group:ops", HolderKind.GROUP, "ops"),
        ("token:ci-1", HolderKind.TOKEN, "ci-1"),
        ("certificate:CN=ops,O=shop", HolderKind.CERTIFICATE, "CN=ops,O=shop"),
        ("certificate:spiffe://shop/ops", HolderKind.CERTIFICATE, "spiffe://shop/ops"),
    ],
)
def test_a_holder_is_a_kind_and_a_name(text: str, kind: HolderKind, name: str) -> None:
    holder = parse_holder(text)

    assert (kind, name) == (holder.kind, holder.name)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("alice", "names nobody"),
        ("user:", "names nobody"),
        ("role:alice", "names nobody"),
        (":alice", "names nobody"),
        ("token:a b", "no name of a token"),
        ("token:../x", "no name of a token"),
        ("certificate:CN=a,b", "no subject"),
        ("certificate:sha256:12", "no fingerprint"),
        ("certificate:public", "for everybody"),
    ],
)
def test_anything_else_is_refused_with_what_would_do(text: str, problem: str) -> None:
    with pytest.raises(HolderError, match=problem):
        parse_holder(text)


def test_a_certificate_is_known_by_what_it_proves() -> None:
    holder = parse_holder("certificate:CN=ops")

    assert holder.shows(Who(subject="CN=ops", common_name="ops"))
    assert not holder.shows(Who(subject="CN=other", common_name="other"))
    assert not holder.shows(NOBODY)


def test_nobody_else_is_known_by_a_certificate() -> None:
    assert not parse_holder("user:ops").shows(Who(subject="CN=ops", common_name="ops"))
