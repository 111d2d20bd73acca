"""How an array travels: as it is, or with fewer bits per element."""

import jax.numpy as jnp

from coordd._compression import Compressor, NoneCompressor

__all__ = ["Compression", "Compressor"]


class _NarrowFloat(Compressor):
    """Floating-point arrays travel in `dtype`; others, and narrower ones, as they are."""

    dtype = jnp.float16

    @classmethod
    def compress(cls, tensor):
        if not jnp.issubdtype(tensor.dtype, jnp.floating) or tensor.dtype.itemsize <= 2:
            return tensor, None
        return tensor.astype(cls.dtype), tensor.dtype

    @classmethod
    def decompress(cls, tensor, ctx):
        return tensor if ctx is None else tensor.astype(ctx)


class FP16Compressor(_NarrowFloat):
    """float16: 11 bits of precision, values up to 65504."""


class BF16Compressor(_NarrowFloat):
    """bfloat16: 8 bits of precision, the range of float32."""
    dtype = jnp.bfloat16


class Compression:
    """The compressors that come with coordd."""
    none = NoneCompressor
    fp16 = FP16Compressor
    bf16 = BF16Compressor
