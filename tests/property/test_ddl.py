"""Statements survive their text, and routes have one of three shapes."""

from hypothesis import given
from hypothesis import strategies as st

from broker.ddl import statements as ddl
from broker.ddl.parser import parse_script
from broker.ddl.render import render_statement
from broker.ddl.statements import ANY, ContractType, DatabaseOption, PriorityProperties, QueueName, Statement
from broker.routing.address import TRANSPORT, NetworkAddress
from broker.routing.route import BROKER_CONFIGURATION, PropertyError, RouteProperties, create_route
from broker.security.grants import Permission
from broker.security.principal import PrincipalError, parse_principal

NASTY = [
    *("'", "''", "]", "]]", '"', "--", "/*", "*/", ";", "\n", "\r\n", "GO", "\nGO\n", "N'"),
    *("\u017f", "ж", "\ufeff", " "),
]

texts = st.lists(st.one_of(st.sampled_from(NASTY), st.text(max_size=5)), max_size=6).map("".join)
names = texts.filter(lambda name: 1 <= len(name) <= 128)
numbers = st.integers(-(10**25), 10**25)
queues = st.builds(QueueName, names, st.none() | names)
contracts = st.lists(names, max_size=3).map(tuple)
some_text, some_number = st.none() | texts, st.none() | numbers
properties = st.builds(RouteProperties, some_text, some_text, some_number, some_text, some_text, some_number)
validations = st.sampled_from(["NONE", "EMPTY", "WELL_FORMED_XML", "JSON"])
contract_types = st.lists(
    st.builds(ContractType, names, st.sampled_from(["INITIATOR", "TARGET", "ANY"])),
    min_size=1,
    max_size=4,
    unique_by=lambda one: one.message_type,
).filter(lambda listed: any(one.sent_by != "TARGET" for one in listed))
criteria = st.none() | st.just(ANY) | names
priority_properties = st.builds(
    PriorityProperties, criteria, criteria, st.none() | st.just(ANY) | texts, st.none() | numbers
)


def is_principal(text: str) -> bool:
    try:
        parse_principal(text)
    except PrincipalError:
        return False
    return True


principals = st.one_of(
    names.filter(is_principal), st.sampled_from(["public", "CN=a]b,*", "spiffe://a/*", "sha256:" + "0A" * 32])
)
grantees = st.lists(principals, min_size=1, max_size=3, unique_by=lambda text: parse_principal(text).text).map(tuple)
permissions = st.sampled_from(Permission)
far_services = texts.filter(lambda text: 1 <= len(text.encode("utf-8", "replace")) <= 512)
statements: st.SearchStrategy[Statement] = st.one_of(
    st.builds(ddl.UseDatabase, names),
    st.builds(ddl.CreateRoute, names, properties.filter(lambda p: p.address is not None), st.none() | names),
    st.builds(ddl.AlterRoute, names, properties.filter(lambda p: p != RouteProperties())),
    st.builds(ddl.DropRoute, names),
    st.builds(ddl.CreateQueue, queues, status=st.none() | st.booleans(), poison_message_handling=st.booleans()),
    st.builds(
        ddl.AlterQueue, queues, status=st.none() | st.booleans(), poison_message_handling=st.none() | st.booleans()
    ).filter(lambda alter: (alter.status, alter.poison_message_handling) != (None, None)),
    st.builds(ddl.DropQueue, queues),
    st.builds(
        ddl.CreateService, names, queues, contracts.filter(lambda some: len(set(some)) == len(some)), st.none() | names
    ),
    st.builds(ddl.AlterService, names, queues, contracts, contracts),
    st.builds(ddl.AlterService, names, st.none(), contracts.filter(bool), contracts),
    st.builds(ddl.DropService, names),
    st.builds(ddl.EndConversation, st.uuids(), cleanup=st.booleans()),
    st.builds(ddl.EndConversation, st.uuids(), error_code=numbers, description=texts),
    st.builds(ddl.MoveConversation, st.uuids(), st.uuids()),
    st.builds(ddl.BeginConversationTimer, st.uuids(), numbers),
    st.builds(ddl.CreateMessageType, names, validations, st.none() | names),
    st.builds(ddl.AlterMessageType, names, validations),
    st.builds(ddl.DropMessageType, names),
    st.builds(ddl.CreateContract, names, contract_types.map(tuple), st.none() | names),
    st.builds(ddl.DropContract, names),
    st.builds(ddl.CreatePriority, names, priority_properties),
    st.builds(ddl.AlterPriority, names, priority_properties.filter(lambda given: given != PriorityProperties())),
    st.builds(ddl.DropPriority, names),
    st.builds(ddl.AlterDatabase, st.none() | names, st.sampled_from(DatabaseOption)),
    st.builds(ddl.GrantPermission, permissions, names, grantees),
    st.builds(ddl.DenyPermission, permissions, names, grantees),
    st.builds(ddl.RevokePermission, permissions, names, grantees),
    st.builds(
        ddl.CreateRemoteServiceBinding,
        names,
        far_services,
        principals,
        anonymous=st.booleans(),
        owner=st.none() | names,
    ),
    st.builds(
        ddl.AlterRemoteServiceBinding, names, user=st.none() | principals, anonymous=st.none() | st.booleans()
    ).filter(lambda alter: (alter.user, alter.anonymous) != (None, None)),
    st.builds(ddl.DropRemoteServiceBinding, names),
)


@given(st.lists(statements, max_size=4), st.sampled_from(["", " ", "\n", "\nGO\n", ";", "-- '\n", "/* [ /* */ ' */"]))
def test_rendered_statements_read_back(script: list[Statement], between: str) -> None:
    text = between.join(map(render_statement, script))

    assert script == parse_script(text)


# --- the rules of a route ---

guids = st.sampled_from(["5b0f3c1e-5d5e-4f0b-8a55-0e9b0b9c2f11", "{5B0F3C1E-5D5E-4F0B-8A55-0E9B0B9C2F11}", "x", ""])
addresses = st.sampled_from(
    ["tcp://a", "TCP://A:4022/", "tcp://b", "LOCAL", "transport", "a", "", "tcp://" + "a" * 257]
)
likely_properties = st.builds(
    RouteProperties,
    st.none() | st.sampled_from(["s", BROKER_CONFIGURATION, "", "é" * 256, "€" * 256, "s" * 257]),
    st.none() | guids,
    st.none() | st.sampled_from([0, 1, 2**31 - 1, 2**31]),
    st.none() | addresses,
    st.none() | addresses,
    st.none() | st.sampled_from([0, 1, 1000, 1001]),
)


@given(likely_properties | properties)
def test_route_that_passes_the_rules_has_one_of_the_three_shapes(given_properties: RouteProperties) -> None:
    """Full, with or without a mirror; by name only; last resort. What is refused blames properties by name."""
    shapes = {(True, True, True), (True, True, False), (True, False, False), (False, False, False)}
    try:
        route = create_route("r", given_properties)
    except PropertyError as error:
        blamed = set(error.properties)
    else:
        blamed = set()
        given_parts = (route.remote_service_name, route.broker_instance, route.mirror_address)
        assert tuple(part is not None for part in given_parts) in shapes
        assert route.address != route.mirror_address
        assert route.mirror_address is None or isinstance(route.address, NetworkAddress)
        assert route.address != TRANSPORT or route.remote_service_name is None

    assert blamed <= {name.upper() for name in RouteProperties.__struct_fields__}
