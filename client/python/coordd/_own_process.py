"""Which process has joined a job, of those that are forks of one another."""

import os
from typing import List

from coordd.exceptions import CoorddError

_begun: List[int] = []  # the process that has joined a job first: this one, or one that this one was forked from


def require() -> None:
    """HorovodInternalError: this is a fork of a process that has joined a job. What gRPC has there is shared with its parent: a worker
    here would end the parent's."""
    if not _begun:
        _begun.append(os.getpid())
    elif _begun[0] != os.getpid():
        raise CoorddError(f"process {os.getpid()} was forked from {_begun[0]}, which has joined a job, and cannot join one itself: "
                          "expected a process that was started by spawn or forkserver, or forked before", "FAILED_PRECONDITION")
