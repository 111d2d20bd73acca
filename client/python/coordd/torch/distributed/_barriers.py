"""barrier, and monitored_barrier, which says who is missing. Its sentences begin with the words that torch's own tests, and programs
that look for them, expect of a backend."""

import time
from datetime import timedelta
from typing import List

import torch.distributed as dist
from torch._C import _distributed_c10d as c10d

from coordd.torch.distributed._calls import Calls

_SLICE_S = 0.25
_GRACE_S = 2.0  # rank 0, which may have come later, says who is missing once its own time is over


class Barriers(Calls):
    """Mixin of a group."""

    def barrier(self, opts=c10d.BarrierOptions()):
        self._finish_gpu()
        started = self._start(None, [], opts, "barrier")
        return started if started is not None else self._submit("barrier", self._channel.barrier, [], opts)

    def monitored_barrier(self, opts=None, wait_all_ranks=False, timeout=None):
        """Rank 0 waits for a word of each rank, and answers all of them; everyone else waits for the answer."""
        given = opts if isinstance(opts, timedelta) else timeout if timeout is not None else getattr(opts, "timeout", None)
        seconds = self._channel.timeout_s if given is None or given.total_seconds() < 0 else given.total_seconds()
        self._drain()
        self._names["monitored"] += 1
        key = f"torch.monitored/{self._names['monitored']}"
        if self._rank_ == 0:
            self._answer(key, seconds, wait_all_ranks)
            return
        self._channel.put(f"{key}/{self._rank_}", b"here")
        answer = self._channel.get(f"{key}/answer", seconds + min(seconds, _GRACE_S))
        if answer is not None:
            self._channel.delete(f"{key}/{self._rank_}")
            self._forget(key)
        if answer is None:
            answer = f"no answer within {seconds:g} s".encode()
        if answer:
            raise self._error(f"Rank {self._rank_} successfully reached monitoredBarrier, but received errors while waiting for "
                              f"send/recv from rank 0: {answer.decode()}")

    def _forget(self, key: str) -> None:
        """Once by each rank that has no more use for the answer: the last one deletes what is left of this barrier."""
        if self._channel.count(f"{key}/through") == self._size_:
            self._channel.delete(f"{key}/answer")
            self._channel.delete(f"{key}/through")

    def _answer(self, key: str, seconds: float, wait_all_ranks: bool) -> None:
        end, missing = time.monotonic() + seconds, []  # type: float, List[int]
        for rank in range(1, self._size_):
            left = end - time.monotonic()
            if left <= 0 and seconds <= 0:
                self._refuse(key, "Rank 0 timed out in monitoredBarrier after 0 s")
            if self._channel.get(f"{key}/{rank}", max(left, _SLICE_S if missing else 0.01)) is None:
                missing.append(rank)
                if not wait_all_ranks:
                    break
        if len(missing) == 1:
            self._refuse(key, f"Rank {missing[0]} failed to pass monitoredBarrier in {seconds * 1000:g} ms")
        elif missing:
            self._refuse(key, f"Ranks {', '.join(map(str, missing))} failed to pass monitoredBarrier in {seconds * 1000:g} ms")
        self._channel.put(f"{key}/answer", b"")
        self._forget(key)

    def _refuse(self, key: str, why: str) -> None:
        self._channel.put(f"{key}/answer", why.encode())
        self._forget(key)
        raise self._error(why)

    @staticmethod
    def _error(sentence: str) -> Exception:
        return dist.DistBackendError(f"coordd: {sentence}")  # type: ignore[attr-defined]
