-- What the gateways forward; an overlay replaces this file.

-- Only what is named here passes.
DROP ROUTE [AutoCreatedLocal];

CREATE ROUTE [Orders] WITH
    SERVICE_NAME = N'//shop/Orders',
    BROKER_INSTANCE = N'5b0f3c1e-5d5e-4f0b-8a55-0e9b0b9c2f11',
    ADDRESS = N'tcp://broker-endpoint-0.broker-endpoint:4022';
GO
