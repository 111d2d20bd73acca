"""Workers, works and submissions over the C interface; knows nothing of any framework: buffers are addresses.

A submission from Python has to be cheap, since a training step makes hundreds: what a submission needs besides its two
addresses (name, shape, dtype, options) is put into C structures once and used again as long as it stays the same.
"""

import array
import ctypes
import os
import sys
import time
from ctypes import byref, c_double, c_int32, c_int64, c_size_t, c_void_p
from typing import Any, Callable, Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple, Type, Union

from coordd import _factors, _library, _own_process
from coordd._library import STATUS, STATUS_NAMES
from coordd._names import wire_name
from coordd._prepared_store import MAX_PREPARED
from coordd.exceptions import CoorddError, HorovodInternalError, InvalidArgumentError, UnsupportedError

# A wait in C ends at least this often, so that Ctrl-C reaches a Python program that waits for other ranks.
_WAIT_SLICE = c_double(0.25)
_DEADLINE_EXCEEDED = STATUS["DEADLINE_EXCEEDED"]

SHUTDOWN_TIMEOUT_S = 30.0

_OF_THE_CALL = {STATUS["INVALID_ARGUMENT"], STATUS["ALREADY_EXISTS"], STATUS["OUT_OF_RANGE"]}


def _status_name(status: int) -> str:
    if status == STATUS["GENERATION_CHANGED"]:
        return "GENERATION_CHANGED"
    return STATUS_NAMES[status] if 0 <= status < len(STATUS_NAMES) else str(status)


def call_error(status: int, tensor: Optional[str] = None) -> CoorddError:
    """The exception for a call of this thread that just failed: the caller's mistakes are ValueErrors."""
    name = _status_name(status)
    message = _library.library().last_error() or f"coordd: {name}"
    if status == STATUS["ALREADY_EXISTS"] and any(work.name == tensor for work, _ in _kept):
        message += ("; an earlier call was interrupted (Ctrl-C) and still waits for the other ranks: finish_interrupted() "
                    "waits for it, and this call is then the next one of this name")
    kind: Type[CoorddError] = HorovodInternalError
    # A program that is told of a generation's end begins anew; for want of a preparation it would do so for ever.
    if status in _OF_THE_CALL or (status == STATUS["FAILED_PRECONDITION"] and "CUDA graph" in message):
        kind = InvalidArgumentError
    elif status == STATUS["UNIMPLEMENTED"]:
        kind = UnsupportedError
    return kind(message, name, tensor=tensor)


def collective_error(status: int, tensor: Optional[str] = None) -> HorovodInternalError:
    """The exception for a collective that failed, also where the ranks' arguments disagreed."""
    name = _status_name(status)
    return HorovodInternalError(_library.library().last_error() or f"coordd: {name}", name, tensor=tensor)


class Place(NamedTuple):
    """Where this process is in its generation."""
    generation: int
    rank: int
    size: int
    local_rank: int
    local_size: int
    cross_rank: int
    cross_size: int
    nodes: int
    homogeneous: int


OptionValue = Union[str, int, float]


def _options_structure(options: Mapping[str, OptionValue]) -> _library.Options:
    structure = _library.initialised(_library.Options())
    for key, value in options.items():
        setattr(structure, key, value.encode() if isinstance(value, str) else value)
    return structure


class Launch(NamedTuple):
    """What this process was told about itself: by options, COORDD_* variables, or its launcher. -1: not said."""
    launcher: str
    job: str
    rank: int
    size: int


def launch(**options: OptionValue) -> Launch:
    """Needs no coordd. ValueError: names the option or the variable."""
    library = _library.library()
    library.show_environment()
    found = _library.initialised(_library.Launch())
    status = library.quick.coordd_launch_place(byref(_options_structure(options)), byref(found))
    if status != 0:
        raise call_error(status)
    return Launch(found.launcher.decode(errors="replace"), found.job.decode(errors="replace"), found.rank, found.size)


class Worker:
    """This process as a member of a job. Thread-safe. Freed when nobody refers to it any more, so that a call that is
    still under way in another thread never meets a freed one."""

    def __init__(self, **options: OptionValue):
        """Joins and waits for the other members. `options` are members of coordd_options_t; texts are str."""
        _own_process.require()
        self._library = _library.library()
        self._pid = os.getpid()
        self.pointer = c_void_p()
        self._callbacks: List[Any] = []  # that the library may call
        self._library.show_environment()
        status = self._library.blocking.coordd_worker_start(byref(_options_structure(options)), byref(self.pointer))
        if status != 0:
            raise call_error(status)
        self.place = self.read_place()

    def read_place(self) -> Place:
        """As of now: with on_failure="continue" it changes by itself."""
        placement = _library.initialised(_library.Placement())
        status = self._library.quick.coordd_worker_placement(self.pointer, byref(placement))
        if status != 0:
            raise call_error(status)
        return Place(*(getattr(placement, field) for field in Place._fields))

    def await_generation(self, timeout_seconds: float) -> Place:
        """After an error with the code GENERATION_CHANGED (options ``on_failure="raise"``): waits until the survivors have
        formed the next generation, and takes note of it; the new place, which ``place`` is from then on. Can be interrupted
        by Ctrl-C. HorovodInternalError: no generation follows, or not in time."""
        return self._next_place(self._library.blocking.coordd_worker_await_generation, timeout_seconds)

    def change_members(self, timeout_seconds: float, agreed_in: int = 0) -> Place:
        """Collective: all ranks have come to a point at which others may join them, and have agreed to it; with
        on_failure="continue" by a result of the generation `agreed_in`. Otherwise as await_generation()."""
        return self._next_place(self._library.blocking.coordd_worker_change_members_of, timeout_seconds, c_int64(agreed_in))

    def on_generation(self, entered) -> None:
        """With on_failure="continue": has ``entered(place)`` called for every generation that follows, before any result of it,
        on a thread of the library's. It must not wait for a collective."""

        def call(_user, placement):
            entered(Place(*(getattr(placement.contents, field) for field in Place._fields)))

        self._callbacks.append(_library.Entered(call))
        status = self._library.quick.coordd_worker_on_generation(self.pointer, self._callbacks[-1], None)
        if status != 0:
            raise call_error(status)

    def call_nobody(self) -> None:
        """Nothing of Python's is called any more: an interpreter that ends does not take calls of other threads."""
        self._library.blocking.coordd_worker_on_generation(self.pointer, _library.Entered(), None)

    def newcomers(self) -> int:
        """Workers that wait to become members, as far as this rank knows; 0 in a job whose members do not change."""
        return self._library.quick.coordd_worker_newcomers(self.pointer)

    def _next_place(self, wait, timeout_seconds: float, *arguments) -> Place:
        placement = _library.initialised(_library.Placement())
        end = time.monotonic() + timeout_seconds
        while True:
            left = max(0.0, end - time.monotonic())
            status = wait(self.pointer, *arguments, min(left, _WAIT_SLICE.value), byref(placement))
            if status != _DEADLINE_EXCEEDED or left <= _WAIT_SLICE.value:
                break
        if status != 0:
            raise call_error(status)
        self.place = self.read_place()
        return self.place

    def metrics_address(self) -> str:
        return self._library.quick.coordd_worker_metrics_address(self.pointer).decode()

    def check(self) -> None:
        """Raises HorovodInternalError when the generation has ended."""
        status = self._library.quick.coordd_worker_status(self.pointer)
        if status != 0:
            raise call_error(status)

    def shutdown(self, timeout_seconds: float = SHUTDOWN_TIMEOUT_S) -> None:
        """Says goodbye; what is pending and not agreed on fails. Idempotent."""
        self._library.blocking.coordd_worker_shutdown(self.pointer, timeout_seconds)

    def fail(self, what: str, timeout_seconds: float) -> None:
        """Instead of a goodbye: the program ends by this error."""
        self.call_nobody()
        self._library.function("coordd_worker_fail")(self.pointer, what.encode(errors="replace"), c_double(timeout_seconds))

    def leave_at_exit(self, hold_seconds: float) -> None:
        """shutdown(), but the goodbye is said when the process exits with status 0, or after that time; with another status it
        is none. Must not be freed before."""
        self.call_nobody()
        status = self._library.function("coordd_worker_leave_at_exit")(self.pointer, c_double(hold_seconds),
                                                                       c_double(SHUTDOWN_TIMEOUT_S))
        if status != 0:
            self.shutdown(0.0)

    def start_timeline(self, path: str, mark_cycles: bool) -> None:
        function = self._library.function("coordd_timeline_start")
        status = function(self.pointer, os.fsencode(path), c_int32(mark_cycles))
        if status != 0:
            raise call_error(status)

    def stop_timeline(self) -> None:
        status = self._library.function("coordd_timeline_stop")(self.pointer)
        if status != 0:
            raise call_error(status)

    def __del__(self, getpid=os.getpid, finalizing=sys.is_finalizing):
        # In a forked child the worker's threads are not there: it is left alone.
        if getattr(self, "pointer", None) and self._pid == getpid() and not finalizing():
            self._library.blocking.coordd_worker_destroy(self.pointer)

    def add_process_set(self, ranks: Sequence[int], timeout_seconds: float) -> int:
        """Collective: all ranks, in the same order. The new set's number."""
        function = self._library.function("coordd_process_set_add")
        number = c_int32()
        status = function(self.pointer, (c_int32 * len(ranks))(*ranks), c_size_t(len(ranks)), c_double(timeout_seconds),
                          byref(number))
        if status != 0:
            raise collective_error(status)  # this rank's own part is checked before
        return number.value

    def remove_process_set(self, number: int, timeout_seconds: float) -> None:
        """Collective: all ranks, in the same order."""
        function = self._library.function("coordd_process_set_remove")
        status = function(self.pointer, c_int32(number), c_double(timeout_seconds))
        if status != 0:
            raise collective_error(status)  # this rank's own part is checked before


class OnDevice:
    """What a framework says about tensors on a GPU."""

    def current_stream(self) -> int:
        """The cudaStream_t on which the results are used; told that they are."""
        raise NotImplementedError


class Work:
    """The future of one submission: a tensor, or a group of them. Holds what the library holds for it, such as a result
    that it has allocated, until nobody refers to the Work any more. Thread-safe."""

    __slots__ = ("pointers", "name", "on_device", "behind")

    def __init__(self, pointers: Sequence[Optional[int]], name: str, on_device: Optional["OnDevice"] = None):
        self.pointers = pointers
        self.name = name
        self.behind: Optional[Callable[[], None]] = None  # what makes the result out of the library's; keeps what it needs
        self.on_device = on_device  # None: the tensors are in host memory

    def __del__(self, finalizing=sys.is_finalizing):
        if finalizing():  # the interpreter takes itself apart; the process ends
            return
        pointers = getattr(self, "pointers", ())  # there are none where __init__ has not come that far
        if pointers:
            release = _library.library().quick.coordd_work_release
            for pointer in pointers:
                release(pointer)

    def done(self) -> bool:
        """Whether all of it is complete. Never blocks."""
        poll, pointers = _library.library().quick.coordd_work_poll, self.pointers
        return poll(pointers[0]) == 1 if len(pointers) == 1 else all(poll(pointer) == 1 for pointer in pointers)

    def wait(self) -> None:
        """Waits for all of it; it ends by its own deadline (10 minutes by default). Of tensors on a GPU: until the
        framework's current stream waits for their results; this thread does not. HorovodInternalError: the first
        failure, after all have ended. Can be interrupted by Ctrl-C; the work then goes on."""
        wait, poll = _library.library().blocking.coordd_work_wait, _library.library().quick.coordd_work_poll
        arguments: Tuple[Any, ...] = (_WAIT_SLICE,)
        if self.on_device is not None:
            wait = _library.library().blocking.coordd_work_wait_on_stream
            arguments = (c_void_p(self.on_device.current_stream()), _WAIT_SLICE)
        failure = None
        for pointer in self.pointers:
            work = c_void_p(pointer)
            status = wait(work, *arguments)
            while status == _DEADLINE_EXCEEDED:
                # Looked at before the wait: it may end between the two, and its status is what counts.
                complete = poll(pointer) != 0
                status = wait(work, *arguments)
                if complete:
                    break
            if status != 0 and failure is None:
                failure = collective_error(status, self._name_of(pointer))
        if failure is not None:
            raise failure
        if self.behind is not None:
            self.behind()
            self.behind = None

    def _name_of(self, pointer: Optional[int]) -> str:
        name = _library.library().quick.coordd_work_name(pointer)
        return self.name if name == wire_name(self.name) else name.decode(errors="replace")

    def result(self, index: int = 0) -> "OwnedResult":
        """What the library has allocated for tensor `index`. REQUIRES: wait() has succeeded."""
        result = _library.initialised(_library.Result())
        status = _library.library().quick.coordd_work_result(self.pointers[index], byref(result))
        if status != 0:
            raise collective_error(status, self.name)
        splits = None
        if result.received_splits:
            splits = result.received_splits[:result.num_received_splits]
        return OwnedResult(self, result.output, result.output_bytes, tuple(result.shape[:result.ndim]), splits,
                           result.generation, result.size)


class OwnedResult:
    """A result in the library's memory, which lives as long as `work`."""

    __slots__ = ("work", "address", "size_bytes", "shape", "received_splits", "generation", "size")

    def __init__(self, work, address, size_bytes, shape, received_splits, generation, size):
        self.work = work
        self.address = address
        self.size_bytes = size_bytes
        self.shape = shape
        self.received_splits = received_splits
        self.generation = generation  # to which the result belongs
        self.size = size  # members of it

    def buffer(self):
        """Its bytes, writable, without a copy; keeps the work. None when there are none."""
        if self.size_bytes == 0:
            return None
        buffer = (ctypes.c_char * self.size_bytes).from_address(self.address)
        buffer.work = self.work
        return buffer


# --- options, shared by all calls with the same values ---------------------------------------------------------------

_OptionsKey = Tuple[int, float, float, float]
_ALL_DEFAULTS: _OptionsKey = (0, 1.0, 1.0, 0.0)
_options: Dict[_OptionsKey, Tuple[object, object]] = {_ALL_DEFAULTS: (None, None)}  # NULL


def call_options(process_set: int, prescale_factor: float, postscale_factor: float, timeout_seconds: float = 0.0):
    """The argument `options` of a collective, never changed once made; a timeout of 0 is the worker's. ValueError: a factor
    of zero."""
    key = (process_set, prescale_factor, postscale_factor, timeout_seconds)
    try:
        return _options[key][1]
    except KeyError:
        pass
    _factors.check_factors(prescale_factor, postscale_factor)
    structure = _library.initialised(_library.CallOptions())
    structure.process_set = process_set
    structure.prescale_factor = prescale_factor
    structure.postscale_factor = postscale_factor
    structure.timeout_seconds = timeout_seconds
    if len(_options) >= MAX_PREPARED:
        _options.clear()
        _options[_ALL_DEFAULTS] = (None, None)
    reference = byref(structure)
    _options[key] = (structure, reference)
    return reference


# --- one tensor ------------------------------------------------------------------------------------------------------


# Places in a coordd_tensor_t seen as 64-bit numbers, which costs less than its members do.
INPUT_WORD = _library.Tensor.input.offset // 8
OUTPUT_WORD = _library.Tensor.output.offset // 8
CAPACITY_WORD = _library.Tensor.output_capacity_bytes.offset // 8


class Prepared:
    """One tensor's structure, ready but for the addresses. Used by one thread at a time: PreparedStore hands it out."""

    __slots__ = ("structure", "words", "reference", "work", "work_reference", "_shape")

    def __init__(self, name: str, shape: Sequence[int], dtype: int):
        self._shape = (c_int64 * len(shape))(*shape)
        self.structure = _library.initialised(_library.Tensor())
        _describe(self.structure, name, self._shape, len(shape), dtype)
        self.words = memoryview(self.structure).cast("B").cast("Q")
        self.reference = byref(self.structure)
        self.work = c_void_p()
        self.work_reference = byref(self.work)


class BlockingCall:
    """All arguments of a collective that waits, coordd_allreduce_for and its like; ready but for the addresses. Used by one
    thread at a time: PreparedStore hands it out."""

    __slots__ = ("prepared", "words", "shape", "dtype", "worker", "function", "arguments")

    def __init__(self, worker: "Worker", function, prepared: Prepared, shape, dtype, extra: tuple, options):
        self.prepared = prepared
        self.words = prepared.words
        self.shape = shape  # as the framework says it, and so the dtype: what the structure was made for
        self.dtype = dtype
        self.worker = worker
        self.function = function
        self.arguments = (worker.pointer, prepared.reference, *extra, options, _WAIT_SLICE, prepared.work_reference)

    def run(self, name: str, kept: Any) -> None:
        """Calls, and waits on when the call comes back before the work is complete. ValueError: the call itself;
        HorovodInternalError: the collective. `kept`: what the library reads and writes."""
        pointer = self.prepared.work
        try:
            status = self.function(*self.arguments)
        except BaseException:  # of a signal's handler
            if pointer.value:
                keep_until_done(_taken(pointer, name), kept)
            raise
        if status == 0:
            return
        if not pointer.value:
            raise call_error(status, name)
        wait_or_keep(_taken(pointer, name), kept)


def _taken(pointer: c_void_p, name: str) -> Work:
    """The work that the library has put there, once."""
    address, pointer.value = pointer.value, None
    return Work((address or 0,), name)


# Works that nobody waits for any more, with the buffers that the library still reads and writes.
_kept: List[Tuple[Work, Any]] = []


def keep_until_done(work: Work, kept: Any) -> None:
    """For a work whose wait was interrupted: its buffers stay until it is complete."""
    _kept[:] = [(other, buffers) for other, buffers in _kept if not other.done()]
    _kept.append((work, kept))


def wait_or_keep(work: Work, kept: Any) -> None:
    """work.wait(); when a signal's handler ends the wait (Ctrl-C), the buffers are kept."""
    try:
        work.wait()
    except BaseException:
        if not work.done():
            keep_until_done(work, kept)
        raise


def _describe(structure, name: str, shape, ndim: int, dtype: int) -> None:
    structure.name = wire_name(name)
    structure.shape = ctypes.cast(shape, ctypes.POINTER(c_int64)) if ndim else None
    structure.ndim = ndim
    structure.dtype = dtype


# --- groups ----------------------------------------------------------------------------------------------------------

_WORDS = ctypes.sizeof(_library.Tensor) // 8


class PreparedGroup:
    """The structures of a group, ready but for the addresses. Used by one thread at a time."""

    __slots__ = ("name", "_structures", "_shapes", "_words", "_works", "_arguments")

    def __init__(self, name: str, names: Sequence[str], shapes: Sequence[Sequence[int]], dtypes: Sequence[int]):
        count = len(names)
        self.name = name
        self._structures = (_library.Tensor * count)()
        self._shapes = [(c_int64 * len(shape))(*shape) for shape in shapes]
        for structure, own, shape, dtype in zip(self._structures, names, self._shapes, dtypes):
            _library.initialised(structure)
            _describe(structure, own, shape, len(shape), dtype)
        self._words = memoryview(self._structures).cast("B").cast("Q")
        self._works = (c_void_p * count)()
        self._arguments = (ctypes.c_char_p(wire_name(name)), byref(self._structures), c_size_t(count), byref(self._works))

    def place(self, inputs: "array.array[int]", outputs: "array.array[int]") -> None:
        """Sets the addresses; an output of 0: the library allocates."""
        self._words[INPUT_WORD::_WORDS] = inputs
        self._words[OUTPUT_WORD::_WORDS] = outputs

    def structure(self, index: int):
        return self._structures[index]

    def submit(self, function, worker, extra: tuple, options, on_device: Optional[OnDevice] = None) -> Work:
        """Calls coordd_grouped_...; `extra` stands between the tensors and the options."""
        name, structures, count, works = self._arguments
        status = function(worker, name, structures, count, *extra, options, works)
        if status != 0:
            raise call_error(status)
        return Work(self._works[:], self.name, on_device)

    def refuse(self, function, worker, as_group: bool, why: str, options) -> Work:
        """Calls coordd_refuse_async; not as a group: there is one tensor."""
        name, structures, count, works = self._arguments
        status = function(worker, name if as_group else None, structures, count,
                          ctypes.c_char_p(why.encode(errors="replace").replace(b"\0", b" ")), options, works)
        if status != 0:
            raise call_error(status)
        return Work(self._works[:], self.name)


