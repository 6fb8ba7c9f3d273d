-- Routes of a gateway: where it forwards what arrives from outside (msdb.sys.routes).
-- A route script of Service Broker runs unchanged.

-- Two instances share the billing service. A conversation picks one of them when it begins and stays with it; the
-- choice depends on the conversation only, so every gateway with these routes makes the same one.
CREATE ROUTE [Billing1] WITH
    SERVICE_NAME = N'//shop/Billing',
    BROKER_INSTANCE = N'0d6a4cf5-9a0b-4d0e-8d8c-3c1c7f1f5a01',
    ADDRESS = N'tcp://billing-1.example:4022';

CREATE ROUTE [Billing2] WITH
    SERVICE_NAME = N'//shop/Billing',
    BROKER_INSTANCE = N'0d6a4cf5-9a0b-4d0e-8d8c-3c1c7f1f5a02',
    ADDRESS = N'tcp://billing-2.example:4022';

-- The way back: answers and acknowledgements need a route as much as the messages do.
CREATE ROUTE [Orders] WITH
    SERVICE_NAME = N'//shop/Orders',
    BROKER_INSTANCE = N'5b0f3c1e-5d5e-4f0b-8a55-0e9b0b9c2f11',
    ADDRESS = N'tcp://orders-1.example:4022';
GO
