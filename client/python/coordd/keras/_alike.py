"""Whether all ranks train the same model: a digest of its trainable weights, small enough to travel with the metrics of an epoch.

The digest is of numbers whose mean over the ranks tells whether they differ: sums of weights, their squares, and the weights' own squares
to compare with. Weights that were drawn differently have sums that differ by about their norm.
"""

import math
import weakref
from typing import Any, Iterable, List, Sequence, Set

import numpy

from coordd.keras._reduce import key_of
from coordd.keras._which import BACKEND, keras

_MOST_ELEMENTS = 1 << 25  # that come to the host: tens of milliseconds; variables beyond are not looked at
_SAMPLE = 4096  # elements of a variable at least, if it has them
_ROUNDING = 1e-3  # of the norm: far more than what ranks on unlike machines round differently
_NOTHING = [float("nan")] * 5  # of one rank makes the mean one, which is none that differs

_local: Any = weakref.WeakKeyDictionary()  # of a model, keys of variables that are each rank's own


def leave_out(model, keys: Iterable[int]) -> None:
    """These of its variables are each rank's own."""
    _local.setdefault(model, set()).update(keys)


def digest(model) -> List[float]:
    """As long on every rank. Nothing but NaN where ranks do not train one model, or its weights cannot be read: no reason to end a
    training."""
    optimizer: Any = getattr(model, "optimizer", None)
    options = getattr(optimizer, "_coordd_options", None)
    if options is not None and options.process_set.process_set_id != 0:
        return _NOTHING
    local = getattr(optimizer, "_coordd_local", set()) | _local.get(model, set())
    try:
        return _digest_of(model, local)
    except Exception:  # of whatever a backend raises, of values on other machines, for instance
        return _NOTHING


def _digest_of(model, local: Set[int]) -> List[float]:
    if hasattr(model, "jax_state_sync"):
        model.jax_state_sync()  # on JAX fit() has the values while it trains
    even = odd = squares = 0.0
    left = _MOST_ELEMENTS
    for variable in model.trainable_variables:
        size = math.prod(variable.shape)
        if key_of(variable) in local or size > left:
            continue
        left -= size
        values = variable.numpy() if BACKEND == "tensorflow" else keras.ops.convert_to_numpy(variable)
        sample = numpy.asarray(values).reshape(-1)[::max(1, size // _SAMPLE)].astype(numpy.float64)
        even += float(sample[::2].sum())
        odd += float(sample[1::2].sum())
        squares += float(sample.dot(sample))
    return [even, even * even, odd, odd * odd, squares]


def do_differ(mean: Sequence[float]) -> bool:
    """`mean`: of all ranks' digests."""
    even, even_square, odd, odd_square, squares = map(float, mean)
    variance = even_square - even * even + odd_square - odd * odd
    return variance > _ROUNDING * _ROUNDING * squares
