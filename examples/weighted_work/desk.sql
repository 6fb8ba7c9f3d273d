CREATE QUEUE DeskQueue;
CREATE SERVICE [//jobs/Desk] ON QUEUE DeskQueue;

-- The same service in two databases. Each new dialog picks one, by weight, and stays with it.
CREATE ROUTE Small WITH SERVICE_NAME = '//jobs/Count', BROKER_INSTANCE = '3f1d0a52-6c0e-4a7b-9a35-0c9d4e8b1a01',
    ADDRESS = 'tcp://127.0.0.1:4223', WEIGHT = 1;
CREATE ROUTE Large WITH SERVICE_NAME = '//jobs/Count', BROKER_INSTANCE = '3f1d0a52-6c0e-4a7b-9a35-0c9d4e8b1a02',
    ADDRESS = 'tcp://127.0.0.1:4225', WEIGHT = 3;
