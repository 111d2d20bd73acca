"""coordd as the rendezvous of jax.distributed."""

import ctypes
import socket
from typing import Any, Optional

import jax

from coordd import _basics, _library, _native, _store

_PATIENCE_S = 300.0
_ADDRESS_BYTES = 64  # COORDD_HOST_ADDRESS_BYTES of coordd.h


def _host_address(worker: "_native.Worker") -> str:
    """By which the other ranks reach what listens on this machine."""
    text = ctypes.create_string_buffer(_ADDRESS_BYTES)
    status = _library.library().function("coordd_worker_host_address")(worker.pointer, text, ctypes.c_size_t(len(text)))
    if status != 0:
        raise _native.call_error(status)
    return text.value.decode()


def _free_port(address: str) -> int:
    with socket.create_server((address, 0), family=socket.AF_INET6 if ":" in address else socket.AF_INET) as probe:
        return probe.getsockname()[1]


def initialize(coordinator_address: Optional[str] = None, **arguments: Any) -> None:
    """init(), then jax.distributed.initialize() with ranks of coordd's, so that jax.devices() are those of all ranks. Rank 0 chooses the
    coordinator's address, one that all nodes reach, and tells it to the others by coordd's store, unless it is given. `arguments`: of
    jax.distributed.initialize(). JAX's own collectives carry the data then (Gloo on the host, NCCL on GPUs), and do not go on without a
    rank."""
    _basics.init()
    place, worker = _basics.place(), _basics.worker()
    key = f"jax.distributed.{place.generation}"
    if coordinator_address is None:
        if place.rank == 0:
            address = _host_address(worker)
            shown = f"[{address}]" if ":" in address else address
            _store.put(worker, key, f"{shown}:{_free_port(address)}".encode(), _PATIENCE_S)
        coordinator_address = _store.get(worker, key, _PATIENCE_S).decode()
    jax.distributed.initialize(coordinator_address, place.size, place.rank, **arguments)
