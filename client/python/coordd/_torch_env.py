"""RANK, WORLD_SIZE, MASTER_ADDR and the like, which coordrun sets for torch.distributed: what holds when a worker starts.
init() and each change of members make them true again for programs that use coordd, in os.environ; those of `-x` and of
`--no-torch-env` are left alone.

The store of torch's rank 0 then has to be on the host of the new rank 0, and at another port: the old one may still be
listened to. Rank 0 picks it and tells the others through coordd's store.
"""

import os
import socket
from typing import Optional, Tuple

from coordd import _native, _store
from coordd.exceptions import CoorddError

MARKER = "COORDD_TORCH_ENV"  # the names, with commas between them
_AT_COORDINATOR = "@"  # rank 0 is on coordd's machine, which each rank reaches by an address that it knows
_TIMEOUT_S = 10.0  # rank 0 is as far as we are

_reserved: Optional[socket.socket] = None  # bound without listening, so that nobody but rank 0's store gets the port


def follow(worker: "_native.Worker", place: "_native.Place") -> None:
    """Called with each new place. Collective where the place of rank 0 may be another one than coordrun has planned."""
    names = [name for name in os.environ.get(MARKER, "").split(",") if name]
    if not names:
        return
    # Ranks of a node are consecutive, and its number is known where all nodes have as many.
    group = place.rank // place.local_size if place.homogeneous else None
    known = {"RANK": place.rank, "WORLD_SIZE": place.size, "LOCAL_RANK": place.local_rank,
             "LOCAL_WORLD_SIZE": place.local_size, "GROUP_RANK": group}
    for name in names:
        if known.get(name) is not None:
            os.environ[name] = str(known[name])
    if {"MASTER_ADDR", "MASTER_PORT"} & set(names) and _rank_zero_may_be_elsewhere(place):
        try:
            address, port = _agree_on_master(worker, place)
        except CoorddError:  # this generation has ended, too, which the program's next collective says
            return
        for name, value in (("MASTER_ADDR", address), ("MASTER_PORT", str(port))):
            if name in names:
                os.environ[name] = value


def _rank_zero_may_be_elsewhere(place: "_native.Place") -> bool:
    """The same on all ranks: after a change of members, in a job that may begin with fewer, and where the program's wrapper
    may have named nodes and labels that coordrun does not know."""
    return place.generation > 1 or any(os.environ.get(name) for name in
                                       ("COORDD_MIN_WORKERS", "COORDD_TOPOLOGY", "COORDD_NODE_ID"))


def _agree_on_master(worker: "_native.Worker", place: "_native.Place") -> Tuple[str, int]:
    key = f"coordd.torch.master/{place.generation}"
    coordinator = os.environ.get("COORDD_ADDR", "").rpartition(":")[0].strip("[]")
    if place.rank == 0:
        own = _address_towards(coordinator)
        _store.put(worker, key, f"{_AT_COORDINATOR if own == coordinator else own} {_reserve()}".encode(), _TIMEOUT_S)
    address, port = _store.get(worker, key, _TIMEOUT_S).decode().split()
    return (coordinator if address == _AT_COORDINATOR else address), int(port)


def _address_towards(host: str) -> str:
    """The address from which this machine reaches that one, as whoever reaches it reaches us."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, 9, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind, protocol) as one:
            one.connect(address)
            own = one.getsockname()[0]
            return host if own == address[0] else own
    except OSError:
        return host


def _reserve() -> int:
    """A port that is kept free for the store: see client/coordrun/process/master_port.h."""
    global _reserved
    first, _, last = os.environ.get("COORDD_PORT_RANGE", "0").partition("-")
    for port in range(int(last or first), int(first) - 1, -1):
        family = socket.AF_INET6 if socket.has_dualstack_ipv6() else socket.AF_INET
        one = socket.socket(family, socket.SOCK_STREAM)
        try:
            if family == socket.AF_INET6:
                one.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
            one.bind(("::" if family == socket.AF_INET6 else "0.0.0.0", port))
        except OSError:
            one.close()
            continue
        one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        _reserved = one
        return one.getsockname()[1]
    raise CoorddError("no port of COORDD_PORT_RANGE is free for torch's rank 0 (MASTER_PORT)", "UNAVAILABLE")
