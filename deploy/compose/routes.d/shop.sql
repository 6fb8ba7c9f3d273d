-- What the gateways of deploy/compose.yaml forward: both have the same, so that either may go.

-- Only what is named here passes.
DROP ROUTE [AutoCreatedLocal];

CREATE ROUTE [Billing] WITH
    SERVICE_NAME = N'//shop/Billing',
    BROKER_INSTANCE = N'0d6a4cf5-9a0b-4d0e-8d8c-3c1c7f1f5a01',
    ADDRESS = N'tcp://billing:4022';

-- The way back: answers and acknowledgements need a route as much as the messages do.
CREATE ROUTE [Orders] WITH
    SERVICE_NAME = N'//shop/Orders',
    BROKER_INSTANCE = N'5b0f3c1e-5d5e-4f0b-8a55-0e9b0b9c2f11',
    ADDRESS = N'tcp://orders:4022';
GO
