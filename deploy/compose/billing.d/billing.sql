-- What the billing database has, and its two ways back to orders: one gateway may be gone.
CREATE QUEUE [BillingQueue];
CREATE SERVICE [//shop/Billing] ON QUEUE [BillingQueue];

CREATE ROUTE [OrdersOverA] WITH
    SERVICE_NAME = N'//shop/Orders',
    BROKER_INSTANCE = N'5b0f3c1e-5d5e-4f0b-8a55-0e9b0b9c2f11',
    ADDRESS = N'tcp://gateway-a:4022';

CREATE ROUTE [OrdersOverB] WITH
    SERVICE_NAME = N'//shop/Orders',
    BROKER_INSTANCE = N'5b0f3c1e-5d5e-4f0b-8a55-0e9b0b9c2f11',
    ADDRESS = N'tcp://gateway-b:4022';
GO

-- What others may begin with, and nothing else.
USE msdb;
DROP ROUTE [AutoCreatedLocal];
CREATE ROUTE [BillingHere] WITH SERVICE_NAME = N'//shop/Billing', ADDRESS = N'LOCAL';
GO
