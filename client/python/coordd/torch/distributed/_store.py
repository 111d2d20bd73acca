"""torch.distributed.Store over coordd's key-value service, and init_method="coordd://"."""

import ctypes
import hashlib
import os
import re
import threading
import time
from ctypes import POINTER, byref, c_char_p, c_double, c_int32, c_int64, c_size_t, c_void_p
from datetime import timedelta
from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple
from urllib.parse import parse_qs, urlparse

import torch.distributed as dist
from torch.distributed.rendezvous import register_rendezvous_handler

from coordd import _library, _native
from coordd.exceptions import CoorddError
from coordd.torch.distributed import _bootstrap, _errors

_DEADLINE_EXCEEDED, _INVALID_ARGUMENT, _NOT_FOUND, _OUT_OF_RANGE = (
    _library.STATUS[name] for name in ("DEADLINE_EXCEEDED", "INVALID_ARGUMENT", "NOT_FOUND", "OUT_OF_RANGE"))
_MAX_KEY_BYTES, _MAX_VALUE_BYTES = 248, 64 * 1024
_PART = b"\0coordd value in parts "
_TOKEN = re.compile(re.escape(_PART) + rb"([0-9a-f]+) ([0-9]+)\n")  # stands for the parts of that name
_MAX_LITERAL_BYTES = 4096  # of what is appended as it is
_PREFIX = b"torch/"  # of keys; of the n-th store of a process b"torch-n/"
_SLICE_S = 0.25  # how often a wait lets Ctrl-C through
_PART_WAIT_S = 5.0  # parts are there before their key
_SWAPS = 100  # where others set a key at the same time, before the parts of what they set stay behind
_DEFAULT = timedelta(seconds=300)
_StoreError = getattr(dist, "DistStoreError", RuntimeError)


def _bytes(value) -> bytes:
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, int):
        raise TypeError(f"a value of a Store is bytes or text, found the number {value}: add() counts")
    return bytes(value)


_threads = threading.local()


def _buffer():
    """Room for a value, of this thread."""
    found = getattr(_threads, "buffer", None)
    if found is None:
        found = _threads.buffer = ctypes.create_string_buffer(_MAX_VALUE_BYTES)
    return found


def _part_key(name: str, index: int) -> bytes:
    return f"torch-part/{name}/{index}".encode()


def _parts_of(value: bytes) -> List[bytes]:
    return [key for token in _TOKEN.finditer(value) for key in _keys_of(token)]


def _literals(value: bytes) -> List[Tuple[int, bytes]]:
    """What stands there as it is, and where it begins."""
    found, at = [], 0
    for token in _TOKEN.finditer(value):
        found.append((at, value[at:token.start()]))
        at = token.end()
    return [*found, (at, value[at:])]


def _keys_of(token: "re.Match[bytes]") -> List[bytes]:
    return [_part_key(token[1].decode(), index) for index in range(int(token[2]))]


_alive: "List[Store]" = []  # torch's C++ does not keep the Python half


class Store(dist.Store):  # type: ignore[name-defined]
    """Values of any size under keys of any length, for the members of a job. Thread-safe."""

    def __init__(self, worker: _native.Worker, timeout: timedelta = _DEFAULT, prefix: bytes = _PREFIX):
        super().__init__()
        self._worker, self._prefix = worker, prefix
        self.set_timeout(timeout)  # kept by torch's half, which those in C++ who wrap this one (PrefixStore) set, and nobody tells here
        _alive.append(self)
        library = _library.library()
        self._set_value = library.function("coordd_store_set")
        self._set_value.argtypes = [c_void_p, c_char_p, c_char_p, c_size_t, c_double]
        self._get_value = library.function("coordd_store_get")
        self._get_value.argtypes = [c_void_p, c_char_p, c_void_p, c_size_t, POINTER(c_size_t), c_double]
        self._add_to = library.function("coordd_store_add")
        self._add_to.argtypes = [c_void_p, c_char_p, c_int64, POINTER(c_int64), c_double]
        self._compare = library.function("coordd_store_compare_set")
        self._compare.argtypes = [c_void_p, c_char_p, c_char_p, c_size_t, c_char_p, c_size_t, c_void_p, c_size_t, POINTER(c_size_t),
                                  c_double]
        self._append_to = library.function("coordd_store_append")
        self._append_to.argtypes = [c_void_p, c_char_p, c_char_p, c_size_t, POINTER(c_size_t), c_double]
        self._delete = library.function("coordd_store_delete")
        self._delete.argtypes = [c_void_p, c_char_p, POINTER(c_int32), c_double]
        self._are_there = library.function("coordd_store_check")
        self._are_there.argtypes = [c_void_p, POINTER(c_char_p), c_size_t, POINTER(c_int32), c_double]
        self._get_all = library.function("coordd_store_get_all")
        self._get_all.argtypes = [c_void_p, POINTER(c_char_p), c_size_t, c_void_p, c_size_t, POINTER(c_size_t), c_double]
        self._count = library.function("coordd_store_count")
        self._count.argtypes = [c_void_p, c_char_p, POINTER(c_int64), c_double]

    def clone(self):
        return Store(self._worker, self.timeout, self._prefix)

    # --- one value

    def _wire(self, key: str) -> bytes:
        """The key; of a longer one, or of one with a NUL, its begin, and a hash of all of it."""
        encoded = self._prefix + key.encode()
        if len(encoded) <= _MAX_KEY_BYTES and b"\0" not in encoded:
            return encoded
        return encoded[:170].partition(b"\0")[0].decode(errors="ignore").encode() + b"#" + hashlib.sha256(encoded).hexdigest().encode()

    def _wires(self, keys: Sequence[str]):
        return (c_char_p * max(len(keys), 1))(*[self._wire(key) for key in keys])

    def _failed(self, key: str) -> Exception:
        return _StoreError(f"coordd: key {key!r}: {_library.library().last_error()}")

    def _put(self, key: str, wire: bytes, value: bytes) -> None:
        if self._set_value(self._worker.pointer, wire, value, len(value), self.timeout.total_seconds()) != 0:
            raise self._failed(key)

    def set(self, key, value):
        wire, stored = self._wire(key), self._in_parts(key, _bytes(value))
        before: Optional[bytes] = None
        for _ in range(_SWAPS):
            now = self._swap(key, wire, before, stored)
            if now == stored:
                self._forget_parts(key, before or b"")
                return
            before = now
        self._put(key, wire, stored)

    def _swap(self, key: str, wire: bytes, wanted: Optional[bytes], stored: bytes) -> Optional[bytes]:
        """Puts it under the key if that has what is wanted; what it has then. None: nothing."""
        buffer, size = _buffer(), c_size_t()
        status = self._compare(self._worker.pointer, wire, wanted, len(wanted or b""), stored, len(stored), buffer, _MAX_VALUE_BYTES,
                               byref(size), self.timeout.total_seconds())
        if status == _NOT_FOUND:
            return None
        if status != 0:
            raise self._failed(key)
        return ctypes.string_at(buffer, size.value)

    def _in_parts(self, key: str, value: bytes, most: int = _MAX_VALUE_BYTES) -> bytes:
        """What is to stand under the key: the value, or a token of its parts, which are stored before it."""
        if len(value) <= most and _PART not in value:
            return value
        name = os.urandom(8).hex()
        count = -(-len(value) // _MAX_VALUE_BYTES)
        for index in range(count):
            self._put(key, _part_key(name, index), value[index * _MAX_VALUE_BYTES:(index + 1) * _MAX_VALUE_BYTES])
        return _PART + f"{name} {count}\n".encode()

    def _whole(self, key: str, value: bytes) -> Optional[bytes]:
        """The value of what stands under the key; of what has come since, if its parts have been deleted for that. None: it was
        deleted."""
        end = time.monotonic() + _PART_WAIT_S
        while True:
            whole = self._joined(key, value)
            if whole is not None:
                return whole
            now = self._now(key)
            if now is None:
                return None
            if now == value and time.monotonic() > end:
                raise _StoreError(f"coordd: key {key!r}: a part of its value is missing")
            value = now

    def _joined(self, key: str, value: bytes) -> Optional[bytes]:
        """What was set or appended small, and the parts of what was large, in their order. None: one of them is not there."""
        pieces, at = [], 0  # type: List[bytes], int
        for token in _TOKEN.finditer(value):
            pieces.append(value[at:token.start()])
            at = token.end()
            for wire in _keys_of(token):
                part = self._wait_for(key, wire, _SLICE_S)
                if part is None:
                    return None
                pieces.append(part)
        return b"".join([*pieces, value[at:]])

    def _forget_parts(self, key: str, value: bytes) -> None:
        """Deletes the parts of what stands nowhere any more."""
        for part in _parts_of(value):
            self._delete_wire(key, part)

    def _now(self, key: str) -> Optional[bytes]:
        """What stands under the key; None: nothing."""
        return self._wait_for(key, self._wire(key), 0.25) if self.check([key]) else None

    def _delete_wire(self, key: str, wire: bytes) -> bool:
        deleted = c_int32()
        if self._delete(self._worker.pointer, wire, byref(deleted), self.timeout.total_seconds()) != 0:
            raise self._failed(key)
        return deleted.value != 0

    def _wait_for(self, key: str, wire: bytes, seconds: float) -> Optional[bytes]:
        """None: nobody has set it in time."""
        buffer, size = _buffer(), c_size_t()
        end = time.monotonic() + seconds
        while True:
            left = end - time.monotonic()
            status = self._get_value(self._worker.pointer, wire, buffer, _MAX_VALUE_BYTES, byref(size), max(min(left, _SLICE_S), 0.001))
            if status == 0:
                return ctypes.string_at(buffer, size.value)
            if status != _DEADLINE_EXCEEDED:
                raise self._failed(key)
            if left <= _SLICE_S:
                return None
            self._require_all(key)

    def _require_all(self, key: str) -> None:
        """DistStoreError: a member was lost, which may be the one that would set the key. One that has left has set what it sets."""
        try:
            self._worker.check()
        except CoorddError as error:
            if _errors.LOST.search(str(error)):
                raise _StoreError(f"coordd: nobody has set the key {key!r}: {error}") from None

    def _get(self, key: str, seconds: float) -> Optional[bytes]:
        end = time.monotonic() + seconds
        while True:
            value = self._wait_for(key, self._wire(key), max(end - time.monotonic(), 0.0))
            whole = None if value is None else self._whole(key, value)
            if whole is not None or value is None:
                return whole

    def get(self, key):
        value = self._get(key, self.timeout.total_seconds())
        if value is None:
            raise _StoreError(f"coordd: wait timeout after {self.timeout.total_seconds() * 1000:g}ms: nobody has set the key {key!r}")
        return value

    def add(self, key, value):
        if not -2**63 <= value < 2**63:
            raise OverflowError(f"add to the key {key!r}: {value} does not fit 64 bits")
        total = c_int64()
        if self._add_to(self._worker.pointer, self._wire(key), value, byref(total), self.timeout.total_seconds()) != 0:
            raise self._failed(key)
        return total.value

    def append(self, key, value):
        wire = self._wire(key)
        piece = self._in_parts(key, _bytes(value), _MAX_LITERAL_BYTES)
        end = time.monotonic() + self.timeout.total_seconds()
        try:
            while True:
                status = self._append_to(self._worker.pointer, wire, piece, len(piece), None, self.timeout.total_seconds())
                if status == 0:
                    return
                # INVALID_ARGUMENT: both together have more bytes than coordd keeps under a key.
                if status != _INVALID_ARGUMENT or time.monotonic() > end:
                    raise self._failed(key)
                self._make_room(key, wire)
        except BaseException:
            self._forget_parts(key, piece)
            raise

    def _make_room(self, key: str, wire: bytes) -> None:
        """Puts what has come to 64 KiB under the key into parts, unless others change it just now."""
        before = self._now(key)
        if before is None:
            return
        begin, size = max(((at, len(text)) for at, text in _literals(before)), key=lambda one: one[1])
        if 2 * size >= _MAX_VALUE_BYTES:
            made = self._in_parts(key, before[begin:begin + size], 0)
            after, old = before[:begin] + made + before[begin + size:], b""
        else:  # so many tokens
            whole = self._whole(key, before)
            after = made = self._in_parts(key, whole or b"", 0)
            old = before
        self._forget_parts(key, old if self._swap(key, wire, before, after) == after else made)

    def compare_set(self, key, expected_value, desired_value):
        expected, desired = _bytes(expected_value), _bytes(desired_value)
        wire = self._wire(key)
        wanted: Optional[bytes] = expected or None  # torch's stores expect an empty value of a key that is missing, too
        if len(expected) > _MAX_VALUE_BYTES or _PART in expected:
            wanted = self._now(key)
            whole = None if wanted is None else self._whole(key, wanted)
            if whole != expected:
                return expected if whole is None else whole
        stored = self._in_parts(key, desired)
        while True:
            now = self._swap(key, wire, wanted, stored)
            if now == stored:
                self._forget_parts(key, wanted if wanted is not None and wanted != stored else b"")
                return desired
            whole = None if now is None else self._whole(key, now)
            if whole == expected and now != wanted:  # it stands there in parts, or is empty
                wanted = now
            elif now is None or whole is not None:
                self._forget_parts(key, stored)
                return expected if now is None else whole

    def delete_key(self, key):
        wire, value = self._wire(key), self._now(key)
        deleted = self._delete_wire(key, wire)  # first the key, so that nobody finds it without its parts
        self._forget_parts(key, value or b"")
        return deleted

    # --- several

    def check(self, keys):
        there = c_int32()
        if self._are_there(self._worker.pointer, self._wires(keys), len(keys), byref(there), self.timeout.total_seconds()) != 0:
            raise self._failed(", ".join(keys))
        return there.value != 0

    def num_keys(self):
        count = c_int64()
        if self._count(self._worker.pointer, self._prefix, byref(count), self.timeout.total_seconds()) != 0:
            raise _StoreError(f"coordd: keys cannot be counted: {_library.library().last_error()}")
        return count.value

    def wait(self, keys, timeout=None):
        limit = self.timeout if timeout is None else timeout
        end = time.monotonic() + limit.total_seconds()
        for key in keys:
            if self._wait_for(key, self._wire(key), max(0.0, end - time.monotonic())) is None:
                raise _StoreError(f"coordd: wait timeout after {limit.total_seconds() * 1000:g}ms, keys: {', '.join(keys)}: nobody has "
                                  f"set {key!r}")

    def multi_get(self, keys):
        if not self.check(keys):
            self.wait(keys)  # in slices, so that Ctrl-C gets through
        wires, sizes, room = self._wires(keys), (c_size_t * max(len(keys), 1))(), _MAX_VALUE_BYTES
        while True:
            buffer = ctypes.create_string_buffer(room)
            status = self._get_all(self._worker.pointer, wires, len(keys), buffer, room, sizes, self.timeout.total_seconds())
            if status != _OUT_OF_RANGE:
                break
            room = sum(sizes)
        if status != 0:
            raise self._failed(", ".join(keys))
        values, at = [], 0
        for key, size in zip(keys, sizes):
            whole = self._whole(key, memoryview(buffer)[at:at + size].tobytes())
            values.append(self.get(key) if whole is None else whole)
            at += size
        return values

    def multi_set(self, keys, values):
        if len(keys) != len(values):
            raise ValueError(f"multi_set of {len(keys)} keys: found {len(values)} values")
        for key, value in zip(keys, values):
            self.set(key, value)

    def has_extended_api(self):
        return True

    # As C++ asks for them.
    deleteKey, getNumKeys, hasExtendedApi = delete_key, num_keys, has_extended_api


# --- init_method="coordd://" -----------------------------------------------------------------------------------------

class _Membership:
    """Of this process in a job of stores. Each store of one process has keys of its own: all members make theirs in one order."""

    def __init__(self) -> None:
        self._making = threading.Lock()  # of one job: others do not wait for its members
        self._worker: Optional[_native.Worker] = None
        self._stores = 0

    def store(self, timeout: timedelta, join: Callable[[], _native.Worker]) -> "tuple[Store, _native.Worker]":
        """There may be a worker from before: a group that was destroyed and is made again, a store beside it."""
        with self._making:
            try:
                if self._worker is not None:
                    self._worker.check()
            except CoorddError:  # the job is over, and may be begun again
                self.leave(0.0)
            if self._worker is None:
                self._worker, self._stores = join(), 0
            self._stores += 1
            prefix = _PREFIX if self._stores == 1 else f"torch-{self._stores}/".encode()
            return Store(self._worker, timeout, prefix), self._worker

    def leave(self, seconds: float) -> None:
        worker, self._worker = self._worker, None
        if worker is not None:
            worker.shutdown(seconds)


_memberships: Dict[Tuple[Any, ...], _Membership] = {}


def leave() -> None:
    """At the end of the process."""
    while _memberships:
        _memberships.popitem()[1].leave(10.0)


def connect(coordinator: Optional[str] = None, job: Optional[str] = None, rank: int = -1, size: int = -1,
            timeout: timedelta = _DEFAULT) -> "tuple[Store, int, int]":
    """(store, rank, size) of a member of the job. What is not given is what the launcher says. Collective: all members. Again in the
    same process, with the same arguments: another store, of the same membership."""
    options: Dict[str, Any] = {} if not coordinator else {"coordinator": coordinator}
    launched = _native.launch(**options)
    if size < 1:
        size = launched.size
    if rank < 0:
        rank = launched.rank
    if size < 1:
        raise ValueError("a store of coordd's: no launcher has said how many processes there are: expected a program that coordrun or "
                         "torchrun has started (coordrun -np N -- python ...), or size (of init_process_group: world_size)")
    hint = {"has_launcher_rank": 1, "launcher_rank": rank, "launcher_local_rank": -1} if rank >= 0 else {}
    name = job or f"{launched.job}.store"
    membership = _memberships.setdefault((coordinator, name, rank, size), _Membership())
    store, worker = membership.store(timeout, lambda: _native.Worker(
        job=name, min_workers=size, max_workers=size, on_failure="end", join_timeout_seconds=timeout.total_seconds(), **hint, **options))
    address = coordinator or os.environ.get("COORDD_ADDR", "")
    if address not in ("", "auto"):
        _bootstrap.use(address)
    return store, rank if rank >= 0 else worker.place.rank, size


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
