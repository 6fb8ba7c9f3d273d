"""A remote service binding is a value."""

from broker.security.grants import RemoteServiceBinding


def test_binding_is_not_anonymous_unless_it_says_so() -> None:
    binding = RemoteServiceBinding("b", "//shop/Billing", "CN=billing")

    assert not binding.is_anonymous_on
    assert binding == RemoteServiceBinding("b", "//shop/Billing", "CN=billing", is_anonymous_on=False)
