"""
Records in the audit of a configuration what a command changes in files of the instance, before the change is made.

The daemon records the changes of the API; a command that works on files is another process and writes to the same file.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

from broker.admin.audit import Audit, AuditEntry, AuditUnavailableError
from broker.admin.auth import Caller
from broker.config.admin_access import AdminRole, user_name
from broker.config.settings import Settings


@contextmanager
def recording(
    settings: Settings, operation: str, database: str | None = None, *, target: str | None = None
) -> Iterator[AuditEntry]:
    """
    The audit entry of one command; an error that ends the block after it was sealed is recorded as failed.

    With a `target`, that this is done to it is written before the block.
    """
    caller = Caller(f"user:{user_name(os.geteuid())}", f"command, process {os.getpid()}", AdminRole.ADMIN)
    entry = AuditEntry(Audit(settings.admin.audit), caller, operation, database)
    try:
        if target is not None:
            entry.seal_done(target)
        yield entry
    except AuditUnavailableError as error:
        hint = "make it writable, or name the configuration of the instance with -c"
        raise AuditUnavailableError(error.path, f"{error.problem}: {hint}") from error
    except BaseException as error:
        if entry.is_sealed:
            entry.end_badly(error)
        raise
