-- What the orders database has; an overlay replaces this file.
CREATE QUEUE [OrdersQueue];
CREATE SERVICE [//shop/Orders] ON QUEUE [OrdersQueue];

CREATE ROUTE [Billing] WITH SERVICE_NAME = N'//shop/Billing', ADDRESS = N'tcp://broker-gateway:4022';
GO

-- Nobody begins a conversation with Orders from outside. Answers need no route here: they name this database.
USE msdb;
DROP ROUTE [AutoCreatedLocal];
GO
