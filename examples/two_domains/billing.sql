CREATE QUEUE BillingQueue;
CREATE SERVICE [//shop/Billing] ON QUEUE BillingQueue;
