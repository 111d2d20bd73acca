"""Collectives over XLA's typed FFI."""

import contextlib
import ctypes
import functools
import itertools
import threading
from typing import Any, List, Optional, Sequence

import jax
import jax.numpy as jnp
import numpy

from coordd import _arguments, _basics, _beside, _factors, _library
from coordd._basics import Average, Sum
from coordd._names import wire_name
from coordd.exceptions import InvalidArgumentError, UnsupportedError
from coordd.jax import _devices, _unread  # noqa: F401 the last asks at the end of the program
from coordd.process_sets import ProcessSet, global_process_set

_ALLREDUCE, _ALLGATHER, _BROADCAST, _ALLTOALL, _REDUCESCATTER = range(5)  # Kind of client/tensorflow/kernel.h
_SELF_CHECK = -1  # kFfiSelfCheck of client/tensorflow/xla_ffi.h
_MOST_BYTES = 480
_traced = itertools.count()


def _take_worker() -> None:
    failure = _own.coordd_tensorflow_use(_library.library().quick._handle).decode()
    if failure:
        raise ImportError(failure)
    _own.coordd_tensorflow_set_worker(_basics.worker().pointer)


def _drop_worker() -> None:
    if not _basics.is_initialized():
        _own.coordd_tensorflow_set_worker(None)


def _opened() -> ctypes.CDLL:
    if not hasattr(jax, "ffi"):
        raise ImportError(f"coordd.jax needs jax 0.5 or later, found {jax.__version__}, which has no jax.ffi")
    library = ctypes.CDLL(_beside.path())
    library.coordd_tensorflow_use.restype = ctypes.c_char_p
    library.coordd_tensorflow_use.argtypes = [ctypes.c_void_p]
    library.coordd_tensorflow_set_worker.argtypes = [ctypes.c_void_p]
    library.coordd_tensorflow_set_worker.restype = None
    jax.ffi.register_ffi_target("coordd", jax.ffi.pycapsule(library.coordd_tensorflow_ffi), platform="cpu")
    jax.ffi.register_ffi_target("coordd", jax.ffi.pycapsule(library.coordd_tensorflow_ffi_gpu), platform="CUDA")
    return library


@functools.lru_cache(maxsize=None)
def _check_gpu() -> None:
    """Before the first call on a GPU: one that exchanges nothing, with an argument that is its result. ImportError: this jaxlib's calls
    are not what is expected."""
    outcome: List[Optional[BaseException]] = []

    def run():
        try:
            call = jax.ffi.ffi_call("coordd", jax.ShapeDtypeStruct((3,), jnp.float32), has_side_effect=True, input_output_aliases={0: 0})
            found = jax.jit(lambda x: call(x, kind=numpy.int32(_SELF_CHECK)))(jnp.arange(3.0))
            outcome.append(None if numpy.asarray(found).tolist() == [0, 1, 2] else RuntimeError(f"{found} instead of 0, 1, 2"))
        except BaseException as error:  # told by the caller
            outcome.append(error)

    thread = threading.Thread(target=run, name="coordd-self-check")  # which traces nothing
    thread.start()
    thread.join()
    if outcome[0] is not None:
        raise ImportError(f"coordd.jax cannot serve the GPUs of jax {jax.__version__}: {type(outcome[0]).__name__}: {outcome[0]}")


_own = _opened()
_basics.on_start(_take_worker)
_basics.on_end(_drop_worker)


def _check_dtype(dtype, name: str, kind: int, op: int) -> None:
    """When a call is traced, so that the program says which line it is, and the dtype by its name."""
    if jnp.issubdtype(dtype, jnp.complexfloating):
        if kind in (_ALLREDUCE, _REDUCESCATTER) and op not in (_basics.native_op(Sum), _basics.native_op(Average)):
            raise InvalidArgumentError(f"{name}: Min, Max or Product of complex numbers: expected Sum or Average", "INVALID_ARGUMENT")
    elif dtype.name not in _library.DTYPES:
        raise InvalidArgumentError(f"{name}: an array of {dtype.name} cannot travel, expected one of "
                                   f"{', '.join(_library.DTYPES)}, complex64, complex128", "INVALID_ARGUMENT")


def _call(kind: int, arrays: Sequence, shapes: Sequence, name: str, op: int = 1, prescale: float = 1.0, postscale: float = 1.0,
          root_rank: int = 0, process_set: int = 0) -> List:
    if jax.default_backend() == "gpu":
        _check_gpu()
    for array in arrays:
        _check_dtype(array.dtype, name, kind, op)
    arrays = [_devices.checked(name, arrays[0]), *arrays[1:]]
    results = [jax.ShapeDtypeStruct(shape, array.dtype) for shape, array in zip(shapes, arrays)]
    # Under jax.vmap what goes element by element travels with all of the batch, the rest one after the other.
    vmap_method = "broadcast_all" if kind in (_ALLREDUCE, _BROADCAST) else "sequential"
    return list(jax.ffi.ffi_call("coordd", results, has_side_effect=True, vmap_method=vmap_method)(
        *arrays, kind=numpy.int32(kind), name=wire_name(name, _MOST_BYTES).decode(errors="replace"), reduce_op=numpy.int32(op),
        root_rank=numpy.int32(root_rank), process_set=numpy.int32(process_set), prescale_factor=numpy.float64(prescale),
        postscale_factor=numpy.float64(postscale)))


@contextlib.contextmanager
def _forward_mode_named(kind: str):
    """JAX refuses it for whatever has a gradient of its own, and does not say for what."""
    try:
        yield
    except TypeError as error:
        if "custom_vjp" not in str(error):
            raise
        raise UnsupportedError(f"{kind} in JAX's forward mode (jax.jvp, jax.jacfwd, jax.linearize, jax.hessian), expected reverse mode "
                               "(jax.grad, jax.vjp, jax.jacrev)", "UNIMPLEMENTED") from None


def _finish(function, name: Optional[str], kind: str, arrays: Sequence):
    """function(name, arrays); without a name outside of jit it waits, so that one name for each kind serves."""
    arrays = [jnp.asarray(array) for array in arrays]
    _devices.check_arrays(name or kind, arrays)
    if name is not None:
        with _forward_mode_named(kind):
            return function(name, arrays)
    if any(isinstance(array, jax.core.Tracer) for array in arrays):
        with _forward_mode_named(kind):
            return function(f"jax.{kind}.{next(_traced)}", arrays)
    return jax.block_until_ready(function(f"jax.{kind}", arrays))


# --- allreduce -------------------------------------------------------------------------------------------------------


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _reduce(how, *arrays):
    name, op, prescale, postscale, process_set = how
    return tuple(_call(_ALLREDUCE, arrays, [array.shape for array in arrays], name, op, prescale, postscale,
                       process_set=process_set))


def _is_none(gradient) -> bool:
    """Of an array of integers there is no gradient: JAX gives one of a type without values."""
    return gradient.dtype == jax.dtypes.float0


def _reduce_backward(how, _, gradients):
    real = [gradient for gradient in gradients if not _is_none(gradient)]
    reduced = iter(_reduce((how[0] + ".gradient", *how[1:]), *real) if real else ())
    return tuple(gradient if _is_none(gradient) else next(reduced) for gradient in gradients)


_reduce.defvjp(lambda how, *arrays: (_reduce(how, *arrays), None), _reduce_backward)


def grouped_allreduce(tensors: Sequence, name: Optional[str] = None, op: int = Average, prescale_factor: float = 1.0,
                      postscale_factor: float = 1.0, process_set: ProcessSet = global_process_set) -> List:
    """The reductions of several arrays, of any shapes and dtypes, in one call. `op`: Average, Sum, Min, Max or Product. Differentiable:
    the gradient is the same reduction of the gradients."""
    native, number = _basics.native_op(op), _arguments.set_number(process_set)
    _factors.check_factors(prescale_factor, postscale_factor)
    if len(tensors) == 0:
        raise InvalidArgumentError("grouped_allreduce: a group needs at least one tensor", "INVALID_ARGUMENT")
    return list(_finish(lambda full, arrays: _reduce((full, native, prescale_factor, postscale_factor, number), *arrays), name,
                        "allreduce", tensors))


def allreduce(tree: Any, name: Optional[str] = None, op: int = Average, prescale_factor: float = 1.0,
              postscale_factor: float = 1.0, process_set: ProcessSet = global_process_set) -> Any:
    """The reduction of an array, or of every array of a tree, such as the gradients of a model, in one call."""
    leaves, structure = jax.tree_util.tree_flatten(tree)
    if not leaves:
        return tree
    return jax.tree_util.tree_unflatten(structure, grouped_allreduce(leaves, name, op, prescale_factor, postscale_factor,
                                                                     process_set))


# --- exchanges, of equal parts: XLA knows the shape of a result before it is there -------------------------------------


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _exchange(how, array):
    kind, name, op, root_rank, process_set, size = how
    rows = {_ALLGATHER: lambda count: count * size, _REDUCESCATTER: lambda count: count // size}.get(kind, lambda count: count)
    shape = array.shape if kind == _BROADCAST else (rows(array.shape[0]), *array.shape[1:])
    return _call(kind, [array], [shape], name, op, root_rank=root_rank, process_set=process_set)[0]


def _rank_now():
    """This rank when the program runs, which may be another one than when it was traced."""
    return jax.pure_callback(lambda: numpy.int32(_basics.rank()), jax.ShapeDtypeStruct((), jnp.int32))


def _exchange_backward(how, _, gradient):
    """As coordd.torch's and coordd.tensorflow's gradients."""
    kind, name, op, root_rank, process_set, size = how
    if _is_none(gradient):
        rows = {_ALLGATHER: lambda count: count // size, _REDUCESCATTER: lambda count: count * size}.get(kind, lambda count: count)
        shape = gradient.shape if kind == _BROADCAST else (rows(gradient.shape[0]), *gradient.shape[1:])
        return (numpy.zeros(shape, jax.dtypes.float0),)
    name += ".gradient"
    if kind == _ALLGATHER:
        return (_exchange((_REDUCESCATTER, name, _basics.native_op(Average), 0, process_set, size), gradient),)
    if kind == _REDUCESCATTER:
        scaled = gradient * size if op == _basics.native_op(Sum) else gradient
        return (_exchange((_ALLGATHER, name, op, 0, process_set, size), scaled),)
    if kind == _BROADCAST:
        (mean,) = _reduce((name, _basics.native_op(Average), 1.0, 1.0, process_set), gradient)
        return (jnp.where(_rank_now() == root_rank, mean, jnp.zeros_like(mean)),)
    return (_exchange((kind, name, op, root_rank, process_set, size), gradient),)


_exchange.defvjp(lambda how, array: (_exchange(how, array), None), _exchange_backward)


def _exchanged(kind: int, what: str, tensor, name, op: int, root_rank: int, process_set: ProcessSet):
    number, size = _arguments.set_number(process_set), process_set.size() or 1
    root_rank = _arguments.checked_root(root_rank)
    if isinstance(tensor, (dict, tuple)) or tensor is None:
        raise InvalidArgumentError(f"{what}: expected an array, found {type(tensor).__name__}; jax.tree.map() calls it for each array of "
                                   "a tree", "INVALID_ARGUMENT")
    shape = jnp.shape(tensor)
    if kind != _BROADCAST and not shape:
        raise InvalidArgumentError(f"{what}: expected an array of at least one dimension, found a scalar", "INVALID_ARGUMENT")
    if kind in (_REDUCESCATTER, _ALLTOALL) and shape[0] % size:
        raise InvalidArgumentError(f"{what}: {shape[0]} rows, expected a multiple of {size} ranks", "INVALID_ARGUMENT")
    return _finish(lambda full, arrays: _exchange((kind, full, op, root_rank, number, size), *arrays), name, what, [tensor])


def allgather(tensor, name: Optional[str] = None, process_set: ProcessSet = global_process_set):
    """Concatenates all ranks' arrays, which have as many rows each, along the first dimension. Differentiable."""
    return _exchanged(_ALLGATHER, "allgather", tensor, name, 1, 0, process_set)


def broadcast(tree: Any, root_rank: int, name: Optional[str] = None, process_set: ProcessSet = global_process_set) -> Any:
    """The root's array, or every array of the root's tree, such as the parameters of a model. Differentiable."""
    leaves, structure = jax.tree_util.tree_flatten(tree)
    names = [name] if len(leaves) == 1 else [None if name is None else f"{name}.{index}" for index in range(len(leaves))]
    return jax.tree_util.tree_unflatten(structure, [
        _exchanged(_BROADCAST, "broadcast", leaf, own, 1, root_rank, process_set) for leaf, own in zip(leaves, names)])


def alltoall(tensor, name: Optional[str] = None, process_set: ProcessSet = global_process_set):
    """Sends the n-th part of the rows to the n-th rank, and returns what the others have sent. Differentiable."""
    return _exchanged(_ALLTOALL, "alltoall", tensor, name, 1, 0, process_set)


def reducescatter(tensor, name: Optional[str] = None, op: int = Average, process_set: ProcessSet = global_process_set):
    """Reduces an array and returns this rank's part of its rows, whose number is a multiple of the number of ranks. Differentiable."""
    return _exchanged(_REDUCESCATTER, "reducescatter", tensor, name, _basics.native_op(op), 0, process_set)
