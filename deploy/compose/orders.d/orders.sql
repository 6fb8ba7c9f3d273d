-- What the orders database has, and its two ways to billing: one gateway may be gone.
CREATE QUEUE [OrdersQueue];
CREATE SERVICE [//shop/Orders] ON QUEUE [OrdersQueue];

CREATE ROUTE [BillingOverA] WITH
    SERVICE_NAME = N'//shop/Billing',
    BROKER_INSTANCE = N'0d6a4cf5-9a0b-4d0e-8d8c-3c1c7f1f5a01',
    ADDRESS = N'tcp://gateway-a:4022';

CREATE ROUTE [BillingOverB] WITH
    SERVICE_NAME = N'//shop/Billing',
    BROKER_INSTANCE = N'0d6a4cf5-9a0b-4d0e-8d8c-3c1c7f1f5a01',
    ADDRESS = N'tcp://gateway-b:4022';
GO

-- Nobody begins a conversation with Orders from outside. Answers need no route here: they name this database.
USE msdb;
DROP ROUTE [AutoCreatedLocal];
GO
