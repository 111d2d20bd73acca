"""Names of operations that the program does not name: equal on all ranks, and the same in every step."""

import contextlib

import torch

import coordd.torch as hvd
from coordd.torch import _handles, _rooted
from ranks import on_sizes
from values import expect, expect_error


@contextlib.contextmanager
def recorded():
    """The names of what is submitted inside."""
    submitted = []
    original = _handles.names.take

    def take(operation, name, process_set):
        taken = original(operation, name, process_set)
        submitted.append(taken[0])
        return taken

    _handles.names.take = take
    try:
        yield submitted
    finally:
        del _handles.names.take


def names_of(steps, count=3):
    """Runs a step several times: the names of one, which are those of each, on every rank."""
    with recorded() as submitted:
        for _ in range(count):
            steps()
    one = submitted[:len(submitted) // count]
    assert submitted == one * count, submitted
    assert hvd.allgather_object(submitted, name="names") == [submitted] * hvd.size()
    return one


def check_every_operation_repeats_its_names():
    ranks, x = hvd.size(), torch.ones(hvd.size() * 2)

    def step():
        for call in (hvd.allreduce, hvd.allreduce_, hvd.allgather, hvd.alltoall, hvd.reducescatter):
            call(x)
            call(x)
        for call in (hvd.broadcast, hvd.broadcast_, hvd.reduce, hvd.gather):
            call(x, 0)
        for call in (hvd.grouped_allreduce, hvd.grouped_allreduce_, hvd.grouped_allgather, hvd.grouped_reducescatter):
            call([x, x])
        hvd.allgather_into_tensor(torch.empty(len(x) * ranks), x)
        hvd.reduce_scatter_tensor(torch.empty(2), x)
        hvd.barrier()
        hvd.barrier()
        weights = torch.ones(ranks, requires_grad=True)
        for call in (hvd.allreduce, hvd.allgather, lambda tensor: hvd.broadcast(tensor, 0), hvd.alltoall, hvd.reducescatter):
            call(weights).sum().backward()

    names = names_of(step)
    assert len(names) > 30 and {name.rsplit(".", 1)[1] for name in names} == {"0"}, names


def check_names_are_counted_while_operations_are_in_flight():

    def step():
        handles = [hvd.allreduce_async(torch.ones(2)) for _ in range(3)]
        hvd.allreduce(torch.ones(2), name="mine")
        hvd.allreduce(torch.ones(2))
        handles.append(hvd.allgather_async(torch.ones(2)))
        handles.append(hvd.grouped_allreduce_async_([torch.ones(1)] * 2))
        for handle in handles:
            hvd.synchronize(handle)
        hvd.allreduce(torch.ones(2))

    assert names_of(step) == ["allreduce.noname.0", "allreduce.noname.1", "allreduce.noname.2", "allreduce.mine",
                              "allreduce.noname.3", "allgather.noname.0", "grouped_allreduce.noname.0",
                              "allreduce.noname.0"]


def check_a_refused_call_takes_no_name_and_no_number():
    pending = hvd.allreduce_async(torch.ones(2))
    if hvd.rank() == 0:  # of which the others know nothing
        for call in (hvd.allreduce, hvd.allreduce_async, hvd.allgather, lambda tensor: hvd.grouped_allreduce([tensor])):
            expect_error(ValueError, lambda: call(torch.ones(4, 4, device="meta")), "noname")
    expect(hvd.allreduce(torch.ones(2)), torch.ones(2))
    hvd.synchronize(pending)
    assert names_of(lambda: hvd.allreduce(torch.ones(2))) == ["allreduce.noname.0"]


def check_a_program_that_never_waits_for_everything_has_finitely_many():
    kept = hvd.allreduce_async(torch.ones(2))  # 0, all the time
    with recorded() as submitted:
        before = hvd.allreduce_async(torch.ones(2))
        for _ in range(3 * _handles.WRAP_AT):
            following = hvd.allreduce_async(torch.ones(2))
            hvd.synchronize(before)
            before = following
        hvd.synchronize(kept)
        for _ in range(3 * _handles.WRAP_AT):
            following = hvd.allreduce_async(torch.ones(2))
            hvd.synchronize(before)
            before = following
        hvd.synchronize(before)
    assert len(set(submitted[-2 * _handles.WRAP_AT:])) == _handles.WRAP_AT, sorted(set(submitted))
    assert hvd.allgather_object(submitted) == [submitted] * hvd.size()


@on_sizes(2, 3)
def check_messages_have_finitely_many_names():
    if hvd.rank() > 1:
        return
    with recorded() as submitted:
        for count in range(_rooted.MAX_UNNAMED + 2):
            if hvd.rank() == 0:
                hvd.send(torch.tensor([count]), 1)
            else:
                if count % 100 == 0:
                    expect_error(ValueError, lambda: hvd.recv(torch.ones(1, 4).expand(4, 4), 0), "share memory")
                expect(hvd.recv(torch.tensor([-1]), 0), torch.tensor([count]))
    assert len(set(submitted)) == _rooted.MAX_UNNAMED, submitted[-3:]


@on_sizes(2, 3)
def check_training_repeats_its_names():
    torch.manual_seed(1)
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), hvd.SyncBatchNorm(8), torch.nn.Linear(8, 8), hvd.SyncBatchNorm(8),
                                torch.nn.Linear(8, 2))
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters())
    data = torch.randn(6, 4)

    def step():
        optimizer.zero_grad()
        model(data).sum().backward()
        optimizer.step()
        hvd.allreduce(torch.tensor(1.0))

    for _ in range(2):  # the first makes buckets
        step()
    names = names_of(step)
    assert len(set(names)) == len(names), names  # what coordd takes for a step, by the first name that comes again
    assert any("bucket" in name for name in names) and names[-1] == "allreduce.noname.0", names
    assert "allreduce.sync_batch_norm.1.backward" in names, names
