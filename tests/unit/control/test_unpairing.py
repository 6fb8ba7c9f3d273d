"""Taking a pairing back: what goes, and what stays because somebody else needs it."""

from __future__ import annotations

from pathlib import Path

import pytest

from broker.control.pairing import Side, installation, names_for, own_offer
from broker.control.unpairing import removal
from broker.errors import PairingError, SettingError
from broker.security.pairing import Partner, partner_of
from tests.support.paired import side_of

FAR = "//shop/billing"
ROUTE = names_for(FAR).route
PRESENT = {("route", ROUTE), ("binding", ROUTE)}


@pytest.fixture
def orders(tmp_path: Path) -> Side:
    return side_of(tmp_path / "orders")


@pytest.fixture
def billing(tmp_path: Path) -> Partner:
    return partner_of(own_offer(side_of(tmp_path / "billing")))


@pytest.fixture
def files(orders: Side, billing: Partner) -> list[Path]:
    """Those of a pairing, in their places."""
    change = installation(orders, billing)
    for path, content in (change.certificates | change.scripts).items():
        path.write_bytes(content.data)
    return [*change.certificates, *change.scripts]


def test_everything_that_pairing_made_goes(orders: Side, files: list[Path]) -> None:
    found = removal(orders.settings, "orders", FAR, present=PRESENT)

    assert files == list(found.files)
    assert [
        "USE [msdb];",
        "REVOKE SEND ON SERVICE::[//shop/orders] FROM [CN=billing];",
        "REVOKE CONNECT ON ENDPOINT::[*] FROM [CN=billing];",
        "USE [orders];",
        "REVOKE SEND ON SERVICE::[//shop/orders] FROM [CN=billing];",
        f"DROP REMOTE SERVICE BINDING [{ROUTE}];",
        f"DROP ROUTE [{ROUTE}];",
    ] == found.script.splitlines()


@pytest.mark.usefixtures("files")
def test_what_is_gone_already_is_not_dropped_again(orders: Side) -> None:
    found = removal(orders.settings, "orders", FAR, present=())

    assert "DROP" not in found.script


def test_permission_that_another_script_gives_stays(orders: Side, files: list[Path]) -> None:
    other = files[2].with_name("other.sql")
    other.write_text("GRANT CONNECT ON ENDPOINT::[*] TO [CN=audit], [CN=billing];", encoding="utf-8")
    other.with_name("broken.sql").write_bytes(b"\xff GRANT SEND")

    found = removal(orders.settings, "orders", FAR, present=PRESENT)

    assert "CONNECT" not in found.script
    assert 2 == found.script.count("REVOKE SEND")


def test_file_that_is_gone_is_not_missed(orders: Side, files: list[Path]) -> None:
    files[0].unlink()
    files[3].unlink()

    found = removal(orders.settings, "orders", FAR, present=PRESENT)

    assert files[1:3] == list(found.files)
    assert "USE [orders]" not in found.script


def test_who_is_not_paired_is_told(orders: Side) -> None:
    with pytest.raises(PairingError, match="orders is not paired with //shop/nobody: there is no"):
        removal(orders.settings, "orders", "//shop/nobody", present=())


def test_who_is_not_paired_is_told_also_where_no_setting_has_room_for_a_file(tmp_path: Path) -> None:
    one = side_of(tmp_path / "orders", endpoint={"trust": ["tls/orders.pem"]}).settings
    none = one.with_values(
        {
            "routes": one.routes.with_values({"files": ()}),
            "databases": {"orders": one.databases["orders"].with_values({"peers": (), "scripts": ()})},
        }
    )

    with pytest.raises(
        PairingError, match=r"orders is not paired with //shop/nobody: there is no .*scripts\.d/zz-pair-"
    ):
        removal(one, "orders", "//shop/nobody", present=())
    with pytest.raises(PairingError, match="there is no setting that has room for the files of a pairing"):
        removal(none, "orders", "//shop/nobody", present=())


@pytest.mark.usefixtures("files")
def test_pairing_whose_setting_has_no_room_any_more_stays(orders: Side) -> None:
    endpoint = orders.settings.endpoint.with_values({"trust": ("/etc/tls/orders.pem",)})

    with pytest.raises(SettingError, match=r"endpoint\.trust"):
        removal(orders.settings.with_values({"endpoint": endpoint}), "orders", FAR, present=PRESENT)
