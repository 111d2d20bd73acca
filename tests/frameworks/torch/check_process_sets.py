"""Process sets: static and dynamic, every operation inside, and none of them waiting for another."""

import itertools

import torch

import coordd.torch as hvd
from coordd import process_sets
from ranks import on_sizes
from values import DTYPES, SHAPES, expect, expect_error, has_meaning, of, own, reduced


@on_sizes(1, 2, 3, 4)
def check_the_set_of_all_ranks():
    everyone = hvd.global_process_set
    assert (everyone.process_set_id, everyone.size(), everyone.rank(), everyone.included()) == (
        0, hvd.size(), hvd.rank(), True)
    assert everyone.ranks == list(range(hvd.size()))
    assert hvd.remove_process_set(everyone) is False
    assert process_sets.process_set_by_id(0) is everyone
    expect(hvd.allreduce(torch.ones(2), op=hvd.Sum, process_set=everyone), torch.full((2,), float(hvd.size())))


@on_sizes(1, 2, 3, 4)
def check_wrong_sets_are_refused_on_all_ranks():
    expect_error(ValueError, lambda: hvd.add_process_set([hvd.size()]), str(hvd.size() - 1))
    expect_error(ValueError, lambda: hvd.add_process_set([]), "one or more")
    expect_error(ValueError, lambda: hvd.add_process_set(range(hvd.size())), "registered already", "0")
    expect_error(ValueError, lambda: hvd.remove_process_set(hvd.ProcessSet([0])), "not registered")


@on_sizes(2, 3, 4)
def check_every_operation_inside_a_set():
    chosen = [rank for rank in range(hvd.size()) if rank != 1]
    some = hvd.add_process_set(chosen)
    assert some.process_set_id > 0 and some.ranks == chosen and some.size() == len(chosen)
    assert some.included() == (hvd.rank() in chosen)
    assert process_sets.process_sets() == [hvd.global_process_set, some]
    if not some.included():
        expect_error(ValueError, lambda: hvd.allreduce(torch.ones(2), process_set=some))
        expect_error(ValueError, some.rank, "rank 1")
    else:
        assert some.rank() == chosen.index(hvd.rank())
        for seed, (dtype, shape, op) in enumerate(itertools.product(DTYPES, SHAPES, [hvd.Sum, hvd.Average, hvd.Max])):
            if has_meaning(dtype, op):
                found = hvd.allreduce(own(shape, dtype, seed), op=op, process_set=some)
                expect(found, reduced([of(rank, shape, dtype, seed) for rank in chosen], op), f"{dtype} {shape} {op}")
        mine = torch.full((2, 3), float(hvd.rank()))
        expect(hvd.allgather(mine, process_set=some), torch.tensor(chosen).float().repeat_interleave(2)[:, None].expand(-1, 3))
        expect(hvd.broadcast(mine, chosen[-1], process_set=some), torch.full((2, 3), float(chosen[-1])))
        rows = torch.arange(float(len(chosen)))
        expect(hvd.reducescatter(rows, op=hvd.Sum, process_set=some), rows[some.rank()][None] * len(chosen))
        expect(hvd.alltoall(torch.full((len(chosen),), float(hvd.rank())), process_set=some),
               torch.tensor(chosen).float())
        expect(hvd.grouped_allreduce([mine, mine], op=hvd.Sum, process_set=some)[1],
               torch.full((2, 3), float(sum(chosen))))
        expect(hvd.grouped_allgather([mine[:1, 0]], process_set=some)[0], torch.tensor(chosen).float())
        output = torch.empty(len(chosen))
        hvd.allgather_into_tensor(output, torch.tensor([float(hvd.rank())]), process_set=some)
        expect(output, torch.tensor(chosen).float())
        part = torch.empty(1)
        hvd.reduce_scatter_tensor(part, rows, process_set=some)
        expect(part, rows[some.rank()][None] * len(chosen))
        total = hvd.reduce(mine, chosen[-1], op=hvd.Sum, process_set=some)
        assert (total is None) == (hvd.rank() != chosen[-1])
        hvd.barrier(process_set=some)
        tensor = torch.ones(2, 1, requires_grad=True)
        hvd.allgather(tensor, process_set=some).backward(torch.arange(2.0 * len(chosen))[:, None])
        expect(tensor.grad, torch.arange(2.0 * len(chosen))[:, None][2 * some.rank():2 * some.rank() + 2])
    assert hvd.remove_process_set(some) is True
    assert (some.process_set_id, some.included()) == (None, None)
    expect_error(ValueError, lambda: hvd.allreduce(torch.ones(2), process_set=some), "not registered")


@on_sizes(4)
def check_sets_do_not_wait_for_each_other():
    even, odd = hvd.add_process_set([0, 2]), hvd.add_process_set([1, 3])
    mine = even if hvd.rank() % 2 == 0 else odd
    if mine is even:  # a thousand times over, while the odd ones are still at their barrier with nobody
        for step in range(50):
            expect(hvd.allreduce(torch.full((2,), float(step)), process_set=even, name="same"), torch.full((2,), float(step)))
        hvd.barrier()
    else:
        hvd.barrier()
        for step in range(50):
            expect(hvd.allreduce(torch.full((2,), float(-step)), process_set=odd, name="same"), torch.full((2,), float(-step)))
    expect_error(ValueError, lambda: hvd.add_process_set([2, 0]), "registered already")
    for one in (odd, even):
        hvd.remove_process_set(one)


@on_sizes(3)
def check_overlapping_sets():
    pairs = [hvd.add_process_set(pair) for pair in ([0, 1], [1, 2], [0, 2])]
    handles = [hvd.allreduce_async(torch.full((3,), float(hvd.rank())), op=hvd.Sum, process_set=one)
               for one in (pairs if hvd.rank() else reversed(pairs)) if one.included()]
    sums = [float(sum(one.ranks)) for one in (pairs if hvd.rank() else reversed(pairs)) if one.included()]
    for handle, total in zip(handles, sums):
        expect(hvd.synchronize(handle), torch.full((3,), total))
    for one in pairs:
        hvd.remove_process_set(one)


@on_sizes(2, 3)
def check_ranks_that_disagree_about_a_set_are_told_so():
    expect_error(hvd.HorovodInternalError, lambda: hvd.add_process_set([min(hvd.rank(), 1)]), "rank 0", "[0]", "[1]")
    expect(hvd.allreduce(torch.ones(2)), torch.ones(2))


@on_sizes(3, 4)
def check_static_sets():
    comm = list(range(hvd.size()))
    hvd.shutdown()
    first, second = hvd.ProcessSet([0, 1]), hvd.ProcessSet([2])
    for _ in range(2):  # the same objects may be given again
        hvd.init(comm=comm, process_sets=[first, second])
        assert [first.process_set_id, second.process_set_id] == [1, 2] and hvd.global_process_set.ranks == comm
        for one in (first, second):
            if one.included():
                expect(hvd.allreduce(torch.ones(2), op=hvd.Sum, process_set=one), torch.full((2,), float(one.size())))
        hvd.barrier()  # who leaves ends the generation for the others
        hvd.shutdown()
        assert first.process_set_id is None and first.ranks == [0, 1]
    expect_error(ValueError, lambda: hvd.init(comm=comm, process_sets=[[0, 1]]), "list of ProcessSet")
    hvd.init(comm=comm, process_sets="dynamic")
    hvd.remove_process_set(hvd.add_process_set([0]))


@on_sizes(3, 4)
def check_sets_that_their_members_make_alone():
    if hvd.rank() < 2:
        first = hvd.add_process_set([0, 1], name="first")
        second = hvd.add_process_set([1, 0], name="second")
        assert first.process_set_id != second.process_set_id and first.ranks == [0, 1] and first.included()
        for one in (first, second):
            expect(hvd.allreduce(torch.full((2,), float(hvd.rank())), op=hvd.Sum, process_set=one), torch.ones(2))
        expect_error(ValueError, lambda: hvd.add_process_set([0, 1], name="first"), "has the name first already")
        assert hvd.remove_process_set(first) is True
        assert process_sets.process_sets() == [hvd.global_process_set, second]
    else:
        expect_error(ValueError, lambda: hvd.add_process_set([0, 1], name="first"), "its members alone make it")
    everyone = hvd.add_process_set([0, 1])  # of all ranks' requests: nothing of that was in their order
    if everyone.included():
        expect(hvd.allreduce(torch.ones(2), op=hvd.Sum, process_set=everyone), torch.full((2,), 2.0))
    assert hvd.remove_process_set(everyone) is True
    if hvd.rank() < 2:
        assert hvd.remove_process_set(second) is True
    assert process_sets.process_sets() == [hvd.global_process_set]
