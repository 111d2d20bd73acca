"""Arrays that lie on several devices (NamedSharding, shard_map, pmap): XLA has no way to split a call that has effects,
and says so of its own insides. What is called is refused here before XLA sees it: by what an array says of itself, or, under jax.jit, when
the program is lowered, which is when JAX knows for how many devices it is."""

import contextlib
from typing import Any, Optional, Sequence

import jax

from coordd.exceptions import UnsupportedError


def _refuse(what: str, count: int, how: str) -> None:
    raise UnsupportedError(f"{what}: {how} {count} devices, expected one: coordd reduces between ranks, so that each rank "
                           "has one device (jax.device_put(array, jax.devices()[0]) brings an array there)", "UNIMPLEMENTED")


def check_arrays(what: str, arrays: Sequence) -> None:
    """NotImplementedError: one of them lies on several devices. Of what jax.jit traces nothing is known yet."""
    for array in arrays:
        devices = getattr(getattr(array, "sharding", None), "device_set", ()) if not isinstance(array, jax.core.Tracer) else ()
        if len(devices) > 1:
            _refuse(what, len(devices), "an array that lies on")


def _devices_of(context: Any) -> Optional[int]:
    """Of a program that is lowered; None: this JAX does not say."""
    axes = getattr(context.module_context, "axis_context", None)
    for count in (getattr(axes, "num_devices", None), getattr(getattr(axes, "mesh", None), "size", None),
                  getattr(getattr(axes, "axis_env", None), "nreps", None)):
        if isinstance(count, int):
            return count
    return None


def _lower(context, operand, *, what: str):
    count = _devices_of(context)
    if count is not None and count > 1:
        _refuse(what, count, "inside of a program for")
    return [operand]


def _made():
    """What returns its operand and asks for how many devices the program is that it is in; None: this JAX has other insides."""
    with contextlib.suppress(ImportError, AttributeError):
        from jax.extend.core import Primitive
        from jax.interpreters import batching, mlir
        asks = Primitive("coordd_one_device")
        asks.def_impl(lambda operand, *, what: operand)
        asks.def_abstract_eval(lambda operand, *, what: operand)
        mlir.register_lowering(asks, _lower)
        batching.primitive_batchers[asks] = lambda operands, places, *, what: (asks.bind(*operands, what=what), places[0])
        _let_through_shard_map(asks)
        return asks
    return None


def _let_through_shard_map(asks) -> None:
    """A JAX before 0.7 knows for each primitive whether what it makes is the same on all devices."""
    if tuple(map(int, jax.__version__.split(".")[:2])) < (0, 7):
        with contextlib.suppress(ImportError, AttributeError):
            from jax.experimental import shard_map
            shard_map.register_standard_check(asks)
            shard_map.register_standard_rewrite(asks)


_asks = _made()


def checked(what: str, array):
    """The array, behind a question to the program that is lowered."""
    if _asks is None or not isinstance(array, jax.core.Tracer):
        return array
    return _asks.bind(array, what=what)
