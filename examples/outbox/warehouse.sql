CREATE QUEUE WarehouseQueue;
CREATE SERVICE [//books/Warehouse] ON QUEUE WarehouseQueue;
