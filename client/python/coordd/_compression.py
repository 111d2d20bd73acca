"""What the compressors of all frameworks have in common: how a tensor travels.

A compressor is a class with two functions, so that a program may bring its own: ``compress(tensor) -> (tensor, context)`` and
``decompress(tensor, context) -> tensor``.
"""


class Compressor:
    """What every compressor offers."""

    @staticmethod
    def compress(tensor):
        """The tensor to submit, and what decompress() needs to know."""
        raise NotImplementedError

    @staticmethod
    def decompress(tensor, ctx):
        """The result in the form of the original."""
        raise NotImplementedError


class NoneCompressor(Compressor):
    """Leaves tensors as they are."""

    @staticmethod
    def compress(tensor):
        return tensor, None

    @staticmethod
    def decompress(tensor, ctx):
        return tensor
