"""The package as applications import it."""

import broker
import broker.errors


def test_every_name_of_the_package_is_there() -> None:
    assert [] == [name for name in broker.__all__ if getattr(broker, name, None) is None]
    assert set(broker.__all__) <= set(dir(broker))
    assert broker.errors.BrokerError is broker.BrokerError
    assert not hasattr(broker, "nothing")
