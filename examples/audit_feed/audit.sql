CREATE QUEUE AuditQueue;
CREATE SERVICE [//bank/Audit] ON QUEUE AuditQueue;
CREATE ROUTE Branches WITH SERVICE_NAME = '//bank/Branch', ADDRESS = 'tcp://127.0.0.1:4231';
