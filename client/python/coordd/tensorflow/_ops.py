"""The ops of libcoordd_tensorflow.so: found and loaded with this module, tried out before the first of them runs, and given the worker
of each init()."""

import ctypes
import threading
from typing import List, Optional

import tensorflow as tf

from coordd import _basics, _beside, _library
from coordd.tensorflow import _framework

_SELF_CHECK_S = 30.0  # for a TensorFlow that starts its devices, on a machine that is busy


def _opened(path: str):
    try:
        found = tf.load_op_library(path)
    except tf.errors.NotFoundError as error:
        raise ImportError(f"{path} cannot be loaded: {error.message}") from None
    library = ctypes.CDLL(path)
    for name in ("coordd_tensorflow_failure", "coordd_tensorflow_use"):
        getattr(library, name).restype = ctypes.c_char_p
    library.coordd_tensorflow_use.argtypes = [ctypes.c_void_p]
    library.coordd_tensorflow_set_worker.argtypes = [ctypes.c_void_p]
    library.coordd_tensorflow_set_worker.restype = None
    library.coordd_tensorflow_finish_self_check.argtypes = [ctypes.c_double]
    failure = library.coordd_tensorflow_failure().decode()
    if failure:
        raise ImportError(f"coordd.tensorflow cannot serve TensorFlow {tf.__version__}: {failure}")
    return found, library


raw, _own = _opened(_beside.path())
_framework.run_in_any_order("CoorddAllreduce", "CoorddGroupedAllreduce", "CoorddAllgather", "CoorddGroupedAllgather",
                            "CoorddBroadcast", "CoorddAlltoall", "CoorddReducescatter", "CoorddGroupedReducescatter",
                            "CoorddRank", "CoorddSize", "CoorddLocalRank", "CoorddLocalSize", "CoorddProcessSetIncluded")
_has_xla = bool(_own.coordd_tensorflow_register_xla())


class _State:
    """Kept in an object: AutoGraph, which rewrites what a tf.function calls, loses assignments to globals."""
    checked = False
    lock = threading.Lock()


_state = _State()


def _take_worker() -> None:
    library = _library.library()
    failure = _own.coordd_tensorflow_use(library.quick._handle).decode()
    if failure:
        raise ImportError(failure)
    _own.coordd_tensorflow_set_worker(_basics.worker().pointer)


def _drop_worker() -> None:
    """A generation may end with the worker going on."""
    if not _basics.is_initialized():
        _own.coordd_tensorflow_set_worker(None)


_basics.on_start(_take_worker)
_basics.on_end(_drop_worker)


def ready():
    """The ops, which do what they say with this TensorFlow. Not when the library is loaded: the check starts TensorFlow's devices, which
    a program may want to choose first. ImportError: they do not."""
    if not _state.checked:
        with _state.lock:
            if not _state.checked:
                _check()
                _state.checked = True
    return raw


def _check() -> None:
    """Runs one asynchronous kernel whose callback is called by another thread after it has returned, as by those of collectives."""
    if not tf.compat.v1.executing_eagerly_outside_functions():
        return
    outcome: List[Optional[BaseException]] = []

    def run():
        try:
            with tf.device("/cpu:0"):
                outcome.append(None if int(raw.coordd_self_check()) == 1 else RuntimeError("another answer than 1"))
        except BaseException as error:  # told by the caller
            outcome.append(error)

    thread = threading.Thread(target=run, name="coordd-self-check", daemon=True)
    thread.start()
    began = _own.coordd_tensorflow_finish_self_check(_SELF_CHECK_S)
    thread.join(_SELF_CHECK_S)
    if not began or not outcome or outcome[0] is not None:
        why = f"{type(outcome[0]).__name__}: {outcome[0]}" if outcome else f"it has not ended in {_SELF_CHECK_S:.0f} s"
        raise ImportError(f"coordd.tensorflow cannot serve TensorFlow {tf.__version__}: an asynchronous kernel does not work as "
                          f"expected: {why}")


def has_xla() -> bool:
    """Whether programs of XLA can call coordd."""
    return _has_xla
