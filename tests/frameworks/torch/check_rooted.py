"""reduce and gather to one rank, messages between two."""

import itertools

import torch

import coordd.torch as hvd
from ranks import on_sizes
from values import DTYPES, OPS, SHAPES, expect, expect_error, has_meaning, of, own, reduced


def check_reduce_of_every_dtype_dimension_and_op():
    for seed, (dtype, shape, op) in enumerate(itertools.product(DTYPES, SHAPES, OPS)):
        if not has_meaning(dtype, op):
            continue
        root = seed % hvd.size()
        found = hvd.reduce(own(shape, dtype, seed), root, op=op)
        if hvd.rank() == root:
            expect(found, reduced([of(rank, shape, dtype, seed) for rank in range(hvd.size())], op))
        else:
            assert found is None
    found = hvd.synchronize(hvd.reduce_async(torch.ones(3), 0, op=hvd.Sum, prescale_factor=2.0, name="r"))
    assert found is None or found.tolist() == [2.0 * hvd.size()] * 3


def check_gather_of_every_dtype():
    for seed, (dtype, tail) in enumerate(itertools.product(DTYPES, [(), (3,)])):
        root = seed % hvd.size()
        found = hvd.gather(of(hvd.rank(), (hvd.rank() + 1, *tail), dtype, seed), root)
        if hvd.rank() == root:
            expect(found, torch.cat([of(rank, (rank + 1, *tail), dtype, seed) for rank in range(hvd.size())]))
        else:
            assert found is None
    assert (hvd.synchronize(hvd.gather_async(torch.ones(1), 0, name="g")) is None) == (hvd.rank() != 0)


@on_sizes(2, 3, 4)
def check_messages_around_a_ring():
    after, before = (hvd.rank() + 1) % hvd.size(), (hvd.rank() - 1) % hvd.size()
    for seed, (dtype, shape) in enumerate(itertools.product(DTYPES, SHAPES)):
        sent = hvd.isend(own(shape, dtype, seed), after)
        found = torch.empty(shape, dtype=dtype)
        assert hvd.recv(found, before) is found
        expect(found, of(before, shape, dtype, seed))
        assert hvd.synchronize(sent) is None


@on_sizes(2, 3, 4)
def check_messages_are_matched_in_their_order_or_by_name():
    if hvd.rank() == 0:
        handles = [hvd.isend(torch.full((2,), float(index)), 1) for index in range(5)]
        handles += [hvd.isend(torch.full((2,), -1.0), 1, name="a"), hvd.isend(torch.full((2,), -2.0), 1, name="b")]
        for handle in handles:
            hvd.synchronize(handle)
    elif hvd.rank() == 1:
        b, a = torch.empty(2), torch.empty(2)
        late = [hvd.irecv(b, 0, name="b"), hvd.irecv(a, 0, name="a")]
        for index in range(5):
            expect(hvd.recv(torch.empty(2), 0), torch.full((2,), float(index)))
        for handle in late:
            hvd.synchronize(handle)
        assert a.tolist() == [-1.0, -1.0] and b.tolist() == [-2.0, -2.0]
    if hvd.rank() < 2:  # both directions at once, under one name
        other = 1 - hvd.rank()
        sent = hvd.isend(torch.tensor([hvd.rank()]), other, name="both")
        expect(hvd.recv(torch.empty(1, dtype=torch.long), other, name="both"), torch.tensor([other]))
        hvd.synchronize(sent)


@on_sizes(2, 3, 4)
def check_messages_that_do_not_fit():
    if hvd.rank() == 0:
        expect_error(hvd.HorovodInternalError, lambda: hvd.send(torch.ones(3), 1, name="x"), "shape")
    elif hvd.rank() == 1:
        expect_error(hvd.HorovodInternalError, lambda: hvd.recv(torch.ones(4), 0, name="x"), "shape")
    for wrong in (-1, hvd.size(), hvd.rank()):
        expect_error(ValueError, lambda: hvd.send(torch.ones(1), wrong), str(wrong))
        expect_error(ValueError, lambda: hvd.recv(torch.ones(1), wrong), str(wrong))
    expect_error(ValueError, lambda: hvd.recv(torch.ones(1, 4).expand(4, 4), 1 - min(hvd.rank(), 1)), "share memory")


def check_wrong_roots_are_refused_at_the_call():
    for wrong in (-1, hvd.size()):
        expect_error(ValueError, lambda: hvd.reduce(torch.ones(1), wrong), str(wrong))
        expect_error(ValueError, lambda: hvd.gather(torch.ones(1), wrong), str(wrong))


def check_grouped_reducescatter():
    for op in [hvd.Sum, hvd.Average, hvd.Max]:
        group = [(seed, dtype, shape) for seed, (dtype, shape) in enumerate(itertools.product(DTYPES, SHAPES))
                 if has_meaning(dtype, op)]
        inputs = [own(shape, dtype, seed) for seed, dtype, shape in group]
        for found, (seed, dtype, shape) in zip(hvd.grouped_reducescatter(inputs, op=op), group):
            whole = reduced([of(rank, shape, dtype, seed) for rank in range(hvd.size())], op)
            expect(found, whole.tensor_split(hvd.size())[hvd.rank()])
    handle = hvd.grouped_reducescatter_async([torch.ones(hvd.size(), 2)] * 2, op=hvd.Sum, name="two")
    expect(hvd.synchronize(handle)[1], torch.full((1, 2), float(hvd.size())))
    tensors = [torch.ones(hvd.size() * 2, requires_grad=True) for _ in range(2)]
    one, two = hvd.grouped_reducescatter(tensors, op=hvd.Sum)
    (one.sum() + 3 * two.sum()).backward()
    expect(tensors[1].grad, torch.full((hvd.size() * 2,), 3.0 * hvd.size()))
