"""Process sets: subgroups of the ranks that run collectives of their own, without waiting for each other.

    even = coordd.torch.ProcessSet([0, 2])
    coordd.torch.init(process_sets=[even])             # static: known from the start
    odd = coordd.torch.add_process_set([1, 3])         # dynamic: all ranks call it, members or not, in the same order
    if even.included():
        coordd.torch.allreduce(tensor, process_set=even)

In an elastic job a set goes on with those of its ranks that are left; when none is, it is not registered any more.

Ranks in arguments (a broadcast's root) are always ranks in the job, also inside a set.
"""

from ctypes import byref, c_double, c_int32, c_size_t
from typing import Callable, Dict, List, Optional, Sequence, Set, Tuple, Union

from coordd import _library, _native, _running
from coordd.exceptions import InvalidArgumentError

__all__ = ["ProcessSet", "global_process_set", "add_process_set", "remove_process_set", "process_set_by_id",
           "process_sets", "process_set_included"]

ADD_TIMEOUT_S = 600.0  # as long as a collective waits for the other ranks


class ProcessSet:
    """A subgroup of ranks, in ascending order. It works once it is registered: given to init(), or to
    add_process_set(); until then, and after its removal or shutdown(), ``process_set_id`` is None.

    ranks_or_comm: ranks in the job, each once; or an mpi4py communicator whose processes carry their MPI rank as coordd
                   rank, as they do when mpirun started them.
    """

    def __init__(self, ranks_or_comm) -> None:
        self.process_set_id: Optional[int] = None
        self.ranks: Optional[List[int]] = None
        self.mpi_comm = None
        if hasattr(ranks_or_comm, "Get_rank"):
            self.mpi_comm = ranks_or_comm
            return
        try:
            ranks = sorted(ranks_or_comm)
        except TypeError:
            raise InvalidArgumentError(f"a process set is made of a list of ranks or of an mpi4py communicator, found "
                                       f"{type(ranks_or_comm).__name__}", "INVALID_ARGUMENT") from None
        if any(not isinstance(rank, int) or rank < 0 for rank in ranks) or len(set(ranks)) != len(ranks):
            raise InvalidArgumentError(f"a process set's ranks are {ranks}: expected numbers from 0, each once",
                                       "INVALID_ARGUMENT")
        self.ranks = ranks

    def size(self) -> Optional[int]:
        """Number of its ranks; None while it is not registered."""
        return None if self.process_set_id is None else len(self._members())

    def rank(self) -> Optional[int]:
        """This process's place in it, from 0; None while it is not registered. ValueError: not a member."""
        if self.process_set_id is None:
            return None
        own = _own_rank()
        if self.process_set_id == 0:
            return own
        try:
            return self._members().index(own)
        except ValueError:
            raise InvalidArgumentError(f"rank {own} is not in process set {self.process_set_id}, whose ranks are "
                                       f"{self.ranks}", "INVALID_ARGUMENT", rank=own) from None

    def included(self) -> Optional[bool]:
        """Whether this process is in it; None while it is not registered."""
        if self.process_set_id is None:
            return None
        return _own_rank() in self._members()

    def _members(self) -> List[int]:
        if self.process_set_id == 0:
            return list(range(_place().size))
        return self.ranks or []

    def __str__(self) -> str:
        return f"ProcessSet(process_set_id={self.process_set_id}, ranks={self.ranks})"

    __repr__ = __str__


global_process_set = ProcessSet([])  # all ranks; its list of ranks is filled by init()
global_process_set.process_set_id = 0

_registered: Dict[int, List[ProcessSet]] = {0: [global_process_set]}
_named: Set[int] = set()  # numbers of those that their members have made alone
_survived: Set[int] = set()  # numbers of those of the membership before, which may be added once more


def add_process_set(process_set: Union[ProcessSet, Sequence[int]], *, name: Optional[str] = None) -> ProcessSet:
    """Registers a set while the job runs. Collective: every rank of the job calls it, member or not, with the same ranks
    and in the same order as its other additions and removals; blocks until all have. Returns the set.

    Sets outlive a change of members, with those of their ranks that are left. A program that adds them anew all the same is
    given the set that there is, once after each change.

    name: the members alone call it, all with this name, and remove_process_set() likewise; in no order with other additions.
          There may be another set of the same ranks. It ends when the members of the job change.

    ValueError: a rank that does not exist, or a set of these ranks is there already. HorovodInternalError: ranks disagree,
    or coordd is not initialised.
    """
    own = _running.worker()
    if not isinstance(process_set, ProcessSet):
        process_set = ProcessSet(process_set)
    _resolve_communicator(process_set)
    size = own.place.size
    ranks = process_set.ranks or []
    if not ranks or ranks[-1] >= size:
        raise InvalidArgumentError(f"a process set's ranks are {ranks}: expected one or more of the job's "
                                   f"ranks, 0 to {size - 1}", "INVALID_ARGUMENT")
    if name is not None:
        return _bind(process_set, _add_members(own, name, ranks))
    for number in sorted(_survived):
        if _registered[number][0]._members() == ranks:
            _survived.remove(number)
            return _bind(process_set, number)
    for number, known in _registered.items():
        if known[0]._members() == ranks and number not in _named:
            raise InvalidArgumentError(f"a process set of the ranks {ranks} is registered already, with "
                                       f"number {number}", "ALREADY_EXISTS")
    return _bind(process_set, own.add_process_set(ranks, ADD_TIMEOUT_S))


def _add_members(own: _native.Worker, name: str, ranks: List[int]) -> int:
    number = c_int32()
    function = _library.library().function("coordd_process_set_add_members")
    status = function(own.pointer, name.encode(), (c_int32 * len(ranks))(*ranks), c_size_t(len(ranks)), c_double(ADD_TIMEOUT_S),
                      byref(number))
    if status != 0:
        raise _native.call_error(status)
    _named.add(number.value)
    return number.value


def _bind(process_set: ProcessSet, number: int) -> ProcessSet:
    process_set.process_set_id = number
    known = _registered.setdefault(number, [])
    if not any(one is process_set for one in known):
        known.append(process_set)
    return process_set


def remove_process_set(process_set: ProcessSet) -> bool:
    """Takes a set away again. Collective, as add_process_set. False: it is the set of all ranks, which stays.

    ValueError: it is not registered.
    """
    own = _running.worker()
    number = process_set.process_set_id
    if number == 0:
        return False
    if number not in _registered:
        raise InvalidArgumentError(f"{process_set} is not registered", "INVALID_ARGUMENT")
    own.remove_process_set(number, ADD_TIMEOUT_S)
    _unregister(number)
    return True


def _unregister(number: int) -> None:
    _survived.discard(number)
    _named.discard(number)
    for one in _registered.pop(number):
        one.process_set_id = None


def process_set_by_id(process_set_id: int) -> ProcessSet:
    """The registered set with this number. ValueError: there is none."""
    try:
        return _registered[process_set_id][0]
    except KeyError:
        raise InvalidArgumentError(f"there is no process set {process_set_id}; there are {sorted(_registered)}",
                                   "NOT_FOUND") from None


def process_sets() -> List[ProcessSet]:
    """All registered sets, the set of all ranks first."""
    return [_registered[number][0] for number in sorted(_registered)]


def process_set_included(process_set_id: int) -> bool:
    """Whether this process is in the set with this number."""
    return bool(process_set_by_id(process_set_id).included())


def register_initial(sets: Sequence[ProcessSet]) -> None:
    """What init() does: fills the set of all ranks, then registers `sets` in their order. A newcomer finds them: the others
    have registered them as the first ones, with the numbers from 1, and some may have ended since."""
    global_process_set.ranks = list(range(_place().size))
    numbers, found = _numbers()
    if found == 0:
        for process_set in sets:
            add_process_set(process_set)
        return
    for number, process_set in enumerate(sets, 1):
        if number in numbers:
            _bind(process_set, number)
    follow()


def follow() -> None:
    """What a change of members does: all sets have the ranks that are left of them, and those of which none is are not
    registered any more."""
    numbers, _ = _numbers()
    for number in [number for number in _registered if number != 0 and number not in numbers]:
        _unregister(number)
    for number in numbers:
        ranks = _ranks_of(number)
        for one in _registered.setdefault(number, [ProcessSet(ranks)]):
            one.process_set_id = number
            one.ranks = ranks
    _survived.clear()
    _survived.update(numbers)
    global_process_set.ranks = list(range(_place().size))


def _numbers() -> Tuple[List[int], int]:
    """Those of the sets that there are, without 0; and the highest that there had been when this process became a member."""
    function = _library.library().function("coordd_process_set_list")
    found = c_int32()
    return _all_of(lambda pointer, *room: function(pointer, *room, byref(found))), found.value


def _ranks_of(number: int) -> List[int]:
    function = _library.library().function("coordd_process_set_ranks")
    return _all_of(lambda pointer, *room: function(pointer, c_int32(number), *room))


def _all_of(fill: Callable) -> List[int]:
    """What `fill(worker, room, capacity, count)` has to say, which tells the count also where there is no room for it."""
    count = c_size_t(64)
    while True:
        capacity = count.value
        room = (c_int32 * max(1, capacity))()
        status = fill(_running.worker().pointer, room, c_size_t(capacity), byref(count))
        if status == 0:
            return list(room[:count.value])
        if count.value <= capacity:
            raise _native.call_error(status)


def unregister_all() -> None:
    """What shutdown() does: no set but that of all ranks is registered any more. Sets keep their ranks, so that they can
    be given to init() again."""
    for number in [number for number in _registered if number != 0]:
        _unregister(number)
    global_process_set.ranks = []


def _resolve_communicator(process_set: ProcessSet) -> None:
    if process_set.ranks is None and process_set.mpi_comm is not None:
        process_set.ranks = sorted(process_set.mpi_comm.allgather(_own_rank()))


def _place():
    return _running.place()


def _own_rank() -> int:
    return _place().rank
