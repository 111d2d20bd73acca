"""Gradients of a step become those of all ranks, on whatever backend Keras has. Everything else in coordd.keras is the same for all."""

from typing import Any, List, NamedTuple, Sequence, Tuple, Type

from coordd import _basics
from coordd._arguments import check_optimizer, checked_groups
from coordd._names import without
from coordd.exceptions import UnsupportedError
from coordd.keras._which import BACKEND, keras

ERRORS: Tuple[Type[BaseException], ...] = ()  # that a backend's runtime makes of what an op of ours has said


def wait_for(values: Sequence) -> None:
    """On a backend that returns before it has computed: an error of that is raised here."""
    if BACKEND == "jax":
        jax.block_until_ready(list(values))


if BACKEND == "tensorflow":
    import tensorflow as tf

    from coordd.tensorflow import _gradients
    from coordd.tensorflow.compression import Compression as Compression
    ERRORS = (tf.errors.OpError,)
    key_of = _gradients.key_of
    reduce_gradients = _gradients.reduce_gradients
else:
    if BACKEND == "torch":
        from coordd.torch import grouped_allreduce
        from coordd.torch.compression import Compression as Compression  # type: ignore[assignment]
    elif BACKEND == "jax":
        import jax

        from coordd.jax import grouped_allreduce  # type: ignore[assignment]
        from coordd.jax.compression import Compression as Compression  # type: ignore[assignment]
        ERRORS = (jax.errors.JaxRuntimeError,)
    else:
        raise ImportError(f"coordd.keras: Keras runs on the backend {BACKEND}, expected tensorflow, jax or torch")

    def key_of(variable) -> int:
        return id(variable)

    def reduce_gradients(gradients: Sequence, options: Any, name: str, variables: Any = None, local: Sequence[int] = (),
                         factor: float = 1.0) -> List:
        """As coordd.tensorflow's: all of them in one go."""
        results = list(gradients)
        places = [index for index, one in enumerate(results) if one is not None and index not in local]
        if places:
            compressed, contexts = zip(*[options.compression.compress(results[place]) for place in places])
            absent = [index for index in range(len(results)) if index not in places]
            reduced = grouped_allreduce(
                [one.contiguous() for one in compressed] if BACKEND == "torch" else list(compressed), name=without(name, absent),
                op=options.op,
                prescale_factor=1.0 / options.gradient_predivide_factor,
                postscale_factor=options.gradient_predivide_factor * factor, process_set=options.process_set)
            for place, one, context in zip(places, reduced, contexts):
                results[place] = options.compression.decompress(one, context)
        for place in local:
            if results[place] is not None:
                size = (options.process_set.size() or 1) if options.scale_local_gradients else 1
                results[place] = results[place] * (factor / size)
        return results


def checked_options(compression, sparse_as_dense, op, gradient_predivide_factor, num_groups, groups, process_set,
                    scale_local_gradients):
    """ValueError: an argument does not fit."""
    if BACKEND == "tensorflow":
        return _gradients.checked_options(compression, sparse_as_dense, op, gradient_predivide_factor, num_groups, groups,
                                          process_set, scale_local_gradients)
    check_optimizer(op, (_basics.Average, _basics.Sum), gradient_predivide_factor, process_set, compression)
    if checked_groups(groups, num_groups) is not None:
        raise UnsupportedError(f"groups on the backend {BACKEND}: all gradients travel in one group there", "UNIMPLEMENTED")
    return _Options(compression, op, float(gradient_predivide_factor), process_set, bool(scale_local_gradients))


class _Options(NamedTuple):
    compression: Any
    op: int
    gradient_predivide_factor: float
    process_set: Any
    scale_local_gradients: bool


def is_mixed_float16() -> bool:
    """Whether models of this program train in float16, so that compile() wraps an optimizer in one that scales the loss."""
    if hasattr(keras, "config") and hasattr(keras.config, "dtype_policy"):
        return keras.config.dtype_policy().name == "mixed_float16"
    return keras.mixed_precision.global_policy().name == "mixed_float16"


def loss_scale_class() -> type:
    """Keras's optimizer around another one that scales the loss."""
    return keras.optimizers.LossScaleOptimizer if hasattr(keras.optimizers, "LossScaleOptimizer") else (
        keras.mixed_precision.LossScaleOptimizer)
