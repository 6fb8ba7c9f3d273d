"""
Every way of making each error of the statements about routes, as one table, and what is just legal beside it.

Every test that asks how a mistake is told takes it from here: the rules, the one door for changes, a script of a
configuration, the command line, HTTP. A row is a script that changes nothing; what its error points at stands between
the marks « and ». It runs where the routes of `EXISTING` are.

Source: Service Broker documentation, "CREATE ROUTE", "ALTER ROUTE", "DROP ROUTE".
"""

from collections.abc import Iterator
from dataclasses import dataclass

GUID = "5b0f3c1e-5d5e-4f0b-8a55-0e9b0b9c2f11"
ZERO = "00000000-0000-0000-0000-000000000000"
CONFIGURATION = "SQL/ServiceBroker/BrokerConfiguration"

# One of each kind: what ALTER, DROP and a second CREATE find.
EXISTING = f"""
CREATE ROUTE Mirrored WITH SERVICE_NAME = '//shop/Orders', BROKER_INSTANCE = '{GUID}',
    ADDRESS = 'tcp://east.example:4022', MIRROR_ADDRESS = 'tcp://west.example:4023';
CREATE ROUTE Instance WITH SERVICE_NAME = '//shop/Orders', BROKER_INSTANCE = '{GUID}', ADDRESS = 'tcp://east';
CREATE ROUTE ByName WITH SERVICE_NAME = '//shop/Orders', ADDRESS = 'tcp://east', WEIGHT = 3;
CREATE ROUTE LastResort WITH ADDRESS = 'tcp://east';
CREATE ROUTE Here WITH ADDRESS = 'LOCAL';
CREATE ROUTE InstanceHere WITH SERVICE_NAME = '//shop/Orders', BROKER_INSTANCE = '{GUID}', ADDRESS = 'LOCAL';
CREATE ROUTE Wire WITH ADDRESS = 'TRANSPORT';
CREATE ROUTE Configuration WITH SERVICE_NAME = '{CONFIGURATION}', ADDRESS = 'tcp://east';
"""


@dataclass(frozen=True, slots=True)
class Case:
    """
    One script that is refused.

    Shape: `number` the original's; `marked` the script, in which « and » enclose what the error points at;
    `is_declared_too` False when a script of the configuration may say it, as it runs at every start; `is_writable`
    False when no file of UTF-8, no argument and no JSON can hold it.
    """

    number: int
    marked: str
    is_declared_too: bool = True
    is_writable: bool = True

    def __str__(self) -> str:
        text = self.marked.encode("unicode_escape").decode()
        return f"{self.number} {text if len(text) <= 120 else f'{text[:80]}...{text[-37:]}'}"

    @property
    def script(self) -> str:
        """What is carried out."""
        return self.marked.replace("«", "").replace("»", "")

    @property
    def line(self) -> int:
        """Of the mistake, from 1."""
        return self.marked.count("\n", 0, self.marked.index("«")) + 1

    @property
    def column(self) -> int:
        """Of the mistake, from 1."""
        return len(self._before) + 1

    @property
    def caret(self) -> str:
        """The line, and below it a mark under each character of what is wrong."""
        line = self.script.split("\n")[self.line - 1]
        return f"{line}\n{' ' * len(self._before)}{'^' * max(1, len(self._blamed))}"

    @property
    def _before(self) -> str:
        return self.marked[: self.marked.index("«")].rpartition("\n")[2]

    @property
    def _blamed(self) -> str:
        """What the marks enclose, of its first line; nothing when they stand at an end that comes too early."""
        return self.marked[self.marked.index("«") + 1 : self.marked.index("»")].partition("\n")[0]


# What no address may have: behind "tcp://east:", behind "tcp://", and by itself.
_PORTS = [
    "",
    "0",
    "65536",
    "004022",
    "-1",
    "4022x",
    "\uff14\uff10",
    "4022:4022",
    "4022/Orders",
    "4022?mode=1",
    "4022#a",
]
_HOSTS = [
    "",
    ":4022",
    ".east",
    "east..example",
    "-east",
    "east-.example",
    "ea st",
    "east ",
    "ea''st",
    "user@east",
    "a,b",
]
_HOSTS += ["\u00f6st", "\u212aiel", "ea\u00a0st", "ea\x00st", "a" * 64, "4022", "1.2.3", "1.2.3.256", "01.2.3.4"]
_HOSTS += ["::1", "[::1", "[]", "[::1]4022", "[::g]:4022", "[1.2.3.4]:4022", "[fe80::1%eth0]:4022"]
_FORMS = [" ", "east:4022", "tcp:east:4022", "udp://east:4022", " tcp://east", "LOCAL ", "LOCAL:4022", "[LOCAL]"]
_FORMS += ["TRANSPORT://east", "tran\u017fport"]  # a long s is no S, though it becomes one in upper case
NO_ADDRESSES = (*_FORMS, *(f"tcp://east:{port}" for port in _PORTS), *(f"tcp://{host}" for host in _HOSTS))

NO_GUIDS = [" ", "DatabaseB", GUID[:-1], GUID + "1", GUID.replace("-", ""), GUID.replace("5", "g"), " " + GUID]
NO_GUIDS += ["5b0f3c1e5-d5e-4f0b-8a55-0e9b0b9c2f11", GUID.replace("5", "\uff15"), "{" + GUID, "{{" + GUID + "}}"]
NO_GUIDS += [GUID + "\n", "urn:uuid:" + GUID, "x" * 256, ZERO, "{" + ZERO + "}"]

_CREATE = "CREATE ROUTE r WITH"
_SERVICE = "SERVICE_NAME = '//shop/Orders'"
_INSTANCE = f"BROKER_INSTANCE = '{GUID}'"
_ADDRESS = "ADDRESS = 'tcp://east'"
_MIRROR = "MIRROR_ADDRESS = 'tcp://west'"
_LONG_ADDRESS = "tcp://" + ".".join(["a" * 62] * 4)  # 257 characters

_TEXTS = (
    Case(9659, f"{_CREATE} SERVICE_NAME = «''», {_ADDRESS}"),
    Case(9659, f"{_CREATE} {_SERVICE}, BROKER_INSTANCE = «N''», {_ADDRESS}"),
    Case(9659, f"{_CREATE} ADDRESS = «''»"),
    Case(9659, f"{_CREATE} {_SERVICE}, {_INSTANCE}, {_ADDRESS}, MIRROR_ADDRESS = «''»"),
    Case(9659, "ALTER ROUTE Mirrored WITH BROKER_INSTANCE = «''»"),
    Case(9660, f"{_CREATE} SERVICE_NAME = «'{'s' * 257}'», {_ADDRESS}"),
    Case(9660, f"{_CREATE} SERVICE_NAME = «N'{'s' * 256}'''», {_ADDRESS}"),  # a doubled quote is one character
    Case(9660, f"{_CREATE} {_SERVICE}, BROKER_INSTANCE = «'{'5' * 257}'», {_ADDRESS}"),
    Case(9660, f"{_CREATE} ADDRESS = «'{_LONG_ADDRESS}'»"),
    Case(9660, f"ALTER ROUTE Mirrored WITH MIRROR_ADDRESS = «'{_LONG_ADDRESS}'»"),
    Case(8412, f"{_CREATE} SERVICE_NAME = «'{'€' * 171}'», {_ADDRESS}"),  # 513 bytes of UTF-8
    Case(8412, f"{_CREATE} SERVICE_NAME = «'{'é' * 255}€'», {_ADDRESS}"),
    Case(8412, "ALTER ROUTE Wire WITH SERVICE_NAME = «'\ud800'»", is_writable=False),
)

# A clause that needs another one, or excludes it.
_ALONE = (
    Case(9661, f"{_CREATE} {_ADDRESS}, MIRROR_ADDRESS = «'tcp://west'»"),
    Case(9661, f"{_CREATE} {_SERVICE}, {_ADDRESS}, MIRROR_ADDRESS = «'tcp://west'»"),
    Case(9661, f"{_CREATE} SERVICE_NAME = '{CONFIGURATION}', {_ADDRESS}, MIRROR_ADDRESS = «'tcp://west'»"),
    Case(9661, "ALTER ROUTE ByName WITH ADDRESS = 'tcp://north' MIRROR_ADDRESS = «'tcp://west'»"),
    Case(9661, "ALTER ROUTE Here WITH ADDRESS = 'tcp://east', MIRROR_ADDRESS = «'tcp://west'»"),
    Case(9662, f"{_CREATE} BROKER_INSTANCE = «'{GUID}'», {_ADDRESS}"),
    Case(9662, f"{_CREATE} BROKER_INSTANCE = «'{{{GUID.upper()}}}'», ADDRESS = 'LOCAL'"),
    Case(9662, f"{_CREATE} BROKER_INSTANCE = «'{GUID}'», {_ADDRESS}, {_MIRROR}"),
    Case(9662, f"ALTER ROUTE Wire WITH BROKER_INSTANCE = «'{GUID}'»"),
    Case(9743, f"{_CREATE} ADDRESS = «'LOCAL'», {_MIRROR}"),
    Case(9743, f"{_CREATE} {_SERVICE}, {_INSTANCE}, ADDRESS = «'local'», {_MIRROR}"),
    Case(9743, f"{_CREATE} ADDRESS = «'tranSport'», {_MIRROR}"),
    Case(9743, f"{_CREATE} {_SERVICE}, {_INSTANCE}, {_ADDRESS}, MIRROR_ADDRESS = «'Local'»"),
    Case(9743, f"{_CREATE} {_SERVICE}, {_INSTANCE}, ADDRESS = 'LOCAL', MIRROR_ADDRESS = «'TRANSPORT'»"),
    Case(9743, "ALTER ROUTE Mirrored WITH ADDRESS = «'LOCAL'»"),
    Case(9743, "ALTER ROUTE InstanceHere WITH MIRROR_ADDRESS = «'tcp://west'»"),
    Case(9745, f"{_CREATE} {_SERVICE}, ADDRESS = «'TRANSPORT'»"),
    Case(9745, f"{_CREATE} {_SERVICE}, {_INSTANCE}, ADDRESS = «'Transport'», {_MIRROR}"),
    Case(9745, "ALTER ROUTE Mirrored WITH ADDRESS = «'TRANSPORT'»"),
    Case(9745, "ALTER ROUTE Wire WITH SERVICE_NAME = «'//shop/Orders'»"),
    Case(8413, f"{_CREATE} SERVICE_NAME = '{CONFIGURATION}', BROKER_INSTANCE = «'{GUID}'», {_ADDRESS}"),
    Case(8413, f"ALTER ROUTE Configuration WITH BROKER_INSTANCE = «'{GUID}'»"),
    Case(8413, f"ALTER ROUTE Mirrored WITH SERVICE_NAME = «'{CONFIGURATION}'»"),
)


def _values() -> Iterator[Case]:
    """A clause whose value is none by itself, or next to the other address."""
    for text in NO_ADDRESSES:
        yield Case(9744, f"{_CREATE} ADDRESS = «'{text}'»")
    for text in NO_ADDRESSES[::7]:
        yield Case(9744, f"ALTER ROUTE Mirrored WITH MIRROR_ADDRESS = «N'{text}'»")
    for seconds in ("0", "-0", "+0", "-1", "2147483648", "9" * 19, "1" + "0" * 999):
        yield Case(9746, f"{_CREATE} LIFETIME = «{seconds}», {_ADDRESS}")
    yield Case(9746, "ALTER ROUTE ByName WITH LIFETIME = «0»")
    for weight in ("0", "-1", "1001", "9" * 1000):
        yield Case(1080, f"{_CREATE} {_ADDRESS}, WEIGHT = «{weight}»")
    yield Case(1080, "ALTER ROUTE ByName WITH WEIGHT = «0»")
    for one, other in (
        ("tcp://east", "tcp://east:4022/"),
        ("TCP://East.Example", "tcp://EAST.example:4022"),
        ("tcp://east:80", "tcp://east:00080"),
        ("tcp://[2001:DB8::1]:9", "tcp://[2001:db8:0:0::1]:9/"),
    ):
        yield Case(9747, f"{_CREATE} {_SERVICE}, {_INSTANCE}, ADDRESS = '{one}', MIRROR_ADDRESS = «'{other}'»")
    yield Case(9747, "ALTER ROUTE Mirrored WITH ADDRESS = «'TCP://WEST.example:4023/'»")
    yield Case(9747, "ALTER ROUTE Mirrored WITH MIRROR_ADDRESS = «'tcp://east.example'»")
    for text in NO_GUIDS:
        yield Case(8413, f"{_CREATE} {_SERVICE}, BROKER_INSTANCE = «'{text}'», {_ADDRESS}")
    yield Case(8413, "ALTER ROUTE ByName WITH BROKER_INSTANCE = «'DatabaseB'»")


_NAMES_OF_ROUTES = (
    Case(103, f"CREATE ROUTE «{'r' * 129}» WITH {_ADDRESS}"),
    Case(103, f'DROP ROUTE «"{"r" * 129}"»'),
    Case(103, f"USE «[{'d' * 129}]»"),
    Case(1038, f"CREATE ROUTE «[]» WITH {_ADDRESS};"),
    Case(1038, f'CREATE ROUTE r AUTHORIZATION «""» WITH {_ADDRESS}'),
    Case(2714, f"CREATE ROUTE «ByName» WITH {_SERVICE}, {_ADDRESS};", is_declared_too=False),
    Case(2714, f"CREATE ROUTE «[AutoCreatedLocal]» WITH {_ADDRESS};", is_declared_too=False),
    Case(2714, f"{_CREATE} {_ADDRESS};\nCREATE ROUTE «r» WITH {_ADDRESS};", is_declared_too=False),
    Case(911, "USE «nowhere»"),
    Case(911, f"{_CREATE} {_ADDRESS};\nUSE «[no where]»; {_CREATE} ADDRESS = ''"),
    Case(15151, "ALTER ROUTE «nothing» WITH LIFETIME = 1"),
    Case(15151, "ALTER ROUTE «byname» WITH ADDRESS = ''"),  # names compare byte for byte
    Case(15151, "ALTER ROUTE «[ByName ]» WITH LIFETIME = 1"),
    Case(15151, "DROP ROUTE ByName;\nALTER ROUTE «ByName» WITH LIFETIME = 1"),
    Case(15151, "DROP ROUTE «BYNAME»;", is_declared_too=False),
)

_GRAMMAR = (
    Case(102, "«CREATE_ROUTE» r"),
    Case(102, f"CREATE «ROUT» r WITH {_ADDRESS}"),
    Case(102, "CREATE ROUTE«»"),
    Case(102, f"CREATE ROUTE «'r'» WITH {_ADDRESS}"),
    Case(102, f"CREATE ROUTE «1r» WITH {_ADDRESS}"),
    Case(102, f"CREATE ROUTE dbo«.»r WITH {_ADDRESS}"),  # a route's name has one part
    Case(102, "CREATE ROUTE r «ADDRESS» = 'tcp://east'"),
    Case(102, "CREATE ROUTE r WITH«»"),
    Case(102, f"CREATE ROUTE r AUTHORIZATION «WITH» {_ADDRESS}"),
    Case(102, f"{_CREATE} «(»{_ADDRESS})"),
    Case(102, f"CREATE ROUTE «r» WITH {_SERVICE}, {_INSTANCE}, LIFETIME = 1, {_MIRROR}, WEIGHT = 1;"),  # no ADDRESS
    Case(102, f"{_CREATE} «ADRESS» = 'tcp://east'"),
    Case(102, f"{_CREATE} «[ADDRESS]» = 'tcp://east'"),
    Case(102, f"{_CREATE} ADDRESS «'tcp://east'»"),
    Case(102, f"{_CREATE} ADDRESS = «LOCAL»"),
    Case(102, f'{_CREATE} ADDRESS = «"tcp://east"»'),
    Case(102, f"{_CREATE} ADDRESS =«»"),
    Case(102, f"{_CREATE} {_SERVICE} «ADDRESS» = 'tcp://east'"),
    Case(102, f"{_CREATE} {_ADDRESS}, «,» WEIGHT = 1"),
    Case(102, f"{_CREATE} {_ADDRESS} «extra»"),
    Case(102, f"{_CREATE} ADDRESS = 'tcp:' «+» '//east'"),
    Case(102, f"{_CREATE} {_ADDRESS}, «address» = 'tcp://west'"),
    Case(102, "ALTER ROUTE ByName WITH LIFETIME = 1 «LIFETIME» = 2"),
    Case(102, f"{_CREATE} LIFETIME = «'60'», {_ADDRESS}"),
    Case(102, f"{_CREATE} LIFETIME = «1.5», {_ADDRESS}"),
    Case(102, f"{_CREATE} LIFETIME = «-» 1, {_ADDRESS}"),
    Case(102, f"{_CREATE} LIFETIME = «{'9' * 1001}», {_ADDRESS}"),
    Case(102, f"{_CREATE} {_ADDRESS}, WEIGHT = «NULL»"),
    Case(102, "ALTER ROUTE ByName WITH«»"),
    Case(102, "ALTER ROUTE ByName «AUTHORIZATION» dbo"),
    Case(102, "ALTER ROUTE ByName WITH «,» LIFETIME = 1"),
    Case(102, "DROP ROUTE ByName«,» Here"),
    Case(102, "DROP ROUTE IF EXISTS«»"),
    Case(102, "USE msdb«.»sys"),
    Case(102, "«GO» now"),
    Case(102, "«)»"),
    Case(102, "«'a text'»"),
    Case(102, "«\\»"),
    Case(102, f"/* two\nlines */ {_CREATE} -- and more\n  {_ADDRESS}\n  «WITH» x"),
)

# Nothing is read behind these, so each is a script of its own.
UNCLOSED = (
    Case(105, f"{_CREATE} ADDRESS = «'»tcp://east"),
    Case(105, f"{_CREATE} ADDRESS = 'tcp://east;\n{_CREATE} ADDRESS = 'tcp://east«'»;"),
    Case(105, f'CREATE ROUTE «"»r WITH {_ADDRESS}'),
    Case(105, "DROP ROUTE «[»ByName]]"),
    Case(113, f"{_CREATE} {_ADDRESS} «/*» the rest"),
    Case(113, f"«/*» outer /* inner */\n{_CREATE} {_ADDRESS}"),
)

# A route with several mistakes: each clause by itself first, in this order, then one against another.
_SEVERAL = (
    Case(9659, f"{_CREATE} ADDRESS = 'nonsense', SERVICE_NAME = «''», BROKER_INSTANCE = '', LIFETIME = 0"),
    Case(8413, f"{_CREATE} ADDRESS = 'nonsense', {_SERVICE}, BROKER_INSTANCE = «'x'», LIFETIME = 0"),
    Case(9744, f"{_CREATE} LIFETIME = 0, WEIGHT = 0, ADDRESS = «'nonsense'», BROKER_INSTANCE = '{GUID}'"),
    Case(9746, f"{_CREATE} LIFETIME = «0», {_ADDRESS}, BROKER_INSTANCE = '{GUID}'"),
)

CASES = (*_TEXTS, *_ALONE, *_values(), *_NAMES_OF_ROUTES, *_GRAMMAR, *_SEVERAL, *UNCLOSED)

NUMBERS = frozenset(
    {102, 103, 105, 113, 911, 1038, 1080, 2714, 8412, 8413, 9659, 9660, 9661, 9662, 9743, 9744, 9745, 9746, 9747, 15151}
)

_TEXT_256 = "s" * 256
_QUOTE = "'"
_SWAPPED = "ALTER ROUTE r WITH ADDRESS = 'tcp://west', MIRROR_ADDRESS = 'tcp://east'"
_ADDRESS_256 = "tcp://" + "a" * 62 + "." + "b" * 62 + "." + "c" * 62 + "." + "d" * 55 + ":4022/"

# Scripts that make a route r, or change it, at the very edge of what is legal.
ACCEPTED = (
    f"{_CREATE} SERVICE_NAME = '{_TEXT_256}', {_ADDRESS}",
    f"{_CREATE} SERVICE_NAME = '{'é' * 256}', {_ADDRESS}",  # 512 bytes of UTF-8
    f"{_CREATE} SERVICE_NAME = N'{'😀' * 128}', {_ADDRESS}",
    f"{_CREATE} SERVICE_NAME = '{_QUOTE * 512}', {_ADDRESS}",  # 256 quotes
    f"{_CREATE} SERVICE_NAME = 'a\nb', {_ADDRESS}",
    f"{_CREATE} SERVICE_NAME = '{CONFIGURATION.upper()}', {_INSTANCE}, {_ADDRESS}",  # another service
    f"{_CREATE} SERVICE_NAME = '{CONFIGURATION}', ADDRESS = 'LOCAL'",
    f"{_CREATE} {_SERVICE}, BROKER_INSTANCE = '{{{GUID.upper()}}}', {_ADDRESS}",
    f"{_CREATE} {_SERVICE}, {_INSTANCE}, {_ADDRESS}, MIRROR_ADDRESS = 'tcp://east:4023'",
    f"{_CREATE} ADDRESS = 'tRANSPORT'",
    f"{_CREATE} ADDRESS = 'tcp://transport/'",
    f"{_CREATE} ADDRESS = '{_ADDRESS_256}'",
    f"{_CREATE} ADDRESS = 'tcp://{'a' * 63}'",
    f"{_CREATE} ADDRESS = 'TCP://SERVER_02:1'",
    f"{_CREATE} ADDRESS = 'tcp://east.example.:65535/'",
    f"{_CREATE} LIFETIME = +2147483647, {_ADDRESS}",
    f"{_CREATE} LIFETIME = 0000000000000000000000000000001, {_ADDRESS}",
    f"{_CREATE} {_ADDRESS}, WEIGHT = 1000",
    f"CREATE ROUTE r AUTHORIZATION [the owner] WITH {_ADDRESS}",
    f"{_CREATE} {_ADDRESS}; ALTER ROUTE r WITH WEIGHT = 7, {_INSTANCE} {_SERVICE} {_MIRROR},",
    f"{_CREATE} {_ADDRESS}; ALTER ROUTE r WITH ADDRESS = 'TRANSPORT'",
    f"{_CREATE} {_SERVICE}, {_INSTANCE}, {_ADDRESS}, {_MIRROR}; ALTER ROUTE r WITH LIFETIME = 2147483647",
    f"{_CREATE} {_SERVICE}, {_INSTANCE}, {_ADDRESS}, {_MIRROR}; {_SWAPPED}",
)


def cases_of(number: int) -> list[Case]:
    """The rows about one number."""
    return [case for case in CASES if case.number == number]
