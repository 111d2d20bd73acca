"""The process's membership: init, shutdown, ranks, and what this build can do. Shared by all frameworks.

One process is a member at most once. What the module keeps is one object, `_state`; everything else asks it.
"""

import atexit
import functools
import json
import os
import sys
import threading
import warnings
from typing import Any, Callable, Dict, Optional

from coordd import _comm_argument, _ends, _library, _native, _stacks, _torch_env, process_sets as _process_sets
from coordd._running import place as place, refuse_in_forked_child, state, worker as worker  # others take them from here
from coordd.exceptions import CoorddError, HorovodInternalError, InvalidArgumentError

__all__ = ["init", "shutdown", "is_initialized", "start_timeline", "stop_timeline", "size", "local_size", "cross_size",
           "rank", "local_rank", "cross_rank", "is_homogeneous", "mpi_threads_supported", "mpi_enabled", "mpi_built",
           "gloo_enabled", "gloo_built", "nccl_built", "ddl_built", "ccl_built", "cuda_built", "rocm_built",
           "check_extension", "Average", "Sum", "Adasum", "Min", "Max", "Product"]

# The reduction operators, with Horovod's numbers.
Average = 0
Sum = 1
Adasum = 2
Min = 3
Max = 4
Product = 5

GENERATION_TIMEOUT_S = 660.0  # more than coordd waits for enough workers to be there (--reform-timeout)
# How long the goodbye of a program waits for the status with which it exits; of one that has called shutdown() while an error was
# on its way, which may be about to end it or be handled.
_HOLD_AT_EXIT_S = 60.0
_HOLD_FOR_ERROR_S = 3.0
_FAIL_TIMEOUT_S = 2.0  # for coordd to hear of a failure
_START_SLICE_S = 0.25  # how often a start that waits for other ranks lets Ctrl-C through


def before_end(call) -> None:
    """Has `call()` called by shutdown(), and at the end of the program, before the worker says goodbye, for what a framework has been
    given and not executed yet; not where the program ends by an error. HorovodInternalError of it: some of that has failed, and the
    program does not know; shutdown() raises it, and a program that ends without ends with status 1."""
    state.before_end.append(call)


def _finish() -> None:
    if state.worker is not None and not state.failing and _ends.unwinding() is None:
        for call in state.before_end:
            call()


def on_end(call) -> None:
    """Has `call()` called whenever a membership is over: by shutdown(), after the worker has said goodbye, and by
    await_generation()."""
    state.at_end.append(call)


def on_start(call) -> None:
    """Has `call()` called whenever init() has made this process a member; at once if it is one."""
    with state.lock:
        state.at_start.append(call)
        if state.worker is not None:
            call()


# --- init and shutdown -----------------------------------------------------------------------------------------------


def init(comm=None, process_sets=None, *, coordinator: Optional[str] = None, job: Optional[str] = None,
         launcher: Optional[str] = None, port_range: Optional[str] = None, token: Optional[str] = None,
         tls_ca: Optional[str] = None, tls_cert: Optional[str] = None, tls_key: Optional[str] = None) -> None:
    """Makes this process a member of its job: connects to coordd and waits until all ranks are there. Does nothing when it
    is one already.

    comm:         None: all processes that the launcher started. A list of their ranks, as the launcher counts them
                  (coordrun, srun, mpirun, torchrun, ...; `coordctl whoami` shows them): these make a job of their own, in
                  which the i-th of the list has rank i, and so may others at the same time. An mpi4py communicator: its
                  processes make a job of their own, with their ranks in it. When nobody has named a coordd, the
                  launcher's rank 0 starts it for all, so it has to call init too, with whatever list.
    process_sets: ProcessSets to register, equal on all ranks; or "dynamic", which is allowed and means nothing here:
                  add_process_set always works.
    coordinator, job, launcher, port_range: instead of the variables COORDD_ADDR, COORDD_JOB_ID, COORDD_LAUNCHER and
                  COORDD_PORT_RANGE: "host:port" or "auto"; a name; whose variables tell rank and size, as "slurm" or
                  "none"; "20000-20099".
    token:        the job's secret itself, instead of the file that COORDD_TOKEN_FILE names.
    tls_ca, tls_cert, tls_key: paths of PEM files, all or none, instead of COORDD_TLS_CA, COORDD_TLS_CERT and COORDD_TLS_KEY.

    Where coordd is and who we are comes from COORDD_* variables, which coordrun sets, else from the launcher's.
    ValueError: a wrong argument or variable. HorovodInternalError: coordd cannot be reached, not all ranks came in time
    (COORDD_JOIN_TIMEOUT, 300 s), or the process is a fork of one that is initialised.
    """
    with state.lock:
        if state.worker is not None:
            return
        refuse_in_forked_child()
        if state.exits:
            raise HorovodInternalError("the interpreter exits, and coordd was shut down: init() is not possible any more",
                                       "FAILED_PRECONDITION")
        if state.held is not None:
            state.held.shutdown()
            state.held = None
        sets = [] if process_sets in (None, "dynamic") else list(process_sets)
        if any(not isinstance(one, _process_sets.ProcessSet) for one in sets):
            raise InvalidArgumentError("process_sets: expected a list of ProcessSet, or \"dynamic\"", "INVALID_ARGUMENT")
        given = {"coordinator": coordinator, "job": job, "launcher": launcher, "port_range": port_range, "token": token,
                 "tls_ca": tls_ca, "tls_cert": tls_cert, "tls_key": tls_key}
        options: Dict[str, _native.OptionValue] = {key: value for key, value in given.items() if value is not None}
        options.update(_comm_argument.membership_options(comm, options))
        options.update(_stacks.options())
        state.worker = _start(options)
        state.place = state.worker.place
        state.follows = goes_on()
        state.own_job = comm is not None or job is not None or coordinator is not None
        _ends.tell_of_uncaught_errors(tell_failure)
        try:
            if not state.own_job:
                _torch_env.follow(state.worker, state.place)
            _process_sets.register_initial(sets)
            for call in state.at_start:
                call()
        except BaseException:
            shutdown()
            raise
        _start_horovods_timeline()


def shutdown() -> None:
    """Leaves the job: what all ranks have agreed on completes, everything else that is pending fails. init() may be called
    again. Does nothing when the process is not a member. Called at the end of the program by itself.

    A program that ends by an error says no goodbye, also if this is called on the way (``finally: shutdown()``): the other
    ranks hear that it has failed, and by what."""
    _finish()
    with state.lock:
        if state.worker is None:
            return
        own, state.worker, state.place = state.worker, None, None
        if state.failing:  # the others are to go on without us, as if we had been killed
            own.call_nobody()
            state.abandoned.append(own)
        elif _ends.unwinding() is not None:
            own.leave_at_exit(_HOLD_FOR_ERROR_S)
            state.held = own
        else:
            own.shutdown()
        _end_membership()


def _shutdown_at_exit() -> None:
    """With which status is not known yet."""
    state.exits = True
    try:
        _finish()
    except HorovodInternalError as error:
        print(f"coordd: {error}", file=sys.stderr, flush=True)
        tell_failure(str(error))
        _ends.end_with_failure()
    with state.lock:
        if state.worker is None:
            return
        own, state.worker, state.place = state.worker, None, None
        if state.failing:
            own.call_nobody()
            state.abandoned.append(own)
        else:
            own.leave_at_exit(_HOLD_AT_EXIT_S)
            state.held = own
            _ends.say_goodbye_in_exit(lambda: own.shutdown(_FAIL_TIMEOUT_S))
        _end_membership()


def tell_failure(what: str) -> None:
    """An error ends the program, now: all hear of it, though other threads may go on for a while."""
    state.failing = True
    if not state.lock.acquire(timeout=_FAIL_TIMEOUT_S):
        return  # another thread is in init() or shutdown()
    try:
        for one in (state.worker, state.held):
            if one is not None:
                one.fail(what, _FAIL_TIMEOUT_S)
    finally:
        state.lock.release()


def give_up(what: str) -> None:
    """An error has ended what this process was a member for, and the process lives on: all hear of it, and init() may be called again."""
    with state.lock:
        if state.worker is None:
            return
        own, state.worker, state.place = state.worker, None, None
        own.fail(what, _FAIL_TIMEOUT_S)
        _end_membership()


def membership() -> int:
    """Another number in each membership of this process: for what the ranks of one have learned of each other."""
    return state.membership


def _end_membership() -> None:
    _change_membership()
    _process_sets.unregister_all()


def _change_membership() -> None:
    state.membership += 1
    for call in state.at_end:
        call()


def _tell_of_the_wait() -> None:
    for call in state.before_change:
        call()


def _follow() -> None:
    _change_membership()
    _process_sets.follow()
    if not state.own_job:
        _torch_env.follow(worker(), worker().place)


def await_generation(timeout_seconds: float = GENERATION_TIMEOUT_S) -> None:
    """What a program calls after a HorovodInternalError whose code is "GENERATION_CHANGED" (COORDD_ON_FAILURE=raise, which
    `coordrun --min-np` sets; coordd.elastic does it by itself): waits until those that are left have formed the next
    generation. rank() and size() are then those of that one, process sets have those of their ranks that are left, and
    nothing that was submitted before is left. HorovodInternalError: no generation follows, or not in time."""
    with state.lock:
        _tell_of_the_wait()
        state.place = worker().await_generation(timeout_seconds)
        _follow()


def change_members(timeout_seconds: float = GENERATION_TIMEOUT_S, agreed_in: int = 0) -> None:
    """Collective: all ranks have come to a point at which others may join them, have agreed to call this and have nothing
    pending. Ends the generation; otherwise as await_generation(), and the same where it has ended already. `agreed_in`, with
    COORDD_ON_FAILURE=continue: the generation of the result by which they have agreed."""
    with state.lock:
        _tell_of_the_wait()
        state.place = worker().change_members(timeout_seconds, agreed_in)
        _follow()


def newcomers() -> int:
    """Workers that wait to become members, as far as this rank knows: ranks may differ for a moment."""
    return worker().newcomers()


def drain_seconds() -> float:
    """Seconds that are left for this rank to leave, since an operator (`coordctl drain`), its launcher or SIGTERM has asked it
    to; negative: it may stay. coordd.elastic leaves at the next commit by itself."""
    return _library.library().quick.coordd_worker_drain_seconds(worker().pointer)


def ask_to_leave(grace_seconds: float, reason: str = "") -> None:
    """This process has to end within that time: it leaves at its next commit, and the others go on."""
    status = _library.library().quick.coordd_worker_ask_to_leave(worker().pointer, grace_seconds, reason.encode())
    if status != 0:
        raise _native.call_error(status)


def leave(then: Callable[[], None]) -> None:
    """Leaves, as drain_seconds() says that it is to; the others go on. Then calls `then()`, for which rank() and size() are
    still those of the membership that has ended."""
    with state.lock:
        leaving, state.worker = worker(), None
        leaving.shutdown()
        try:
            then()
        finally:
            state.place = None
            _end_membership()


def members_may_change() -> bool:
    """Whether a generation follows another in this job: COORDD_ON_FAILURE is the same on all ranks."""
    return os.environ.get("COORDD_ON_FAILURE", "end") != "end"


def goes_on() -> bool:
    """Whether collectives go on among those who are left when a rank is lost, and nobody is told (COORDD_ON_FAILURE=continue):
    rank() and size() are then those of the newest generation that this rank has heard of."""
    return os.environ.get("COORDD_ON_FAILURE") == "continue"


def heed_the_end() -> None:
    """Lets streams of a GPU go on that are held since the generation has ended, if it has: whoever calls it knows. What waits
    for them next would wait for ever."""
    try:
        worker().check()
    except HorovodInternalError:
        pass


def fail() -> None:
    """From now on, the end of this process says no goodbye, which would end the job for all: the others see a lost rank,
    and go on without it where they can."""
    state.failing = True


atexit.register(_shutdown_at_exit)


def is_initialized() -> bool:
    """Whether this process is a member and can run collectives. False in a fork of a member."""
    return state.worker is not None


def _start(options) -> _native.Worker:
    """Joins on a thread of its own, so that Ctrl-C ends the wait for ranks that do not come."""
    outcome: list = []  # one Worker, or what was raised

    def run():
        try:
            outcome.append(_native.Worker(**options))
        except BaseException as error:  # handed to the caller
            outcome.append(error)

    thread = threading.Thread(target=run, name="coordd-init", daemon=True)
    thread.start()
    while thread.is_alive():
        thread.join(_START_SLICE_S)
    if isinstance(outcome[0], BaseException):
        raise outcome[0]
    return outcome[0]


# --- who we are ------------------------------------------------------------------------------------------------------
# Each raises ValueError before init. All of them also answer in a forked child, such as a data loader's worker.


def size() -> int:
    """Number of ranks in the job."""
    return place().size


def rank() -> int:
    """This process's number in the job, from 0."""
    return place().rank


def local_size() -> int:
    """Number of ranks on this node."""
    return place().local_size


def local_rank() -> int:
    """This process's number on its node, from 0: the GPU to use, where there is one per process."""
    return place().local_rank


def cross_size() -> int:
    """Number of nodes that have a rank with this local rank."""
    return place().cross_size


def cross_rank() -> int:
    """This process's number among the ranks with its local rank, in order of nodes."""
    return place().cross_rank


def is_homogeneous() -> bool:
    """Whether all nodes have as many ranks."""
    return bool(place().homogeneous)


# --- timeline --------------------------------------------------------------------------------------------------------


def start_timeline(file_path: str, mark_cycles: bool = False) -> None:
    """Writes what this rank executes, and when, to a file that Perfetto and Chrome open, until stop_timeline() or shutdown().

    Rank 0 writes it, as with Horovod. With "{rank}" in the path, for which its number is put, every rank that calls this
    does. All ranks in one file: `coordctl trace`. ValueError: it cannot be written; HorovodInternalError: one is being
    written already. HOROVOD_TIMELINE or COORDD_TIMELINE=PATH starts it with init().
    """
    worker().start_timeline(os.fspath(file_path), bool(mark_cycles))


def stop_timeline() -> None:
    """Ends the timeline; the file is complete then. Does nothing when there is none."""
    worker().stop_timeline()


def _start_horovods_timeline() -> None:
    """What HOROVOD_TIMELINE asks for; COORDD_TIMELINE has been heeded by the library. DYNAMIC: start_timeline() will say."""
    path = os.environ.get("HOROVOD_TIMELINE", "")
    if path in ("", "DYNAMIC") or os.environ.get("COORDD_TIMELINE"):
        return
    try:
        start_timeline(path, os.environ.get("HOROVOD_TIMELINE_MARK_CYCLES", "") not in ("", "0"))
    except CoorddError as error:  # nobody's training should fail for want of its timeline
        warnings.warn(str(error), RuntimeWarning, stacklevel=3)


# --- what is in this build -------------------------------------------------------------------------------------------
# Scripts ask these to choose a device or an operator.


def mpi_threads_supported() -> bool:
    """False: coordd does not use MPI. ValueError before init."""
    place()
    return False


def mpi_enabled() -> bool:
    """False: coordd does not use MPI."""
    return False


def mpi_built() -> bool:
    """False: coordd does not use MPI."""
    return False


def gloo_enabled() -> bool:
    """True: programs ask whether there is something without MPI that reduces tensors in host memory. (Gloo itself is not used.)"""
    return True


def gloo_built() -> bool:
    """True, as gloo_enabled()."""
    return True


def check_extension(*_: Any, **__: Any) -> None:
    """Nothing: coordd has no extension per framework that could be missing."""


@functools.lru_cache(maxsize=None)
def _components() -> Dict[str, Dict[str, Any]]:
    """What check_build() prints, by name. Opens NCCL and CUDA's driver for a moment, once per process."""
    return {component["name"]: component for component in json.loads(_library.library().quick.coordd_check_build(1))}


def nccl_built() -> int:
    """Version of NCCL with which this process can reduce tensors in CUDA memory, as NCCL's own number (22809 is 2.28.9); 0: it
    cannot, since this build, the driver or NCCL is missing (coordd.check_build() says which), and they go through host memory
    where there is a driver."""
    if not cuda_built() or not _components()["NCCL"]["available"]:
        return 0
    major, minor, patch = (int(part) for part in _components()["NCCL"]["loaded"].split("."))
    return major * 10000 + minor * 100 + patch


def cuda_built() -> bool:
    """Whether this process can reduce tensors in CUDA memory: coordd was built for it, and there is a driver. coordd opens the
    driver when it runs, so a build alone does not tell."""
    return bool(_components()["CUDA"]["available"])


def ddl_built() -> bool:
    """False."""
    return False


def ccl_built() -> bool:
    """False."""
    return False


def rocm_built() -> bool:
    """Whether tensors in ROCm memory can be reduced: not in this version."""
    return False


def native_op(op: int, average=None) -> int:
    """coordd_op_t of a reduction operator of Horovod's; `average` is Horovod's deprecated argument.

    ValueError: both are given, or no such operator. NotImplementedError: Adasum.
    """
    if average is not None:
        if op is not None:
            raise InvalidArgumentError("give op or average, not both: average is the old name of op", "INVALID_ARGUMENT")
        op = Average if average else Sum
    elif op is None:
        op = Average
    try:
        return _NATIVE_OPS[op]
    except (KeyError, TypeError):
        pass
    if op == Adasum:
        from coordd.exceptions import UnsupportedError
        raise UnsupportedError("Adasum is not in this version of coordd: use op=Average with a scaled learning rate",
                               "UNIMPLEMENTED")
    raise InvalidArgumentError(f"op is {op!r}: expected Average, Sum, Min, Max or Product", "INVALID_ARGUMENT")


_NATIVE_OPS = {Average: 2, Sum: 1, Min: 3, Max: 4, Product: 5}
