"""How a tensor travels: as it is, or with fewer bits per element.

A compressor is a class with two functions, so that a program may bring its own: ``compress(tensor) -> (tensor, context)`` and
``decompress(tensor, context) -> tensor``.
"""

import tensorflow as tf

from coordd._compression import Compressor, NoneCompressor

__all__ = ["Compression", "Compressor"]


class _NarrowFloat(Compressor):
    """Floating-point tensors travel in `dtype`; others, and narrower ones, as they are."""

    dtype: tf.DType

    @classmethod
    def compress(cls, tensor):
        if not tensor.dtype.is_floating or tensor.dtype.size <= 2:
            return tensor, None
        return tf.cast(tensor, cls.dtype), tensor.dtype

    @classmethod
    def decompress(cls, tensor, ctx):
        return tensor if ctx is None else tf.cast(tensor, ctx)


class FP16Compressor(_NarrowFloat):
    """float16: 11 bits of precision, values up to 65504."""
    dtype = tf.float16


class BF16Compressor(_NarrowFloat):
    """bfloat16: 8 bits of precision, the range of float32."""
    dtype = tf.bfloat16


class Compression:
    """The compressors that come with coordd."""
    none = NoneCompressor
    fp16 = FP16Compressor
    bf16 = BF16Compressor
