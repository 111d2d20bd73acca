"""Names of collectives on GPUs, and what is under way. Ranks name them by counting, since all members of a group call them in one order; those that look alike
take turns with few names, each with the structure that the library is given, so that a call makes none."""

import collections
import threading
from typing import Any, Deque, Dict, Iterable, List, Optional, Sequence, Tuple

import torch

from coordd import _library, _native
from coordd.torch._streams import STREAM_WORD, place_on_device
from coordd.torch.distributed._gpu_works import Enqueued

# Calls that look alike share this many names, and wait for the one before of their name to be on the device. Few, since what repeats
# within few steps is executed without asking coordd.
_TURNS = 2
_MOST_KINDS = 1024  # of calls that look alike; what has other sizes each time shares one


class Turn:
    """A name. Used by one thread at a time."""

    __slots__ = ("last", "name", "_made_for", "_prepared")

    def __init__(self, name: str):
        self.name = name
        self.last: Optional[Enqueued] = None  # of this name, if it may be under way
        self._made_for: Tuple[Any, ...] = ()
        self._prepared: Any = None

    def describe(self, tensor: torch.Tensor, out_of: int, into: int, count: int, dtype: int, capacity: int, stream: int) -> _native.Prepared:
        """`count` elements at `out_of`; `capacity`: bytes at `into`; `tensor`: one on the device; `stream`: a cudaStream_t."""
        made_for = (count, dtype, tensor.device)
        if made_for != self._made_for:
            self._prepared, self._made_for = _native.Prepared(self.name, [count], dtype), made_for
            place_on_device(self._prepared.structure, tensor)
        prepared = self._prepared
        words = prepared.words
        words[_native.INPUT_WORD] = out_of
        words[_native.OUTPUT_WORD] = into
        words[_native.CAPACITY_WORD] = capacity
        words[STREAM_WORD] = stream
        return prepared


class Kind:
    """Calls that look alike."""

    __slots__ = ("function", "_at", "_turns")

    def __init__(self, key: Tuple[Any, ...]):
        self.function = _library.library().function(key[0])
        self._turns = [Turn("/".join(map(str, ("torch.gpu", *key, number)))) for number in range(_TURNS)]
        self._at = 0

    def next(self) -> Turn:
        self._at = (self._at + 1) % _TURNS
        return self._turns[self._at]


class Kinds:
    """Those of a group, by function and by what is equal on all members. Used by one thread at a time."""

    def __init__(self) -> None:
        self._kinds: Dict[Tuple[Any, ...], Kind] = {}

    def of(self, function: str, alike: Tuple[Any, ...]) -> Kind:
        key = (function, *alike)
        kind = self._kinds.get(key)
        if kind is None:
            if len(self._kinds) >= _MOST_KINDS:
                key = (function,)
            kind = self._kinds.get(key) or self._kinds.setdefault(key, Kind(key))
        return kind


def memory_of(tensor: torch.Tensor) -> int:
    """Of all tensors that share it."""
    return tensor.untyped_storage().data_ptr()


class UnderWay:
    """Calls that the device may not be through with, in their order, and who uses what. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._works: Deque[Tuple[Enqueued, Sequence[Turn]]] = collections.deque()
        self._users: Dict[int, Enqueued] = {}  # by memory: the collective that was called last with it

    def add(self, work: Enqueued, memories: Sequence[int], turns: Sequence[Turn]) -> None:
        """Until the device is through, also where nobody waits. A collective has `turns`; a message has none."""
        work.memories = memories
        with self._lock:
            works = self._works
            works.append((work, turns))
            if turns:
                for memory in memories:
                    self._users[memory] = work
                for turn in turns:
                    turn.last = work
            while works and works[0][0].done():
                self._forget(*works.popleft())

    def _forget(self, work: Enqueued, turns: Sequence[Turn]) -> None:
        users = self._users
        for memory in work.memories:
            if users.get(memory) is work:
                del users[memory]
        for turn in turns:
            if turn.last is work:
                turn.last = None

    def users_of(self, memories: Iterable[int]) -> List[Enqueued]:
        if not self._users:
            return []
        with self._lock:
            found = [user for user in map(self._users.get, memories) if user is not None]
        return found if len(found) < 2 else list(dict.fromkeys(found))

    def collectives(self) -> List[Enqueued]:
        with self._lock:
            return [work for work, turns in self._works if turns]
