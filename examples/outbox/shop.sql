CREATE QUEUE ShopQueue;
CREATE SERVICE [//books/Shop] ON QUEUE ShopQueue;
