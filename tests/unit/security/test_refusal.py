"""A refusal says under what it is counted, and why."""

from broker.flow import Disposition
from broker.security.seal import SealRefusedError


def test_a_refusal_says_why() -> None:
    error = SealRefusedError(Disposition.SEAL_BROKEN, "the seal is broken")

    assert "seal broken: the seal is broken" == str(error)
    assert (11230, "the seal is broken") == (error.disposition.number, error.why)
