"""Every error's sentence and code; whose turn it is after one."""

import pytest

from broker import errors
from broker.errors import SHOWN_MAX, BrokerError, DdlSyntaxError, SettingError, Span, StatementError, caret

PLACE = Span("a.toml", 3, 7)
SENTENCES: list[tuple[BrokerError, type[BrokerError], str]] = [
    (errors.FrameMalformedError("too short"), errors.PeerError, "malformed frame: too short"),
    (errors.FrameTooLargeError(9, 8), errors.PeerError, "frame of 9 bytes is above max_frame 8"),
    (errors.FrameTooLargeError(9, 8, "TLS?"), errors.PeerError, "not a frame: it TLS?"),
    (errors.ConnectDeniedError("CN=a", "no GRANT"), errors.PeerError, "CN=a may not connect: no GRANT"),
    (errors.OutOfSequenceError("PING", "new"), errors.PeerError, "PING is not allowed while the connection is new"),
    (errors.PeerSilentError(45.04), errors.PeerError, "nothing received from the peer for 45.0 s"),
    (errors.ConversationError(8426, "no such handle"), errors.RequestError, "Msg 8426: no such handle"),
    (StatementError(911, "no database"), errors.RequestError, "Msg 911, Level 16\nno database"),
    (errors.UnknownNameError(208, "no view", Span("-", 1, 2)), StatementError, "Msg 208, Level 16, -:1:2\nno view"),
    (errors.DuplicateNameError(2714, "taken"), StatementError, "Msg 2714, Level 16\ntaken"),
    (SettingError("a.b", "is wrong"), errors.RequestError, "a.b: is wrong"),
    (SettingError("a.b", "is wrong", PLACE, "say x"), errors.RequestError, "a.toml:3:7: a.b: is wrong; say x"),
    (
        errors.SettingsError(
            [SettingError("a.b", "is wrong", PLACE, "x", caret("limit = 12", PLACE)), SettingError("c", "2")]
        ),
        errors.RequestError,
        "a.toml:3:7: a.b: is wrong; x\nlimit = 12\n      ^\nc: 2",
    ),
    (errors.StoreUnavailableError("a.db", "locked"), errors.ResourceError, "store a.db: locked"),
    (errors.StoreBusyError("a.db", "others write", 60.0, 7), errors.StoreUnavailableError, "store a.db: others write"),
    (
        errors.CertificateUnusableError("trust", "a.pem", "is old", "renew it"),
        errors.ResourceError,
        "a.pem: is old; renew it",
    ),
    (
        errors.CertificateTooEarlyError("certificate", "a.pem", "is new", "wait"),
        errors.CertificateUnusableError,
        "a.pem: is new; wait",
    ),
    (errors.DaemonUnreachableError("a.sock", "none"), errors.ResourceError, "no daemon answers on a.sock: none"),
]


@pytest.mark.parametrize(("error", "kind", "sentence"), SENTENCES, ids=lambda value: type(value).__name__)
def test_an_error_says_its_sentence_and_whose_turn_it_is(
    error: BrokerError, kind: type[BrokerError], sentence: str
) -> None:
    assert sentence == str(error)
    assert isinstance(error, kind)


def test_codes_that_a_peer_is_told() -> None:
    names = ("FrameMalformed", "FrameTooLarge", "HandshakeRefused", "OutOfSequence", "PeerSilent")

    assert [28041, 28042, 28034, 28043, 9760] == [getattr(errors, f"{name}Error").code for name in names]


@pytest.mark.parametrize(
    ("line", "column", "length", "caret"),
    [
        ("WITH ADRESS", 6, 6, "     ^^^^^^"),
        ("\tADRESS", 2, 6, "\t^^^^^^"),  # a tab stays one, so that the caret stands below
        ("abc", 2, 99, " ^^"),  # not beyond the line
        ("abc", 4, 1, "   ^"),  # the end of the text
        ("abc", 1, 0, "^"),
    ],
)
def test_a_caret_stands_under_the_part_an_error_is_about(line: str, column: int, length: int, caret: str) -> None:
    error = DdlSyntaxError(102, "incorrect syntax", Span("a.sql", 4, column, length), line)

    assert f"Msg 102, Level 16, a.sql:4:{column}\nincorrect syntax\n{line}\n{caret}" == str(error)


@pytest.mark.parametrize(
    ("line", "column", "length", "shown"),
    [
        ("x" * 10**6, 1, 1, "x" * SHOWN_MAX + "\n^"),
        ("x" * 10**6, 5, 10**6, "x" * (SHOWN_MAX + 4) + "\n    " + "^" * SHOWN_MAX),
        ("\t" + "x" * 10**6, SHOWN_MAX + 2, 2, "x" * 2 * SHOWN_MAX + "\n" + " " * SHOWN_MAX + "^^"),
        ("x" * 10**6 + "y", 10**6 + 1, 1, "x" * SHOWN_MAX + "y\n" + " " * SHOWN_MAX + "^"),
        ("x" * 10**6, 10**6 + 1, 1, "x" * SHOWN_MAX + "\n" + " " * SHOWN_MAX + "^"),
    ],
    ids=["start", "length", "middle", "last", "end"],
)
def test_of_a_long_line_what_stands_around_the_mistake_is_shown(
    line: str, column: int, length: int, shown: str
) -> None:
    assert shown == caret(line, Span("a.sql", 1, column, length))


@pytest.mark.parametrize(
    ("values", "named"),
    [((1,), {}), ((1, 2, "", 4), {}), ((1, 2), {"length": 1}), ((1, 2), {"other": 1})],
    ids=["missing", "too many", "twice", "unknown"],
)
def test_an_error_takes_its_fields_and_nothing_else(values: tuple[object, ...], named: dict[str, object]) -> None:
    make: type = errors.FrameTooLargeError

    with pytest.raises(TypeError, match=r"FrameTooLargeError takes length, max_frame, hint; not"):
        make(*values, **named)


def test_an_error_has_the_fields_of_the_one_it_is_a_kind_of_by_which_it_is_compared() -> None:
    class WorseError(StatementError):
        names: tuple[str, ...] = ()

    error = WorseError(102, "wrong", names=("a",))
    setting = SettingError("a.b", "is wrong", PLACE, excerpt="a.b = 1")

    assert error != WorseError(102, "wrong")
    assert {error} == {error, WorseError(102, "wrong", names=("a",))}
    assert "WorseError(number=102, problem='wrong', span=None, text_line=None, names=('a',))" == repr(error)
    assert "BrokerError('no fields')" == repr(BrokerError("no fields"))
    assert SettingError("a.b", "is wrong") == setting.but(span=None), "the excerpt is not compared"
    assert ("a.b = 1", PLACE) == (setting.but(span=None).excerpt, setting.span)
