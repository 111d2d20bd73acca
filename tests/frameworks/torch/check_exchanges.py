"""allgather, broadcast, alltoall and barrier: every dtype, dimension and form, ragged and empty parts, gradients."""

import gc
import itertools

import torch

import coordd.torch as hvd
from values import DTYPES, SHAPES, expect, expect_error, of, own


def rows_of(rank):
    return (rank + 1, 2 * rank)[rank % 2]  # 1, 2, 3, 6: never as many as the neighbour


def ragged(rank, tail, dtype, seed=0):
    return of(rank, (rows_of(rank), *tail), dtype, seed)


def check_allgather_of_every_dtype_and_dimension():
    cases = list(enumerate(itertools.product(DTYPES, [(), (3,), (2, 3)])))
    handles = [hvd.allgather_async(ragged(hvd.rank(), tail, dtype, seed)) for seed, (dtype, tail) in cases]
    for handle, (seed, (dtype, tail)) in zip(handles, cases):
        expected = torch.cat([ragged(rank, tail, dtype, seed) for rank in range(hvd.size())])
        expect(hvd.synchronize(handle), expected, f"{dtype} {tail}")
    expect(hvd.allgather(torch.full((1, 2), hvd.rank())), torch.arange(hvd.size()).view(-1, 1).expand(-1, 2))


def check_allgather_of_nothing():
    expect(hvd.allgather(torch.empty(0, 3)), torch.empty(0, 3))
    mine = torch.ones(2, 3) if hvd.rank() == hvd.size() - 1 else torch.empty(0, 3)
    expect(hvd.allgather(mine), torch.ones(2, 3))


def check_the_gathered_tensor_outlives_everything():
    gathered = hvd.allgather(torch.full((1000,), float(hvd.rank())))
    last = gathered[-3:]
    del gathered
    gc.collect()
    for _ in range(3):
        hvd.allgather(torch.full((1000,), -1.0))
    expect(last, torch.full((3,), float(hvd.size() - 1)))
    last += 1  # it is the program's own
    expect(last, torch.full((3,), float(hvd.size())))


def check_grouped_allgather():
    group = list(itertools.product(DTYPES, [(), (3,)]))
    inputs = [ragged(hvd.rank(), tail, dtype, seed) for seed, (dtype, tail) in enumerate(group)]
    expected = [torch.cat([ragged(rank, tail, dtype, seed) for rank in range(hvd.size())])
                for seed, (dtype, tail) in enumerate(group)]
    for found, want in zip(hvd.grouped_allgather(inputs), expected):
        expect(found, want)
    for found, want in zip(hvd.synchronize(hvd.grouped_allgather_async(inputs, name="g")), expected):
        expect(found, want)


def check_allgather_into_tensor():
    shard = torch.arange(6.0) + 6 * hvd.rank()
    output = torch.empty(6 * hvd.size())
    assert hvd.allgather_into_tensor(output, shard) is output
    expect(output, torch.arange(6.0 * hvd.size()))
    stacked = torch.empty(hvd.size(), 2, 3)
    expect(hvd.synchronize(hvd.allgather_into_tensor_async(stacked, shard.view(2, 3))).view(-1), output)
    expect_error(ValueError, lambda: hvd.allgather_into_tensor(torch.empty(6 * hvd.size() + 1), shard), "expected")
    expect_error(ValueError, lambda: hvd.allgather_into_tensor(torch.empty(6 * hvd.size()).int(), shard), "int32")


def check_broadcast_of_every_dtype_dimension_and_root():
    cases = list(enumerate(itertools.product(DTYPES, SHAPES, range(hvd.size()))))
    handles = [hvd.broadcast_async(own(shape, dtype, seed), root) for seed, (dtype, shape, root) in cases]
    for handle, (seed, (dtype, shape, root)) in zip(handles, cases):
        expect(hvd.synchronize(handle), of(root, shape, dtype, seed))
    for seed, (dtype, shape, root) in cases:
        tensor = own(shape, dtype, seed)
        assert hvd.synchronize(hvd.broadcast_async_(tensor, root, name=f"in.place.{seed}")) is tensor
        expect(tensor, of(root, shape, dtype, seed))


def check_broadcast():
    for root in range(hvd.size()):
        tensor = torch.full((2,), float(hvd.rank()))
        expect(hvd.broadcast(tensor, root), torch.full((2,), float(root)))
        expect(tensor, torch.full((2,), float(hvd.rank())))
        assert hvd.broadcast_(tensor, root_rank=root) is tensor
        expect(tensor, torch.full((2,), float(root)))
    expect(hvd.broadcast(torch.tensor(True), 0), torch.tensor(True))


def check_alltoall_of_every_dtype_and_dimension():
    for seed, (dtype, tail) in enumerate(itertools.product(DTYPES, [(), (3,), (2, 3)])):
        shape = (2 * hvd.size(), *tail)
        expected = torch.cat([of(rank, shape, dtype, seed)[2 * hvd.rank():2 * hvd.rank() + 2]
                              for rank in range(hvd.size())])
        expect(hvd.alltoall(own(shape, dtype, seed)), expected)


def check_alltoall_with_splits():
    size, rank = hvd.size(), hvd.rank()
    for make in (list, torch.tensor, lambda splits: torch.tensor(splits, dtype=torch.int32)):
        splits = [(rank + to) % 3 for to in range(size)]
        rows = torch.cat([torch.full((count, 2), 10 * rank + to) for to, count in enumerate(splits)])
        found, received = hvd.alltoall(rows, splits=make(splits))
        expect(received, torch.tensor([(sender + rank) % 3 for sender in range(size)], dtype=torch.int32))
        expect(found, torch.cat([torch.full(((sender + rank) % 3, 2), 10 * sender + rank) for sender in range(size)]))
    for options in ({"splits": [1] * size}, {}):
        found, received = hvd.synchronize(hvd.alltoall_async(torch.ones(size), **options))
        expect(found, torch.ones(size))
        expect(received, torch.ones(size, dtype=torch.int32))


def check_alltoall_without_splits_of_different_numbers_of_rows():
    size, rank = hvd.size(), hvd.rank()
    rows = torch.cat([torch.full((rank + 1, 2), 10.0 * rank + to) for to in range(size)])
    expected = torch.cat([torch.full((sender + 1, 2), 10.0 * sender + rank) for sender in range(size)])
    counts = torch.arange(1, size + 1, dtype=torch.int32)
    expect(hvd.alltoall(rows), expected)
    found, received = hvd.synchronize(hvd.alltoall_async(rows))
    expect(found, expected)
    expect(received, counts)
    tensor = rows.clone().requires_grad_()
    found = hvd.alltoall(tensor)
    expect(found.detach(), expected)
    (found * (rank + 1)).sum().backward()  # goes back to where the rows came from
    expect(tensor.grad, torch.cat([torch.full((rank + 1, 2), to + 1.0) for to in range(size)]))


def check_alltoall_of_nothing():
    expect(hvd.alltoall(torch.empty(0)), torch.empty(0))
    found, received = hvd.alltoall(torch.empty(0, 2), splits=[0] * hvd.size())
    expect(found, torch.empty(0, 2))
    assert received.tolist() == [0] * hvd.size()


def check_wrong_splits_are_refused_at_the_call():
    size = hvd.size()
    expect_error(ValueError, lambda: hvd.alltoall(torch.ones(size), splits=[1] * (size + 1)), "splits")
    expect_error(ValueError, lambda: hvd.alltoall(torch.ones(size), splits=[2] * size), "splits")
    expect_error(ValueError, lambda: hvd.alltoall(torch.ones(size), splits=torch.ones(size)), "float32")
    if size > 1:
        expect_error(ValueError, lambda: hvd.alltoall(torch.ones(size + 1)), str(size))


def check_barrier():
    for _ in range(3):
        assert hvd.barrier() is None


def check_gradient_of_allgather():
    for tail in [(), (3,), (2, 3)]:
        tensor = ragged(hvd.rank(), tail, torch.float64).requires_grad_()
        gathered = hvd.allgather(tensor)
        gathered.backward(torch.arange(float(gathered.numel()), dtype=torch.float64).view(gathered.shape))
        first = sum(rows_of(rank) for rank in range(hvd.rank()))
        elements = torch.arange(float(gathered.numel()), dtype=torch.float64).view(gathered.shape)
        expect(tensor.grad, elements[first:first + rows_of(hvd.rank())])
    group = [torch.ones(rows_of(hvd.rank()), requires_grad=True), torch.ones(2, 2, requires_grad=True)]
    one, two = hvd.grouped_allgather(group)
    (one.sum() + 2 * two.sum()).backward()
    expect(group[0].grad, torch.ones(rows_of(hvd.rank())))
    expect(group[1].grad, torch.full((2, 2), 2.0))


def check_gradient_of_broadcast():
    for root in range(hvd.size()):
        tensor = torch.ones(3, requires_grad=True)
        hvd.broadcast(tensor, root).backward(torch.full((3,), float(hvd.rank())))
        mean = sum(range(hvd.size())) / hvd.size()
        expect(tensor.grad, torch.full((3,), mean if hvd.rank() == root else 0.0))


def check_gradient_of_alltoall():
    size, rank = hvd.size(), hvd.rank()
    tensor = torch.ones(2 * size, requires_grad=True)
    hvd.alltoall(tensor).backward(torch.full((2 * size,), float(rank)))
    expect(tensor.grad, torch.arange(float(size)).repeat_interleave(2))
    splits = [(rank + to) % 3 for to in range(size)]
    tensor = torch.ones(sum(splits), requires_grad=True)
    found, received = hvd.alltoall(tensor, splits=splits)
    assert not received.requires_grad
    found.backward(torch.full(found.shape, float(rank)))
    expect(tensor.grad, torch.cat([torch.full((count,), float(to)) for to, count in enumerate(splits)]))
