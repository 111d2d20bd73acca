"""allreduce and reducescatter: every dtype, dimension, operator and form, against a sum of our own."""

import itertools

import torch

import coordd.torch as hvd
import values
from values import DTYPES, FLOATS, OPS, SHAPES, expect, has_meaning, of, own, reduced


def everybody(shape, dtype, seed=0):
    return [of(rank, shape, dtype, seed) for rank in range(hvd.size())]


def cases(dtypes=DTYPES):
    """(seed, dtype, shape, op), all of them that mean something."""
    return [(seed, dtype, shape, op) for seed, (dtype, shape, op) in enumerate(itertools.product(dtypes, SHAPES, OPS))
            if has_meaning(dtype, op)]


def check_allreduce_async_of_every_dtype_dimension_and_op():
    handles = [hvd.allreduce_async(own(shape, dtype, seed), op=op) for seed, dtype, shape, op in cases()]
    for handle, (seed, dtype, shape, op) in zip(handles, cases()):
        expect(hvd.synchronize(handle), reduced(everybody(shape, dtype, seed), op), f"{dtype} {shape} op {op}")


def check_allreduce_async_in_place_of_every_dtype_dimension_and_op():
    inputs = [own(shape, dtype, seed) for seed, dtype, shape, op in cases()]
    handles = [hvd.allreduce_async_(tensor, op=case[3], name=f"in.place.{case[0]}")
               for tensor, case in zip(inputs, cases())]
    for tensor, handle, (seed, dtype, shape, op) in zip(inputs, handles, cases()):
        result = hvd.synchronize(handle)
        assert result is tensor
        expect(tensor, reduced(everybody(shape, dtype, seed), op), f"{dtype} {shape} op {op}")


def check_allreduce_of_every_dtype():
    for dtype in DTYPES:
        tensor = own((2, 3), dtype)
        before = tensor.clone()
        expect(hvd.allreduce(tensor, op=hvd.Sum), reduced(everybody((2, 3), dtype), hvd.Sum))
        expect(tensor, before)
        result = hvd.allreduce_(tensor, op=hvd.Max)
        assert result is tensor
        expect(tensor, reduced(everybody((2, 3), dtype), hvd.Max))


def check_grouped_allreduce_of_every_dtype_dimension_and_op():
    for op in OPS:
        group = [(seed, dtype, shape) for seed, (dtype, shape) in enumerate(itertools.product(DTYPES, SHAPES))
                 if has_meaning(dtype, op)]
        inputs = [own(shape, dtype, seed) for seed, dtype, shape in group]
        expected = [reduced(everybody(shape, dtype, seed), op) for seed, dtype, shape in group]
        pending = hvd.grouped_allreduce_async(inputs, op=op)
        for found, want in zip(hvd.grouped_allreduce(inputs, op=op), expected):
            expect(found, want, f"op {op}")
        for found, want in zip(hvd.synchronize(pending), expected):
            expect(found, want, f"op {op}")
        in_place = [tensor.clone() for tensor in inputs]
        for found, tensor, want in zip(hvd.synchronize(hvd.grouped_allreduce_async_(in_place, op=op)), in_place, expected):
            assert found is tensor
            expect(found, want, f"op {op}")
        for found, want in zip(hvd.grouped_allreduce_([tensor.clone() for tensor in inputs], op=op), expected):
            expect(found, want, f"op {op}")


def check_average_is_the_default_and_has_an_old_name():
    tensor = own((4,), torch.float32)
    mean, total = reduced(everybody((4,), torch.float32), hvd.Average), reduced(everybody((4,), torch.float32), hvd.Sum)
    expect(hvd.allreduce(tensor), mean)
    expect(hvd.allreduce(tensor, average=True), mean)
    expect(hvd.allreduce(tensor, average=False), total)
    expect(hvd.allreduce(tensor, True, "positional"), mean)
    expect(hvd.reducescatter(torch.ones(hvd.size())), torch.ones(1))


def check_scale_factors():
    for seed, dtype in enumerate(FLOATS + [torch.int32, torch.int64]):
        tensors = everybody((3, 5), dtype, seed)
        for before, after, op in [(2.0, 1.0, hvd.Sum), (1.0, 0.5, hvd.Sum), (0.5, 3.0, hvd.Average)]:
            expect(hvd.allreduce(own((3, 5), dtype, seed), op=op, prescale_factor=before, postscale_factor=after),
                   reduced(tensors, op, before, after), f"{dtype} {before} {after}")
    grouped = hvd.grouped_allreduce([torch.ones(3), torch.ones(2)], op=hvd.Sum, prescale_factor=2.0, postscale_factor=3.0)
    expect(grouped[1], torch.full((2,), 6.0 * hvd.size()))
    part = hvd.reducescatter(torch.ones(hvd.size()), op=hvd.Sum, prescale_factor=2.0, postscale_factor=0.25)
    expect(part, torch.full((1,), 0.5 * hvd.size()))


def check_compression():
    tensor = own((9,), torch.float32)
    mean = reduced(everybody((9,), torch.float32), hvd.Average)
    for compression, tolerance in [(hvd.Compression.none, 1e-6), (hvd.Compression.fp16, 1e-3),
                                   (hvd.Compression.bf16, 2e-2)]:
        for found in (hvd.allreduce(tensor, compression=compression),
                      hvd.grouped_allreduce([tensor], compression=compression)[0]):
            assert found.dtype == torch.float32
            assert torch.allclose(found, mean, atol=tolerance), (compression, found, mean)


def check_odd_shapes():
    expect(hvd.allreduce(torch.tensor(float(hvd.rank())), op=hvd.Sum), torch.tensor(float(sum(range(hvd.size())))))
    expect(hvd.allreduce(torch.empty(0)), torch.empty(0))
    expect(hvd.allreduce(torch.empty(3, 0, 2)), torch.empty(3, 0, 2))
    expect(hvd.allreduce(torch.ones((1,) * 8), op=hvd.Sum), torch.full((1,) * 8, float(hvd.size())))
    parameter = torch.nn.Parameter(torch.ones(3))
    expect(hvd.allreduce_(parameter.data, op=hvd.Sum), torch.full((3,), float(hvd.size())))


def check_a_large_tensor():
    tensor = torch.full((1 << 20,), float(hvd.rank()))
    expect(hvd.allreduce(tensor), torch.full((1 << 20,), (hvd.size() - 1) / 2))


def check_a_large_group():
    tensors = [torch.full((7,), float(index)) for index in range(500)]
    for index, found in enumerate(hvd.grouped_allreduce(tensors, op=hvd.Sum)):
        expect(found, torch.full((7,), float(index * hvd.size())))


def part(tensor, ranks=None, own_rank=None):
    """This rank's rows of a split first dimension."""
    ranks, own_rank = ranks or hvd.size(), hvd.rank() if own_rank is None else own_rank
    return tensor.tensor_split(ranks)[own_rank]


def check_reducescatter_of_every_dtype_and_dimension():
    for seed, (dtype, shape) in enumerate(itertools.product(DTYPES, SHAPES)):
        for op in [op for op in OPS if has_meaning(dtype, op)]:
            expected = part(reduced(everybody(shape, dtype, seed), op))
            expect(hvd.reducescatter(own(shape, dtype, seed), op=op), expected, f"{dtype} {shape} op {op}")
    handle = hvd.reducescatter_async(torch.ones(2 * hvd.size(), 3), op=hvd.Sum)
    expect(hvd.synchronize(handle), torch.full((2, 3), float(hvd.size())))


def check_reducescatter_gives_lower_ranks_the_extra_rows():
    rows = hvd.size() + 1
    found = hvd.reducescatter(torch.ones(rows, 2), op=hvd.Sum)
    assert found.shape == (2 if hvd.rank() == 0 else 1, 2) or hvd.size() == 1 and found.shape == (2, 2)


def check_reduce_scatter_tensor():
    flat = torch.arange(hvd.size() * 6, dtype=torch.float32)
    for op, factor in [(hvd.Sum, hvd.size()), (hvd.Average, 1)]:
        output = torch.empty(6)
        assert hvd.reduce_scatter_tensor(output, flat, op=op) is output
        expect(output, flat[hvd.rank() * 6:hvd.rank() * 6 + 6] * factor)
    output = torch.empty(2, 3)  # split as it lies in memory, whatever the shapes
    handle = hvd.reduce_scatter_tensor_async(output, flat.view(hvd.size() * 2, 3))
    expect(hvd.synchronize(handle).view(-1), flat[hvd.rank() * 6:hvd.rank() * 6 + 6] * hvd.size())
    values.expect_error(ValueError, lambda: hvd.reduce_scatter_tensor(torch.empty(5), flat), "5 elements", "expected 6")


def check_sparse_allreduce():
    own_rank = hvd.rank()
    indices = torch.tensor([[0, own_rank + 1]])
    tensor = torch.sparse_coo_tensor(indices, torch.tensor([1.0, own_rank + 1.0]), (6,))
    expected = torch.zeros(6)
    for rank in range(hvd.size()):
        expected[0] += 1
        expected[rank + 1] += rank + 1
    expect(hvd.synchronize(hvd.sparse_allreduce_async(tensor, name="s", op=hvd.Sum)).to_dense(), expected)
    handle = hvd.sparse_allreduce_async(tensor, name="s", op=hvd.Average)
    assert callable(handle)
    expect(handle().to_dense(), expected / hvd.size())
    none = torch.sparse_coo_tensor(torch.empty(1, 0, dtype=torch.long), torch.empty(0), (6,))
    uneven = hvd.sparse_allreduce_async(tensor if own_rank == 0 else none, name="s", op=hvd.Sum)()
    expect(uneven.to_dense(), torch.tensor([1.0, 1, 0, 0, 0, 0]))


def check_gradient_of_allreduce():
    for dtype, shape in itertools.product([torch.float32, torch.float64], SHAPES):
        for op, factor in [(hvd.Sum, hvd.size()), (hvd.Average, 1)]:
            tensor = own(shape, dtype).requires_grad_()
            hvd.allreduce(tensor, op=op).backward(torch.ones(shape, dtype=dtype))
            expect(tensor.grad, torch.full(shape, float(factor), dtype=dtype))
    tensor = torch.ones(3, requires_grad=True)
    hvd.allreduce(tensor, op=hvd.Sum, prescale_factor=2.0, postscale_factor=3.0).sum().backward()
    expect(tensor.grad, torch.full((3,), 6.0 * hvd.size()))
    tensor = torch.ones(3, requires_grad=True)
    hvd.allreduce(tensor, op=hvd.Sum, compression=hvd.Compression.fp16).sum().backward()
    expect(tensor.grad, torch.full((3,), float(hvd.size())))


def check_gradient_of_grouped_allreduce():
    tensors = [torch.ones(shape, requires_grad=True) for shape in SHAPES]
    results = hvd.grouped_allreduce(tensors, op=hvd.Sum)
    sum((index + 1) * result.sum() for index, result in enumerate(results)).backward()
    for index, tensor in enumerate(tensors):
        expect(tensor.grad, torch.full(tensor.shape, float((index + 1) * hvd.size())))


def check_gradient_of_reducescatter():
    for op, factor in [(hvd.Sum, hvd.size()), (hvd.Average, 1)]:
        tensor = torch.ones(2 * hvd.size() + 1, 3, requires_grad=True)
        result = hvd.reducescatter(tensor, op=op)
        result.backward(torch.full(result.shape, float(hvd.rank() + 1)))
        whole = torch.cat([torch.full(rows.shape, float(rank + 1))
                           for rank, rows in enumerate(tensor.detach().tensor_split(hvd.size()))])
        expect(tensor.grad, whole * factor)


def check_no_gradient_where_none_is_wanted():
    tensor = torch.ones(3, requires_grad=True)
    with torch.no_grad():
        assert not hvd.allreduce(tensor).requires_grad
    assert not hvd.synchronize(hvd.allreduce_async(tensor)).requires_grad
    assert hvd.allreduce(tensor).requires_grad
