"""coordd as the rendezvous of jax.distributed."""

import os
import socket
from typing import Any, Optional

import jax

from coordd import _basics, _store

_PATIENCE_S = 300.0


def _own_address() -> str:
    """The address of this host on the way to coordd, which the others reach, too."""
    host, _, port = os.environ.get("COORDD_ADDR", "").rpartition(":")
    if not host or not port.isdigit():
        return "127.0.0.1"
    family, kind, protocol, _, address = socket.getaddrinfo(host.strip("[]"), int(port), type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, kind, protocol) as probe:
        probe.connect(address)  # sends nothing
        return probe.getsockname()[0]


def _free_port(address: str) -> int:
    with socket.create_server((address, 0), family=socket.AF_INET6 if ":" in address else socket.AF_INET) as probe:
        return probe.getsockname()[1]


def initialize(coordinator_address: Optional[str] = None, **arguments: Any) -> None:
    """init(), then jax.distributed.initialize() with ranks of coordd's, so that jax.devices() are those of all ranks. Rank 0 chooses the
    coordinator's address and tells it to the others, unless it is given. `arguments`: of jax.distributed.initialize(). JAX's own
    collectives carry the data then (Gloo on the host, NCCL on GPUs), and do not go on without a rank."""
    _basics.init()
    place, worker = _basics.place(), _basics.worker()
    key = f"jax.distributed.{place.generation}"
    if coordinator_address is None:
        if place.rank == 0:
            address = _own_address()
            shown = f"[{address}]" if ":" in address else address
            _store.put(worker, key, f"{shown}:{_free_port(address)}".encode(), _PATIENCE_S)
        coordinator_address = _store.get(worker, key, _PATIENCE_S).decode()
    jax.distributed.initialize(coordinator_address, place.size, place.rank, **arguments)
