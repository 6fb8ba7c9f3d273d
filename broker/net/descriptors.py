"""
File descriptors: as many as the system gives, and some kept for those whom we dial.

Whoever connects takes a descriptor, and there is no end to strangers. So nobody is accepted any more while fewer than a
reserve are free: next hops are dialled, files opened and the admin interface asked all the same. The system gives out
the lowest number that is free, so the number of a new descriptor tells how many are taken at least.
"""

from __future__ import annotations

import contextlib
import os
import resource

RESERVED = 256  # kept free: 64 connections coming about, those that have, admin and scrapers, files of databases
RESERVED_SHARE = 4  # at most one in so many, where there are few
OWN = 64  # that an instance has open for itself: the loop, listeners, logs, a few databases
UNLIMITED = 1 << 31


def raise_limit() -> int:
    """Allow this process all that it may allow itself; how many descriptors that is."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with contextlib.suppress(ValueError, OSError):  # some systems promise more than they give
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
            soft = hard
    return soft


def is_reserved(descriptor: int) -> bool:
    """Whether a descriptor that was just given out is one of those kept for others than strangers."""
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if limit == resource.RLIM_INFINITY:
        return False
    return descriptor >= limit - min(RESERVED, limit // RESERVED_SHARE)


def room_for_connections(besides: int) -> int:
    """How many connections there may be beside so many others, what is in reserve left alone; one at least."""
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if limit == resource.RLIM_INFINITY:
        return UNLIMITED
    kept = min(RESERVED, limit // RESERVED_SHARE) + min(OWN, limit // RESERVED_SHARE)
    return max(1, limit - kept - besides)


def are_short(descriptor: int) -> bool:
    """Whether no more may be accepted; `descriptor` is any that is open."""
    try:
        probe = os.dup(descriptor)
    except OSError:
        return True
    os.close(probe)
    return is_reserved(probe)
