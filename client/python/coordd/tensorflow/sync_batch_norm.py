"""Batch normalisation over the batches of all ranks."""

import tensorflow as tf

from coordd import _basics
from coordd._made import name_of_new
from coordd.exceptions import InvalidArgumentError
from coordd.keras._which import LEGACY, keras
from coordd.tensorflow import _framework, mpi_ops

__all__ = ["SyncBatchNormalization"]


@(keras.utils if LEGACY else keras.saving).register_keras_serializable("coordd")
class SyncBatchNormalization(keras.layers.BatchNormalization):
    """keras.layers.BatchNormalization whose mean and variance in training are those of all ranks' batches together, which may differ in
    size. Not under XLA where a model has several: a blocking call in each would need one order. `fused` is there for Horovod's sake."""

    def __init__(self, fused: bool = False, **kwargs):
        if fused:
            raise InvalidArgumentError("fused=True: a fused layer does not tell its mean and variance, expected False",
                                       "INVALID_ARGUMENT")
        if LEGACY:
            kwargs["fused"] = False
        super().__init__(**kwargs)
        self._coordd_name = name_of_new("SyncBatchNormalization") + ".moments"

    def _moments(self, inputs, *arguments, **more):
        if _basics.size() == 1 and tf.executing_eagerly():  # what is traced may run when there are more ranks
            return super()._moments(inputs, *arguments, **more)
        mean, variance = super()._moments(inputs, *arguments, **more)
        wide = tf.float64 if mean.dtype == tf.float64 else tf.float32
        mean, variance = tf.cast(mean, wide), tf.cast(variance, wide)
        # Values for each channel; with a mask they are weighed alike, which is right where ranks have masked as many.
        count = tf.cast(tf.size(inputs), wide) / tf.cast(tf.size(mean), wide)
        sums = [tf.reshape(count, [1]), tf.reshape(mean * count, [-1]), tf.reshape((variance + mean * mean) * count, [-1])]
        name = self._coordd_name  # of a layer that is called twice in a step, two
        if not tf.executing_eagerly():
            name = _framework.unique_name(name)
        total = mpi_ops.allreduce(tf.concat(sums, 0), op=_basics.Sum, name=name)
        channels = tf.size(mean)
        of_all = tf.reshape(total[1:1 + channels] / total[0], tf.shape(mean))
        squares = tf.reshape(total[1 + channels:] / total[0], tf.shape(mean))
        dtype = inputs.dtype if LEGACY else None
        found = of_all, tf.maximum(squares - of_all * of_all, 0)
        return found if dtype is None else tuple(tf.cast(one, dtype) for one in found)
