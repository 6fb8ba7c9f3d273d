"""A Service-Broker-style message router and forwarder: durable dialogs over stateless gateways."""
