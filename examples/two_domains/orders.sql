CREATE QUEUE OrdersQueue;
CREATE SERVICE [//shop/Orders] ON QUEUE OrdersQueue;
