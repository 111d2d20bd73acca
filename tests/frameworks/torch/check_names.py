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


def refusals(good, bad):
    """Unnamed calls of each kind, of tensors that are refused, and the same that are not."""
    yield lambda: hvd.allreduce(bad), lambda: hvd.allreduce(good)
    yield lambda: hvd.allreduce(good, op=17), lambda: hvd.allreduce(good)
    yield lambda: hvd.allreduce_(good, op=hvd.Sum, prescale_factor=0.0), lambda: hvd.allreduce_(good)
    yield lambda: hvd.allreduce("no tensor"), lambda: hvd.allreduce(good)
    yield lambda: hvd.synchronize(hvd.allreduce_async(bad)), lambda: hvd.synchronize(hvd.allreduce_async(good))
    yield lambda: hvd.allgather(torch.tensor(1.0)), lambda: hvd.allgather(good)
    yield lambda: hvd.allgather("no tensor"), lambda: hvd.allgather(good)
    yield lambda: hvd.alltoall(good, splits=[good.shape[0] + 1] * hvd.size()), lambda: hvd.alltoall(good)
    yield lambda: hvd.alltoall(good, splits=torch.ones(hvd.size())), lambda: hvd.alltoall(good)
    yield lambda: hvd.broadcast(good, hvd.size()), lambda: hvd.broadcast(good, 0)
    yield lambda: hvd.reducescatter(torch.tensor(1.0)), lambda: hvd.reducescatter(good)
    yield lambda: hvd.reduce(good, 0, op=17), lambda: hvd.reduce(good, 0)
    yield lambda: hvd.gather(bad, 0), lambda: hvd.gather(good, 0)
    yield lambda: hvd.grouped_allreduce([good, bad]), lambda: hvd.grouped_allreduce([good, good])
    yield lambda: hvd.grouped_allgather([good, bad]), lambda: hvd.grouped_allgather([good, good])
    yield lambda: hvd.grouped_reducescatter([good, torch.tensor(1.0)]), lambda: hvd.grouped_reducescatter([good, good])
    yield (lambda: hvd.allgather_into_tensor(torch.empty(1), good),
           lambda: hvd.allgather_into_tensor(torch.empty(good.numel() * hvd.size()), good))
    yield (lambda: hvd.reduce_scatter_tensor(torch.empty(3, 3), good),
           lambda: hvd.reduce_scatter_tensor(torch.empty(good.numel() // hvd.size()), good))


def check_a_call_that_one_rank_refuses_fails_on_the_others_and_all_go_on_in_step():
    good, bad, refuser = torch.ones(12, 4), torch.ones(4, 4, device="meta"), hvd.size() - 1
    for refused, made in refusals(good, bad):
        if hvd.rank() == refuser:
            try:
                refused()
                raise AssertionError("was not refused")
            except (ValueError, AttributeError, TypeError):
                pass
        else:
            error = expect_error(hvd.HorovodInternalError, made, f"rank {refuser} refused its own call")
            assert error.rank == refuser, error
        expect(hvd.allreduce(torch.tensor([float(hvd.rank())]), op=hvd.Sum),
               torch.tensor([sum(range(hvd.size())) * 1.0]))
        made()


def check_a_call_that_all_ranks_refuse_leaves_nothing_behind():
    good, bad = torch.ones(12, 4), torch.ones(4, 4, device="meta")
    for refused, made in refusals(good, bad):
        try:
            refused()
            raise AssertionError("was not refused")
        except (ValueError, AttributeError, TypeError):
            pass
        made()


def check_a_refused_call_counts_among_those_in_flight():
    pending = hvd.allreduce_async(torch.ones(2))
    if hvd.rank() == 0:
        expect_error(ValueError, lambda: hvd.allreduce_async(torch.ones(4, 4, device="meta")), "noname.1")
    else:
        expect_error(hvd.HorovodInternalError, lambda: hvd.allreduce(torch.ones(4, 4)), "noname.1", "rank 0", "meta")
    with recorded() as submitted:
        expect(hvd.allreduce(torch.ones(2)), torch.ones(2))
    assert submitted == ["allreduce.noname.2"], submitted
    hvd.synchronize(pending)
    assert names_of(lambda: hvd.allreduce(torch.ones(2))) == ["allreduce.noname.0"]


def check_a_named_call_that_is_refused_may_be_repeated():
    if hvd.rank() == 0:
        expect_error(ValueError, lambda: hvd.allreduce(torch.ones(4, 4, device="meta"), name="again"), "meta")
    expect(hvd.allreduce(torch.ones(2), name="again"), torch.ones(2))


def check_all_may_refuse_what_goes_by_schedule():
    for _ in range(20):
        expect(hvd.allreduce(torch.ones(3)), torch.ones(3))
    for _ in range(2):
        expect_error(ValueError, lambda: hvd.allreduce(torch.ones(4, 4, device="meta")), "meta")
        expect(hvd.allreduce(torch.ones(3)), torch.ones(3))


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
