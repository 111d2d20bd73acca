"""Tapes whose gradients are those of all ranks."""

import functools
from typing import Any, List, Optional

import tensorflow as tf

from coordd._basics import Average
from coordd.exceptions import InvalidArgumentError
from coordd.process_sets import ProcessSet, global_process_set
from coordd.tensorflow._gradients import checked_options, key_of, reduce_gradients
from coordd.tensorflow.compression import Compression

__all__ = ["DistributedGradientTape", "PartialDistributedGradientTape"]


class _DistributedGradientTape(tf.GradientTape):
    """What a distributed tape adds to its class."""

    def register_local_source(self, source) -> None:
        """The gradient of this variable stays this rank's own."""
        self._coordd_local.add(key_of(source))

    @tf.autograph.experimental.do_not_convert
    def gradient(self, target, sources, output_gradients=None, use_generic_names=False,
                 unconnected_gradients=tf.UnconnectedGradients.NONE):
        """tf.GradientTape's, reduced over all ranks. `use_generic_names` is there for Horovod's sake."""
        own = super().gradient(target, sources, output_gradients, unconnected_gradients)
        if self._coordd_options.process_set.included() is False:
            return own
        flat_sources = tf.nest.flatten(sources)
        flat = tf.nest.flatten(own)
        local = [index for index, source in enumerate(flat_sources) if key_of(source) in self._coordd_local]
        reduced = reduce_gradients(flat, self._coordd_options, "tape.gradients", flat_sources, local)
        return tf.nest.pack_sequence_as(own, reduced) if tf.nest.is_nested(own) else reduced[0]


@functools.lru_cache(maxsize=None)
def _distributed_class(base: type) -> type:
    return type(base.__name__, (_DistributedGradientTape, base) if base is not tf.GradientTape else (_DistributedGradientTape,),
                {"__module__": base.__module__, "__doc__": base.__doc__})


def DistributedGradientTape(gradtape: tf.GradientTape, device_dense: str = "", device_sparse: str = "",
                            compression=Compression.none, sparse_as_dense: bool = False, op: int = Average,
                            gradient_predivide_factor: float = 1.0, num_groups: int = 0, groups: Any = None,
                            process_set: ProcessSet = global_process_set, scale_local_gradients: bool = True) -> tf.GradientTape:
    """The same tape, whose gradient() from now on returns the gradients of all ranks.

    groups: a number of groups, or lists of variables: gradients of a group travel together. Otherwise as the arguments of
            coordd.tensorflow.DistributedOptimizer; device_dense, device_sparse are there for Horovod's sake.
    """
    if not isinstance(gradtape, tf.GradientTape):
        raise InvalidArgumentError(f"gradtape is {gradtape!r}: expected a tf.GradientTape", "INVALID_ARGUMENT")
    if isinstance(gradtape, _DistributedGradientTape):
        raise InvalidArgumentError("the tape is a DistributedGradientTape already", "INVALID_ARGUMENT")
    tape: Any = gradtape
    tape._coordd_options = checked_options(compression, sparse_as_dense, op, gradient_predivide_factor, num_groups, groups,
                                           process_set, scale_local_gradients)
    tape._coordd_local = set()
    tape.__class__ = _distributed_class(type(gradtape))  # type: ignore[arg-type]
    return tape


def PartialDistributedGradientTape(gradtape: tf.GradientTape, device_dense: str = "", device_sparse: str = "",
                                   compression=Compression.none, sparse_as_dense: bool = False, op: int = Average,
                                   gradient_predivide_factor: float = 1.0, num_groups: int = 0, groups: Any = None,
                                   process_set: ProcessSet = global_process_set, local_layers: Optional[List] = None,
                                   scale_local_gradients: bool = True) -> tf.GradientTape:
    """DistributedGradientTape() that leaves the gradients of some layers' trainable weights alone."""
    tape: Any = DistributedGradientTape(gradtape, device_dense, device_sparse, compression, sparse_as_dense, op,
                                        gradient_predivide_factor, num_groups, groups, process_set, scale_local_gradients)
    layers = local_layers if isinstance(local_layers, (list, tuple)) else [local_layers] if local_layers is not None else []
    for layer in layers:
        for variable in layer.trainable_weights:
            tape.register_local_source(variable)
    return tape
