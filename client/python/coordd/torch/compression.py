"""How a tensor travels: as it is, or with fewer bits per element.

    coordd.torch.allreduce(gradient, compression=coordd.torch.Compression.bf16)

A compressor is a class with two functions, so that a program may bring its own: ``compress(tensor) -> (tensor, context)``
and ``decompress(tensor, context) -> tensor``.
"""

import torch

from coordd._compression import Compressor, NoneCompressor

__all__ = ["Compression", "Compressor"]


class _NarrowFloat(Compressor):
    """Floating-point tensors travel in `dtype`; others, and narrower ones, as they are."""

    dtype: torch.dtype

    @classmethod
    def compress(cls, tensor):
        if not tensor.is_floating_point() or tensor.element_size() <= 2:
            return tensor, None
        return tensor.to(cls.dtype), tensor.dtype

    @classmethod
    def decompress(cls, tensor, ctx):
        return tensor if ctx is None else tensor.to(ctx)


class FP16Compressor(_NarrowFloat):
    """float16: 11 bits of precision, values up to 65504."""
    dtype = torch.float16


class BF16Compressor(_NarrowFloat):
    """bfloat16: 8 bits of precision, the range of float32."""
    dtype = torch.bfloat16


class Compression:
    """The compressors that come with coordd."""
    none = NoneCompressor
    fp16 = FP16Compressor
    bf16 = BF16Compressor
