"""Ranks with uneven inputs: those that are through contribute nothing until the last one is."""

import torch

import coordd.torch as hvd
from ranks import on_sizes
from values import expect, expect_error


def check_join_of_all_at_once():
    for _ in range(3):
        last = hvd.join()
        assert isinstance(last, int) and 0 <= last < hvd.size()
        assert hvd.broadcast(torch.tensor(last), 0).item() == last


@on_sizes(2, 3, 4)
def check_uneven_steps():
    size, rank = hvd.size(), hvd.rank()
    for step in range(2 * rank + 1):  # rank r has 2 r + 1 steps
        working = [other for other in range(size) if step < 2 * other + 1]
        expect(hvd.allreduce(torch.full((3,), float(rank + 1))),
               torch.full((3,), sum(other + 1 for other in working) / size))
        expect(hvd.allreduce(torch.full((3,), -1.0), op=hvd.Max), torch.full((3,), -1.0))
        expect(hvd.allreduce(torch.full((3,), 2.0), op=hvd.Product), torch.full((3,), 2.0 ** len(working)))
        expect(hvd.allgather(torch.full((2,), rank)), torch.tensor(working).repeat_interleave(2))
        found = hvd.grouped_allreduce([torch.ones(2), torch.ones(3, dtype=torch.int64)], op=hvd.Sum)
        expect(found[1], torch.full((3,), len(working)))
    assert hvd.join() == size - 1


@on_sizes(2, 3, 4)
def check_unnamed_operations_are_in_step_after_a_join():
    for step in range(hvd.rank() + 1):
        hvd.allreduce(torch.ones(2))
        hvd.allgather(torch.ones(1))
    forgotten = [hvd.allreduce_async(torch.ones(2)) for _ in range(hvd.rank())]  # as many as there are ranks behind
    hvd.join()
    expect(hvd.allreduce(torch.full((2,), float(hvd.rank())), op=hvd.Sum),
           torch.full((2,), float(sum(range(hvd.size())))))
    for handle in forgotten:
        hvd.synchronize(handle)
    expect(hvd.allreduce(torch.ones(2)), torch.ones(2))


@on_sizes(2, 3, 4)
def check_what_needs_a_joined_rank_is_an_error_that_names_it():
    if hvd.rank() == 0:
        assert hvd.join() != 0
        return
    pending = hvd.allreduce_async(torch.ones(2), op=hvd.Sum, name="tells when 0 has joined")
    expect(hvd.synchronize(pending), torch.full((2,), hvd.size() - 1.0))
    expect_error(hvd.HorovodInternalError, lambda: hvd.broadcast(torch.ones(2), 0), "rank 0", "join")
    expect_error(hvd.HorovodInternalError, lambda: hvd.reduce(torch.ones(2), 0), "rank 0", "join")
    expect_error(hvd.HorovodInternalError, lambda: hvd.gather(torch.ones(2), 0), "rank 0", "join")
    expect(hvd.broadcast(torch.full((2,), float(hvd.rank())), 1), torch.ones(2))
    assert hvd.join() != 0


@on_sizes(3, 4)
def check_a_joined_rank_in_a_process_set():
    some = hvd.add_process_set([0, 1])
    if hvd.rank() == 1:
        expect(hvd.allreduce(torch.ones(2), op=hvd.Sum, process_set=some), torch.ones(2))
    if hvd.rank() == 2:
        expect(hvd.allreduce(torch.ones(2), op=hvd.Sum, name="while others have joined").max(), torch.tensor(1.0))
    hvd.join()
    hvd.remove_process_set(some)


@on_sizes(2, 3, 4)
def check_process_sets_wait_for_the_end_of_a_join():
    if hvd.rank() == 0:
        hvd.join()
    else:
        hvd.allreduce(torch.ones(1), name="only when 0 has joined")
        for _ in range(hvd.rank()):  # some ask more often than others
            expect_error(hvd.HorovodInternalError, lambda: hvd.add_process_set([0]), "rank", "has joined")
        hvd.join()
    if hvd.size() > 2:
        both = hvd.add_process_set([0, 1])
        if hvd.rank() < 2:
            expect(hvd.allreduce(torch.ones(1), op=hvd.Sum, process_set=both), torch.full((1,), 2.0))
        hvd.remove_process_set(both)


@on_sizes(2, 4)
def check_training_with_uneven_data_ends():
    torch.manual_seed(0)
    model = torch.nn.Linear(4, 1)
    for batch in range(3 + 2 * hvd.rank()):
        model.zero_grad()
        model(torch.ones(2, 4) * (batch + 1)).sum().backward()
        handles = [hvd.allreduce_async_(parameter.grad, name=name) for name, parameter in model.named_parameters()]
        for handle in handles:
            hvd.synchronize(handle)
    hvd.join()
    for parameter in model.parameters():
        expect(hvd.broadcast(parameter.data, hvd.size() - 1), parameter.data)
