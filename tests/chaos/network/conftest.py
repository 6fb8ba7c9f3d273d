"""Two hosts on a network of namespaces, one for all tests of a file."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from tests.chaos.network.impairment import NetworkError
from tests.chaos.network.namespaces import NamespaceNetwork


@pytest.fixture(scope="module")
def network(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NamespaceNetwork]:
    """With "near" and "far"; skipped where namespaces cannot be made, unless BROKER_TEST_COMPLETE says no."""
    try:
        made = NamespaceNetwork(tmp_path_factory.mktemp("network"), seed=7)
    except NetworkError as error:
        if os.environ.get("BROKER_TEST_COMPLETE"):
            raise
        pytest.skip(str(error))
    with made:
        made.host("near")
        made.host("far")
        yield made


@pytest.fixture
def net(network: NamespaceNetwork) -> Iterator[NamespaceNetwork]:
    """The same, whole again after each test."""
    yield network
    network.mend_all()
