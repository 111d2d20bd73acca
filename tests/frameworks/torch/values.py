"""Inputs that every rank can compute for every other, and what comes out of them."""

import torch

import coordd.torch as hvd

FLOATS = [torch.float32, torch.float64, torch.float16, torch.bfloat16]
INTEGERS = [getattr(torch, name) for name in ("uint8", "int8", "int16", "int32", "int64", "uint16", "uint32", "uint64")
            if hasattr(torch, name)]
DTYPES = FLOATS + INTEGERS + [torch.bool]
SHAPES = [(17,), (5, 3), (3, 4, 2)]  # 1 to 3 dimensions
OPS = [hvd.Sum, hvd.Average, hvd.Min, hvd.Max, hvd.Product]


def has_meaning(dtype, op):
    """There is no average of truth values."""
    return not (dtype == torch.bool and op == hvd.Average)


TOLERANCE = {torch.float16: 2e-3, torch.bfloat16: 2e-2, torch.float32: 1e-6, torch.float64: 1e-12}


def of(rank, shape, dtype, seed=0):
    """A rank's tensor: small whole numbers, so that sums and products are exact in every dtype."""
    generator = torch.Generator().manual_seed(1000 * seed + rank)
    low = 0 if dtype == torch.bool or not dtype.is_floating_point and not signed(dtype) else -3
    high = 2 if dtype == torch.bool else 4
    return torch.randint(low, high, shape, generator=generator).to(dtype)


def own(shape, dtype, seed=0):
    return of(hvd.rank(), shape, dtype, seed)


def signed(dtype):
    return dtype in (torch.int8, torch.int16, torch.int32, torch.int64)


def wide(tensor):
    """As float64, in which torch computes everything."""
    return tensor.to(torch.int64).double() if tensor.dtype == torch.bool else tensor.double()


def reduced(tensors, op, prescale=1.0, postscale=1.0):
    """The reduction of the ranks' tensors, by the rules of docs/PROTOCOL.md, in their dtype."""
    dtype = tensors[0].dtype
    stack = torch.stack([wide(tensor) for tensor in tensors])
    if dtype == torch.bool:  # sum and max: or; min and product: and
        return (stack.amax(0) if op in (hvd.Sum, hvd.Max) else stack.amin(0)).bool()
    stack = stack * prescale
    if not dtype.is_floating_point:
        stack = stack.trunc()
    result = {hvd.Sum: stack.sum, hvd.Average: stack.sum, hvd.Min: stack.amin, hvd.Max: stack.amax,
              hvd.Product: stack.prod}[op](0)
    result = result * (postscale / len(tensors) if op == hvd.Average else postscale)
    return (result if dtype.is_floating_point else result.trunc()).to(dtype)


def expect(found, expected, what=""):
    """Equal in dtype, shape and, up to the rounding of the dtype, value."""
    assert isinstance(found, torch.Tensor), f"{what}: found {found!r}"
    assert found.dtype == expected.dtype, f"{what}: dtype {found.dtype}, expected {expected.dtype}"
    assert found.shape == expected.shape, f"{what}: shape {found.shape}, expected {expected.shape}"
    difference = (wide(found) - wide(expected)).abs()
    bound = TOLERANCE.get(found.dtype, 0) * wide(expected).abs().clamp(min=1)
    assert bool((difference <= bound).all()), f"{what}: found {found}, expected {expected}"


def expect_error(kind, call, *words):
    """`call` raises `kind`, with all the words in its text; returns the error."""
    try:
        result = call()
    except kind as error:
        for word in words:
            assert word in str(error), f"the text lacks {word!r}: {error}"
        return error
    raise AssertionError(f"expected {kind.__name__}, found {result!r}")
