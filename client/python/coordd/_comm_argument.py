"""The argument `comm` of init(): which processes make a job of their own."""

import hashlib
import os
from typing import Dict, List, Mapping

from coordd import _native
from coordd.exceptions import InvalidArgumentError

_MAX_JOB_NAME_BYTES = 128  # kMaxJobNameBytes


def membership_options(comm, options: Mapping[str, _native.OptionValue]) -> Dict[str, _native.OptionValue]:
    """Members of coordd_options_t for the argument `comm` of init, beside the other `options`."""
    if comm is None:
        return {}
    launched = _native.launch(**options)
    if hasattr(comm, "Get_rank"):
        own, size = comm.Get_rank(), comm.Get_size()
        name = f"{launched.job}.comm-{os.getpid()}-{os.urandom(4).hex()}"
        job = comm.bcast(name if own == 0 else None, root=0)
    else:
        ranks = list(comm)
        if not ranks:
            return {}
        own, size = _index_of_this_rank(ranks, launched), len(ranks)
        if launched.size == size and ranks == list(range(size)):
            return {}
        job = _job_of_ranks(launched.job, ranks)
    return {"job": job, "min_workers": size, "max_workers": size, "has_launcher_rank": 1, "launcher_rank": own,
            "launcher_local_rank": -1}


def _job_of_ranks(job: str, ranks: List[int]) -> str:
    """A name that is the same on these ranks and on no others; long ones end in a hash."""
    name = f"{job}.ranks-{'-'.join(map(str, ranks))}"
    if len(name.encode()) <= _MAX_JOB_NAME_BYTES:
        return name
    return f"{job[:64]}.ranks-{ranks[0]}-and-{len(ranks) - 1}-more-{hashlib.sha256(name.encode()).hexdigest()[:16]}"


def _index_of_this_rank(ranks: List[int], launched: _native.Launch) -> int:
    if any(not isinstance(one, int) for one in ranks) or len(set(ranks)) != len(ranks):
        raise InvalidArgumentError(f"comm is {ranks}: expected a list of ranks, each once, or an mpi4py communicator",
                                   "INVALID_ARGUMENT")
    own = launched.rank
    if own < 0 and ranks == [0] and launched.launcher == "none":
        own = 0  # a program that nobody launched is rank 0 of 1
    if own < 0:
        raise InvalidArgumentError(f"comm is {ranks}, but this process has no rank: no launcher is known to have started it "
                                   "(`coordctl whoami` says why), and COORDD_RANK is not set", "INVALID_ARGUMENT")
    if own not in ranks:
        raise InvalidArgumentError(f"comm is {ranks}, but this process has rank {own}: only the ranks in the list call "
                                   "init with it", "INVALID_ARGUMENT", rank=own)
    return ranks.index(own)
