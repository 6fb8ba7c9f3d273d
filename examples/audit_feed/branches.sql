CREATE QUEUE BranchesQueue;
CREATE SERVICE [//bank/Branch] ON QUEUE BranchesQueue;
CREATE ROUTE Audit WITH SERVICE_NAME = '//bank/Audit', ADDRESS = 'tcp://127.0.0.1:4233';
