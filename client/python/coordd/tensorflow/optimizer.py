"""DistributedOptimizer for the optimizers of Keras, and for those of tf.compat.v1.train."""

from typing import Any

import tensorflow as tf

from coordd._arguments import checked_passes
from coordd._basics import Average
from coordd.exceptions import InvalidArgumentError, UnsupportedError
from coordd.process_sets import ProcessSet, global_process_set
from coordd.tensorflow._gradients import checked_options, reduce_gradients
from coordd.tensorflow.compression import Compression

__all__ = ["DistributedOptimizer", "broadcast_global_variables"]


class _V1Optimizer(tf.compat.v1.train.Optimizer):
    """What is added to an optimizer of tf.compat.v1.train."""

    @tf.autograph.experimental.do_not_convert
    def compute_gradients(self, *arguments, **more):
        pairs = super().compute_gradients(*arguments, **more)
        reduced = reduce_gradients([gradient for gradient, _ in pairs], self._coordd_options, f"{self.get_name()}.gradients",
                                   [variable for _, variable in pairs])
        return [(gradient, variable) for gradient, (_, variable) in zip(reduced, pairs)]


def DistributedOptimizer(optimizer, name=None, use_locking: bool = False, device_dense: str = "", device_sparse: str = "",
                         compression=Compression.none, sparse_as_dense: bool = False, backward_passes_per_step: int = 1,
                         op: int = Average, gradient_predivide_factor: float = 1.0, average_aggregated_gradients: bool = False,
                         num_groups: int = 0, groups: Any = None, process_set: ProcessSet = global_process_set,
                         scale_local_gradients: bool = True):
    """The same optimizer, which from now on uses the gradients of all ranks: coordd.keras.DistributedOptimizer, whose arguments these
    are, or for an optimizer of tf.compat.v1.train one whose compute_gradients() reduces them. `name`, `use_locking`, `device_dense` and
    `device_sparse` are there for Horovod's sake."""
    if not isinstance(optimizer, tf.compat.v1.train.Optimizer):
        from coordd.keras import optimizer as of_keras  # after this package: it is a part of what coordd.keras imports
        return of_keras.DistributedOptimizer(
            optimizer, compression=compression, sparse_as_dense=sparse_as_dense, op=op,
            gradient_predivide_factor=gradient_predivide_factor, backward_passes_per_step=backward_passes_per_step,
            average_aggregated_gradients=average_aggregated_gradients, num_groups=num_groups, groups=groups,
            process_set=process_set, scale_local_gradients=scale_local_gradients)
    if isinstance(optimizer, _V1Optimizer):
        raise InvalidArgumentError("the optimizer is a DistributedOptimizer already", "INVALID_ARGUMENT")
    if checked_passes(backward_passes_per_step) != 1:
        raise UnsupportedError("backward_passes_per_step of an optimizer of tf.compat.v1.train: use one of Keras", "UNIMPLEMENTED")
    distributed: Any = optimizer
    distributed._coordd_options = checked_options(compression, sparse_as_dense, op, gradient_predivide_factor, num_groups, groups,
                                                  process_set, scale_local_gradients)
    distributed.__class__ = type(type(optimizer).__name__, (_V1Optimizer, type(optimizer)), {})
    return distributed


def broadcast_global_variables(root_rank: int):
    """Refused, as by Horovod in eager mode: there is no list of all variables."""
    raise UnsupportedError("broadcast_global_variables() needs a graph of TensorFlow 1: use broadcast_variables(model.variables, "
                           "root_rank=0)", "UNIMPLEMENTED")
