"""
Every way of making each error of the statements about message types, contracts, priorities and databases, as one table.

A row is a script that changes nothing, in a database where `EXISTING` is; what its error points at stands between the
marks « and ».

Source: Service Broker documentation, "CREATE MESSAGE TYPE", "CREATE CONTRACT", "CREATE BROKER PRIORITY", and their kin.
"""

from tests.support.route_errors import Case

END_DIALOG = "http://schemas.microsoft.com/SQL/ServiceBroker/EndDialog"
NOTICE = "http://schemas.microsoft.com/SQL/ServiceBroker/BrokerConfigurationNotice"

EXISTING = """
CREATE MESSAGE TYPE Invoice VALIDATION = WELL_FORMED_XML;
CREATE MESSAGE TYPE Receipt VALIDATION = EMPTY;
CREATE MESSAGE TYPE Unused;
CREATE CONTRACT Invoicing (Invoice SENT BY INITIATOR, Receipt SENT BY TARGET);
CREATE CONTRACT Ranked (Invoice SENT BY ANY, [DEFAULT] SENT BY ANY);
CREATE CONTRACT Free (Invoice SENT BY ANY);
CREATE QUEUE Q;
CREATE SERVICE Billing ON QUEUE Q (Invoicing, Undeclared);
CREATE SERVICE Orders ON QUEUE Q;
CREATE BROKER PRIORITY High FOR CONVERSATION SET (CONTRACT_NAME = Ranked, PRIORITY_LEVEL = 9);
CREATE BROKER PRIORITY Local FOR CONVERSATION SET (LOCAL_SERVICE_NAME = Orders, REMOTE_SERVICE_NAME = 'S');
"""

_FOR = "FOR CONVERSATION"

CASES = [
    # names that are taken
    Case(2714, "CREATE MESSAGE TYPE «Invoice»", is_declared_too=False),
    Case(2714, "CREATE MESSAGE TYPE «[DEFAULT]»"),
    Case(2714, f"CREATE MESSAGE TYPE «[{NOTICE}/MissingRoute]»"),
    Case(2714, "CREATE CONTRACT «Invoicing» (Invoice SENT BY ANY)", is_declared_too=False),
    Case(2714, f"CREATE CONTRACT «[{NOTICE}]» (Invoice SENT BY ANY)"),
    Case(33303, f"CREATE BROKER PRIORITY «High» {_FOR}", is_declared_too=False),
    # two priorities about the same
    Case(33303, f"CREATE BROKER PRIORITY «Other» {_FOR} SET (CONTRACT_NAME = Ranked)"),
    Case(
        33303,
        f"CREATE BROKER PRIORITY «Other» {_FOR} SET (REMOTE_SERVICE_NAME = 'S', LOCAL_SERVICE_NAME = Orders,"
        " CONTRACT_NAME = ANY)",
    ),
    Case(
        33303,
        f"CREATE BROKER PRIORITY A {_FOR};\nALTER BROKER PRIORITY «A» {_FOR} SET (CONTRACT_NAME = Ranked)",
    ),
    # levels
    Case(33302, f"CREATE BROKER PRIORITY A {_FOR} SET (PRIORITY_LEVEL = «11»)"),
    Case(33302, f"ALTER BROKER PRIORITY High {_FOR} SET (CONTRACT_NAME = ANY, PRIORITY_LEVEL = «-1»)"),
    # names that do not fit
    Case(33301, f"CREATE BROKER PRIORITY A {_FOR} SET (REMOTE_SERVICE_NAME = «''»)"),
    Case(33301, f"CREATE BROKER PRIORITY A {_FOR} SET (REMOTE_SERVICE_NAME = «'{'s' * 257}'»)"),
    Case(33301, f"ALTER BROKER PRIORITY High {_FOR} SET (REMOTE_SERVICE_NAME = «N'{'€' * 171}'»)"),
    # names that do not exist
    Case(15151, "ALTER MESSAGE TYPE «invoice» VALIDATION = NONE"),
    Case(15151, "DROP MESSAGE TYPE «[DEFAULT]»"),
    Case(15151, "CREATE CONTRACT C (Invoice SENT BY ANY,\n «invoice» SENT BY TARGET)"),
    Case(15151, "DROP CONTRACT «invoicing»", is_declared_too=False),
    Case(15151, "DROP CONTRACT «[DEFAULT]»"),
    Case(15151, f"ALTER BROKER PRIORITY «high» {_FOR} SET (PRIORITY_LEVEL = 1)"),
    Case(15151, "DROP BROKER PRIORITY «high»", is_declared_too=False),
    Case(15151, f"CREATE BROKER PRIORITY A {_FOR} SET (CONTRACT_NAME = X, LOCAL_SERVICE_NAME = «orders»)"),
    # names in use
    Case(3716, "DROP MESSAGE TYPE «Invoice»"),
    Case(3716, "DROP CONTRACT «Invoicing»"),
    Case(3716, "DROP SERVICE «Orders»"),
    # what no text can mean
    Case(8403, "CREATE CONTRACT C (Invoice SENT BY ANY, «Invoice» SENT BY ANY)"),
    Case(8404, "CREATE SERVICE S ON QUEUE Q (C, «C»)"),
    Case(8492, "CREATE CONTRACT «C» (Invoice SENT BY TARGET)"),
    Case(102, f"CREATE BROKER PRIORITY A {_FOR} SET (CONTRACT_NAME = C, «CONTRACT_NAME» = D)"),
    # databases
    Case(911, "ALTER DATABASE «nowhere» SET ENABLE_BROKER"),
    Case(50000, "ALTER DATABASE CURRENT SET «NEW_BROKER» WITH ROLLBACK IMMEDIATE"),
    Case(50000, "ALTER DATABASE orders SET «DISABLE_BROKER»"),
]
