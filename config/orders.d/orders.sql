-- What the orders database has: a queue, the service that reads it, and the way to the service it talks to.

CREATE QUEUE [OrdersQueue];

-- It names no contract, so others may begin conversations with it under any. Orders only begins its own.
CREATE SERVICE [//shop/Orders] ON QUEUE [OrdersQueue];

-- No BROKER_INSTANCE: any instance of the service will do, and the gateway knows them.
CREATE ROUTE [Billing] WITH
    SERVICE_NAME = N'//shop/Billing',
    ADDRESS = N'tcp://gateway-a.example:4022';
GO

-- What may come in. msdb is born with AutoCreatedLocal, which would let everybody begin conversations with every service
-- here. Answers need no route: they name this database.
USE msdb;
DROP ROUTE [AutoCreatedLocal];
GO
