"""Many sockets at a time: as many descriptors as the system allows."""

import resource

SPARE = 200  # for what a process has open besides


def allow_descriptors(wanted: int) -> int:
    """Raise the soft limit, which child processes inherit; how many of the wanted sockets may be opened now."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < wanted + SPARE:
        soft = hard if hard != resource.RLIM_INFINITY and hard < wanted + SPARE else wanted + SPARE
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    return min(wanted, soft - SPARE)
