"""
The states of a mirrored route as one prober sees it, and the table of what changes them.

No state needs to be guessed from fields: who is principal, who has declined since it was last believed, and whether
somebody has to be asked, is all in the name. "Declined" is said by an answer (`mirror`, `unknown`), by
a claim with an epoch below one believed before, or by being out of reach. "First" is the ADDRESS of the route, "second"
its MIRROR_ADDRESS.

The rules that the table spells out:

- Nothing is believed of a route that nobody uses: the first use asks both (R6.1).
- Who claims a higher epoch than any believed before is the principal, whatever was believed (R6.4).
- Who claims the epoch believed before is the principal where nobody is. Beside another in use it changes nothing: two
  that claim one epoch cannot be told apart, so the one in use stays, or the first one heard (R6.4).
- A claim with a lower epoch comes from a stale copy. It counts as a refusal.
- A principal that declines is none from then on. Only a claim makes the next one; till then both are asked (R6.3).
- What the partner of a principal says, other than a claim, changes nothing (R6.2).

Source: Service Broker documentation, "Service Broker Routing", "Routing with Database Mirroring".
"""

from __future__ import annotations

from enum import Enum


class MirrorState(Enum):
    """What is known of the two addresses of a route."""

    NEVER_USED = "never used"
    ASKING_BOTH = "asking both"
    FIRST_DECLINED = "first declined, second silent"
    SECOND_DECLINED = "second declined, first silent"
    BOTH_DECLINED = "both declined"
    FIRST_PRINCIPAL = "first is principal"
    SECOND_PRINCIPAL = "second is principal"


class MirrorEvent(Enum):
    """What is heard of one address. A claim is compared with the highest epoch believed before."""

    CLAIMS_HIGHER = "claims a higher epoch"
    CLAIMS_EQUAL = "claims the epoch believed before"
    CLAIMS_LOWER = "claims a lower epoch"
    DENIES = "is not the principal"
    LOST = "is out of reach"


class MirrorSide(Enum):
    """Of which address."""

    FIRST = 0
    SECOND = 1


NU, AB = MirrorState.NEVER_USED, MirrorState.ASKING_BOTH
FD, SD, BD = MirrorState.FIRST_DECLINED, MirrorState.SECOND_DECLINED, MirrorState.BOTH_DECLINED
FP, SP = MirrorState.FIRST_PRINCIPAL, MirrorState.SECOND_PRINCIPAL

# For each state: what it becomes when the first, and when the second address
#        claims          is          claims          is
#        higher      not it          higher      not it
#            equal       lost            equal       lost
#                lower                       lower
_HEARD: dict[MirrorState, tuple[MirrorState, ...]] = {
    NU: (NU, NU, NU, NU, NU, NU, NU, NU, NU, NU),
    AB: (FP, FP, FD, FD, FD, SP, SP, SD, SD, SD),
    FD: (FP, FP, FD, FD, FD, SP, SP, BD, BD, BD),
    SD: (FP, FP, BD, BD, BD, SP, SP, SD, SD, SD),
    BD: (FP, FP, BD, BD, BD, SP, SP, BD, BD, BD),
    FP: (FP, FP, FD, FD, FD, SP, FP, FP, FP, FP),
    SP: (FP, SP, SP, SP, SP, SP, SP, SD, SD, SD),
}
_INPUTS = [(side, word) for side in MirrorSide for word in MirrorEvent]
TRANSITIONS: dict[tuple[MirrorState, MirrorSide, MirrorEvent], MirrorState] = {
    (before, side, word): after
    for before, row in _HEARD.items()
    for (side, word), after in zip(_INPUTS, row, strict=True)
}
ON_USE = {standing: AB if standing is NU else standing for standing in MirrorState}
ASKING = frozenset({AB, FD, SD, BD})  # both addresses are asked, with back-off; when it is due again changes no state
PRINCIPAL = {FP: MirrorSide.FIRST, SP: MirrorSide.SECOND}
