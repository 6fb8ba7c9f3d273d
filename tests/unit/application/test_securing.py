"""How a dialog that begins is secured: the table of the original, with our default of ENCRYPTION."""

from __future__ import annotations

import pytest

from broker.security.seal import Mode
from broker.security.session import Secured
from broker.store.sqlite.side import load_secured, note_own_certificate
from tests.support.shop import Shop

FULL = Secured(Mode.FULL, "billing")


def begun(shop: Shop, *, encryption: bool | None, binding: str = "", certificate: str | None = None) -> Secured | None:
    """How a dialog to //far/Billing is secured."""
    db = shop.connect(isolation_level=None)
    note_own_certificate(db, certificate)
    if binding:
        db.execute(
            "INSERT INTO broker_remote_service_binding (name, remote_service_name, remote_principal, is_anonymous_on)"
            " VALUES ('B', '//far/Billing', 'billing', ?)",
            (binding == "anonymous",),
        )
    dialog = shop.begin(db, encryption=encryption)
    return load_secured(db, dialog.conversation_id.bytes, is_initiator=True)


@pytest.mark.parametrize("encryption", [True, False, None])
@pytest.mark.parametrize("certificate", ["CN=shop", None])
def test_a_binding_forces_security(shop: Shop, encryption: bool | None, certificate: str | None) -> None:  # noqa: FBT001
    """Without a certificate of its own the dialog fails when it leaves; the daemon may get one before."""
    assert FULL == begun(shop, encryption=encryption, binding="full", certificate=certificate)


@pytest.mark.parametrize("encryption", [True, False, None])
def test_an_anonymous_binding_gives_each_dialog_a_secret(shop: Shop, encryption: bool | None) -> None:  # noqa: FBT001
    one = begun(shop, encryption=encryption, binding="anonymous")
    other = begun(shop, encryption=encryption)

    assert one is not None
    assert other is not None
    assert (Mode.ANONYMOUS, "billing", 32) == (one.mode, one.far_principal, len(one.secret))
    assert one.secret != other.secret


@pytest.mark.parametrize(
    ("encryption", "certificate", "secured"),
    [
        (True, None, Secured(None)),
        (True, "CN=shop", Secured(None)),
        (False, None, None),
        (False, "CN=shop", None),
        (None, None, None),
        (None, "CN=shop", Secured(None)),
    ],
)
def test_without_a_binding_encryption_decides_and_a_certificate_turns_it_on(
    shop: Shop,
    encryption: bool | None,  # noqa: FBT001
    certificate: str | None,
    secured: Secured | None,
) -> None:
    assert secured == begun(shop, encryption=encryption, certificate=certificate)


def test_a_binding_for_another_service_is_none(shop: Shop) -> None:
    db = shop.connect(isolation_level=None)
    db.execute(
        "INSERT INTO broker_remote_service_binding (name, remote_service_name, remote_principal)"
        " VALUES ('B', '//far/billing', 'billing')"
    )

    dialog = shop.begin(db)

    assert load_secured(db, dialog.conversation_id.bytes, is_initiator=True) is None


def test_nothing_is_noted_of_a_dialog_that_was_rolled_back(shop: Shop) -> None:
    db = shop.connect()
    shop.begin(db, encryption=True)

    db.rollback()

    assert [] == db.execute("SELECT * FROM broker_session_key").fetchall()
