"""torch.distributed.Store over coordd's key-value service, and init_method="coordd://"."""

import ctypes
import hashlib
import os
import re
import time
from ctypes import POINTER, byref, c_char_p, c_double, c_int64, c_size_t, c_void_p
from datetime import timedelta
from typing import Any, Dict, List, Optional
from urllib.parse import parse_qs, urlparse

import torch.distributed as dist
from torch.distributed.rendezvous import register_rendezvous_handler

from coordd import _library, _native
from coordd.exceptions import CoorddError
from coordd.torch.distributed import _bootstrap

_DEADLINE_EXCEEDED = _library.STATUS["DEADLINE_EXCEEDED"]
_MAX_KEY_BYTES, _MAX_VALUE_BYTES = 256, 64 * 1024
_PART = b"\0coordd value in parts "
_SLICE_S = 0.25  # how often a wait lets Ctrl-C through
_LOOK_S = 0.1  # an answer of coordd to a question that does not wait
_DEFAULT = timedelta(seconds=300)
_StoreError = getattr(dist, "DistStoreError", RuntimeError)


def _wire_key(key: str) -> bytes:
    """The key; of a longer one its begin, and a hash of all of it."""
    encoded = b"torch/" + key.encode()
    if len(encoded) <= _MAX_KEY_BYTES:
        return encoded
    return encoded[:180].decode(errors="ignore").encode() + b"#" + hashlib.sha256(encoded).hexdigest().encode()


_alive: "List[Store]" = []  # torch's C++ does not keep the Python half


class Store(dist.Store):  # type: ignore[name-defined]
    """Values of any size under keys of any length, for the members of a job. Thread-safe.

    coordd has no compare_set, no deletion and no count of keys yet: compare_set() and num_keys() raise NotImplementedError, and
    delete_key() deletes nothing, which it says by False."""

    def __init__(self, worker: _native.Worker, timeout: timedelta = _DEFAULT):
        super().__init__()
        self._worker, self._limit = worker, timeout
        _alive.append(self)
        library = _library.library()
        self._set_value = library.function("coordd_store_set")
        self._set_value.argtypes = [c_void_p, c_char_p, c_char_p, c_size_t, c_double]
        self._get_value = library.function("coordd_store_get")
        self._get_value.argtypes = [c_void_p, c_char_p, c_void_p, c_size_t, POINTER(c_size_t), c_double]
        self._add_to = library.function("coordd_store_add")
        self._add_to.argtypes = [c_void_p, c_char_p, c_int64, POINTER(c_int64), c_double]

    @property
    def timeout(self):
        return self._limit

    def set_timeout(self, timeout):
        self._limit = timeout

    def clone(self):
        return Store(self._worker, self._limit)

    # --- one value

    def _failed(self, key: str) -> Exception:
        return _StoreError(f"coordd: key {key!r}: {_library.library().last_error()}")

    def _put(self, key: str, wire: bytes, value: bytes) -> None:
        if self._set_value(self._worker.pointer, wire, value, len(value), self._limit.total_seconds()) != 0:
            raise self._failed(key)

    def set(self, key, value):
        value = value.encode() if isinstance(value, str) else bytes(value)
        wire = _wire_key(key)
        if len(value) > _MAX_VALUE_BYTES or value.startswith(_PART):
            name = os.urandom(8).hex()
            count = -(-len(value) // _MAX_VALUE_BYTES)
            for index in range(count):  # before the key itself, which says that they are there
                part = value[index * _MAX_VALUE_BYTES:(index + 1) * _MAX_VALUE_BYTES]
                self._put(key, f"torch-part/{name}/{index}".encode(), part)
            value = _PART + f"{name} {count}".encode()
        self._put(key, wire, value)

    def _wait_for(self, key: str, wire: bytes, seconds: float) -> Optional[bytes]:
        """None: nobody has set it in time."""
        buffer, size = ctypes.create_string_buffer(_MAX_VALUE_BYTES), c_size_t()
        end = time.monotonic() + seconds
        while True:
            left = end - time.monotonic()
            status = self._get_value(self._worker.pointer, wire, buffer, _MAX_VALUE_BYTES, byref(size), max(min(left, _SLICE_S), 0.001))
            if status == 0:
                return buffer.raw[:size.value]
            if status != _DEADLINE_EXCEEDED:
                raise self._failed(key)
            if left <= _SLICE_S:
                return None

    def _get(self, key: str, seconds: float) -> Optional[bytes]:
        value = self._wait_for(key, _wire_key(key), seconds)
        if value is None or not value.startswith(_PART):
            return value
        name, count = value[len(_PART):].decode().split()
        parts = [self._wait_for(key, f"torch-part/{name}/{index}".encode(), _DEFAULT.total_seconds()) for index in range(int(count))]
        return b"".join(part or b"" for part in parts)

    def get(self, key):
        value = self._get(key, self._limit.total_seconds())
        if value is None:
            raise _StoreError(f"coordd: wait timeout after {self._limit.total_seconds() * 1000:g}ms: nobody has set the key {key!r}")
        return value

    def add(self, key, value):
        total = c_int64()
        if self._add_to(self._worker.pointer, _wire_key(key), value, byref(total), self._limit.total_seconds()) != 0:
            raise self._failed(key)
        return total.value

    # --- several

    def check(self, keys):
        return all(self._wait_for(key, _wire_key(key), _LOOK_S) is not None for key in keys)

    def wait(self, keys, timeout=None):
        limit = self._limit if timeout is None else timeout
        end = time.monotonic() + limit.total_seconds()
        for key in keys:
            if self._wait_for(key, _wire_key(key), max(0.0, end - time.monotonic())) is None:
                raise _StoreError(f"coordd: wait timeout after {limit.total_seconds() * 1000:g}ms, keys: {', '.join(keys)}: nobody has "
                                  f"set {key!r}")

    def multi_get(self, keys):
        return [self.get(key) for key in keys]

    def multi_set(self, keys, values):
        for key, value in zip(keys, values):
            self.set(key, value)

    def has_extended_api(self):
        return False

    # --- what coordd has not

    def delete_key(self, key):
        return False

    def compare_set(self, key, expected_value, desired_value):
        raise NotImplementedError(f"compare_set of the key {key!r}: coordd's store has no such call yet")

    def num_keys(self):
        raise NotImplementedError("num_keys: coordd's store does not count keys yet")

    # As C++ asks for them.
    deleteKey, getNumKeys, hasExtendedApi, setTimeout = delete_key, num_keys, has_extended_api, set_timeout


# --- init_method="coordd://" -----------------------------------------------------------------------------------------

_workers: List[_native.Worker] = []


def leave() -> None:
    """At the end of the process."""
    while _workers:
        _workers.pop().shutdown(10.0)


def connect(coordinator: Optional[str] = None, job: Optional[str] = None, rank: int = -1, size: int = -1,
            timeout: timedelta = _DEFAULT) -> "tuple[Store, int, int]":
    """(store, rank, size) of a member of the job. What is not given is what the launcher says. Collective: all members."""
    options: Dict[str, Any] = {} if not coordinator else {"coordinator": coordinator}
    launched = _native.launch(**options)
    if size < 1:
        size = launched.size
    if rank < 0:
        rank = launched.rank
    if size < 1:
        raise ValueError('init_method="coordd://": no launcher has said how many processes there are: give world_size')
    hint = {"has_launcher_rank": 1, "launcher_rank": rank, "launcher_local_rank": -1} if rank >= 0 else {}
    worker = _native.Worker(job=job or f"{launched.job}.store", min_workers=size, max_workers=size, on_failure="end",
                            join_timeout_seconds=timeout.total_seconds(), **hint, **options)
    _workers.append(worker)
    address = coordinator or os.environ.get("COORDD_ADDR", "")
    if address not in ("", "auto"):
        _bootstrap.use(address)
    return Store(worker, timeout), rank if rank >= 0 else worker.place.rank, size


def _rendezvous(url: str, timeout: timedelta = _DEFAULT, **_):
    """coordd://[HOST:PORT][/JOB][?rank=R&world_size=N]"""
    parsed = urlparse(url)
    query = {key: values[-1] for key, values in parse_qs(parsed.query).items()}
    if parsed.path and not re.fullmatch(r"/[^/]*", parsed.path):
        raise ValueError(f"init_method {url!r}: expected coordd://HOST:PORT/JOB, or coordd:// under coordrun")
    try:
        yield connect(parsed.netloc or None, parsed.path.strip("/") or None, int(query.get("rank", -1)),
                      int(query.get("world_size", -1)), timeout)
    except CoorddError as error:
        raise _StoreError(f"init_method {url!r}: {error}") from None
    raise RuntimeError("coordd:// cannot be asked again")


def register() -> None:
    try:
        register_rendezvous_handler("coordd", _rendezvous)
    except RuntimeError:
        pass  # it is there
