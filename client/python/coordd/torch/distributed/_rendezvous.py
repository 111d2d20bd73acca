"""coordd as torchrun's rendezvous:

    torchrun --nnodes 2:4 --nproc-per-node 8 --rdzv-backend coordd --rdzv-endpoint HOST:29650 --rdzv-id NAME train.py

The agents are the members of a job of coordd's, `torchrun-NAME`; a rendezvous is a generation of it. Certificates and token are what
COORDD_TLS_... and COORDD_TOKEN_FILE say. The workers get the coordd by COORDD_ADDR, for groups of our backend.

torch 2.8 and later find this by the entry point "torchrun.handlers"; before, `python -m coordd.torch.distributed.run` is torchrun.
"""

import inspect
import os
from datetime import timedelta
from typing import Any, Optional, Tuple

from torch._C._distributed_c10d import PrefixStore
from torch.distributed.elastic.rendezvous import api

from coordd import _native
from coordd.exceptions import CoorddError
from coordd.torch.distributed._store import Store

_JOIN_S = 600.0  # torch's own default of join_timeout
_DEFAULT_PORT = 29650
_ASK = timedelta(seconds=5)  # a question to coordd, which may be away for a moment


class Rendezvous(api.RendezvousHandler):
    """Of one agent; its calls come from one thread."""

    def __init__(self, params: api.RendezvousParameters):
        self._params = params
        self._join_s = float(params.config.get("join_timeout") or _JOIN_S)
        self._worker: Optional[_native.Worker] = None
        self._closed = False
        self._asked: "Optional[Tuple[_native.Worker, Store]]" = None

    def get_backend(self) -> str:
        return "coordd"

    def get_run_id(self) -> str:
        return self._params.run_id

    def next_rendezvous(self) -> Any:
        """Agents that are members already end their generation, and find themselves in the next one with those who wait."""
        if self.is_closed():
            raise api.RendezvousClosedError(f"the rendezvous {self._params.run_id} is closed")
        try:
            if self._worker is None:
                self._worker = self._join()
            else:
                self._ask_all_to_come()
                self._worker.change_members(self._join_s)
        except CoorddError as error:
            self.shutdown()
            kind = api.RendezvousTimeoutError if error.code == "DEADLINE_EXCEEDED" else api.RendezvousConnectionError
            raise kind(f"coordd at {self._params.endpoint}: {error}") from None
        place = self._worker.place
        store: Any = PrefixStore(f"torchrun/{place.generation}", Store(self._worker, timedelta(seconds=self._join_s)))
        return self._as_torch_has_it(store, place.rank, place.size)

    def _join(self) -> _native.Worker:
        endpoint = self._params.endpoint
        if not endpoint:
            raise ValueError("--rdzv-backend coordd: no endpoint: expected --rdzv-endpoint HOST:PORT, where coordd listens")
        if ":" not in endpoint:
            endpoint = f"{endpoint}:{_DEFAULT_PORT}"
        worker = _native.Worker(coordinator=endpoint, job=f"torchrun-{self._params.run_id}", launcher="none",
                                min_workers=self._params.min_nodes, max_workers=self._params.max_nodes, on_failure="raise",
                                join_timeout_seconds=self._join_s)
        os.environ["COORDD_ADDR"] = endpoint  # of the workers that this agent starts
        return worker

    def _as_torch_has_it(self, store, rank: int, size: int) -> Any:
        if not hasattr(api, "RendezvousInfo"):  # torch before 2.4
            return store, rank, size
        arguments = [rank, store, self._params.local_addr]
        takes = len(inspect.signature(api.RendezvousStoreInfo.build).parameters)
        return api.RendezvousInfo(store, rank, size, api.RendezvousStoreInfo.build(*arguments[:takes]))

    # --- what agents tell each other, for the generation that they are in

    def _key(self, what: str) -> str:
        assert self._worker is not None
        return f"torchrun-{what}/{self._worker.place.generation}"

    def _ask_all_to_come(self) -> None:
        self._said("again", 1)

    def _said(self, what: str, number: int = 0) -> bool:
        """False also while coordd is away."""
        try:
            if self._worker is not None and (self._asked is None or self._asked[0] is not self._worker):
                self._asked = (self._worker, Store(self._worker, _ASK))  # one for all questions: torch lets none be freed
            return self._asked is not None and self._worker is not None and self._asked[1].add(self._key(what), number) > 0
        except RuntimeError:
            return False

    def num_nodes_waiting(self) -> int:
        """Above 0: this agent is to come to the next rendezvous: newcomers wait, another agent has gone there, or one is lost."""
        if self._worker is None:
            return 0
        try:
            self._worker.check()
        except CoorddError as error:
            return 1 if error.code == "GENERATION_CHANGED" else 0
        return max(self._worker.newcomers(), int(self._said("again")))

    def is_closed(self) -> bool:
        self._closed = self._closed or self._said("closed")
        return self._closed

    def set_closed(self) -> None:
        self._closed = True
        self._said("closed", 1)

    def shutdown(self) -> bool:
        worker, self._worker = self._worker, None
        if worker is not None:
            worker.shutdown(10.0)
        return True


def handler():
    """What torchrun loads: makes a handler of its parameters."""
    return Rendezvous


def register() -> None:
    """For a torch that does not look for entry points."""
    if "coordd" not in api.rendezvous_handler_registry._registry:
        api.rendezvous_handler_registry.register("coordd", Rendezvous)
