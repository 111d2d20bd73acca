"""Every collective of torch.distributed against what it should give. Run by c10d_ranks.py."""

import os

import torch
import torch.distributed as dist

from c10d_ranks import DEVICE, on_host, torch_version

OPS = dist.ReduceOp


def equal(got, expected):
    assert torch.equal(torch.as_tensor(got), torch.as_tensor(expected)), f"{got} instead of {expected}"


def ranks():
    return dist.get_rank(), dist.get_world_size()


def everyones(make):
    return [make(rank) for rank in range(dist.get_world_size())]


def refused(kinds, words, call):
    try:
        call()
    except kinds as error:
        assert words in str(error), error
    else:
        raise AssertionError(f"no error with {words!r}")


def backend():
    """coordd's half of the default group."""
    group = dist.distributed_c10d._get_default_group()
    return group if type(group).__module__.startswith("coordd") else group._get_backend(torch.device(DEVICE))


class Pool:
    """What a torch.cuda.MemPool tells of itself."""

    def __init__(self, segments):
        self.id, self._segments = (0, id(self)), segments

    def snapshot(self):
        return [{"device": 0, "address": 4096 * (one + 1), "total_size": 4096} for one in range(self._segments)]


@on_host
def check_pools_of_memory_are_of_all_ranks_and_of_a_gpu():
    rank, size = ranks()
    empty = Pool(0)
    refused(ValueError, "register_mem_pool: the pool has no segments, expected at least one", lambda: backend().register_mem_pool(empty))
    refused(ValueError, "expected a pool", lambda: backend().deregister_mem_pool(empty))
    refused(ValueError, "COORDD_GPU_REGISTER is not set, expected COORDD_GPU_REGISTER=symmetric",
            lambda: backend().register_mem_pool(Pool(1), symm=True))
    if size > 1:
        refused(ValueError, "one number on all ranks", lambda: backend().register_mem_pool(Pool(1 + rank)))
        refused(ValueError, f"no segments, expected at least one: what is allocated from it later is not registered, so allocate before "
                f"(with torch.cuda.use_mem_pool(pool): ...) (rank {size - 1} of the group)",
                lambda: backend().register_mem_pool(Pool(int(rank < size - 1))))
    refused(Exception, "device", lambda: backend().register_mem_pool(Pool(1)))


@on_host
def check_the_allocator_of_pools_is_there_where_torch_has_pools():
    if not hasattr(torch.cuda, "MemPool"):
        return refused(NotImplementedError, "expected torch 2.5", lambda: backend().mem_allocator)
    assert type(backend().mem_allocator).__name__.endswith("Allocator"), type(backend().mem_allocator)


def check_operators():
    rank, size = ranks()
    for op, expected in ((OPS.SUM, sum(range(1, size + 1))), (OPS.MAX, size), (OPS.MIN, 1), (OPS.BAND, 0), (OPS.BOR, None),
                         (OPS.BXOR, None), (OPS.PRODUCT, None)):
        tensor = torch.tensor([rank + 1, 1])
        dist.all_reduce(tensor, op)
        value = 0 if op != OPS.PRODUCT else 1
        for one in range(1, size + 1):
            value = value | one if op == OPS.BOR else value ^ one if op == OPS.BXOR else value * one
        equal(tensor[0], value if expected is None else expected if op != OPS.BAND or size > 1 else 1)
    tensor = torch.tensor([rank + 1.0])
    dist.all_reduce(tensor, OPS.AVG)
    equal(tensor, [(size + 1) / 2])
    tensor = torch.tensor([rank + 1.0])
    dist.all_reduce(tensor, dist._make_nccl_premul_sum(0.5))
    equal(tensor, [size * (size + 1) / 4])
    tensor = torch.tensor([rank % 2 == 0, True, False])
    dist.all_reduce(tensor, OPS.BAND)
    equal(tensor, [size == 1, True, False])


def check_dtypes():
    rank, size = ranks()
    for dtype in (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.float16, torch.bfloat16, torch.float32,
                  torch.float64, torch.complex64, torch.complex128):
        tensor = torch.full((5,), rank + 1).to(dtype)
        dist.all_reduce(tensor)
        equal(tensor, torch.full((5,), size * (size + 1) // 2).to(dtype))
        gathered = torch.empty(5 * size, dtype=dtype)
        dist.all_gather_into_tensor(gathered, torch.full((5,), rank).to(dtype))
        equal(gathered, torch.cat(everyones(lambda one: torch.full((5,), one).to(dtype))))
    if hasattr(torch, "float8_e4m3fn"):
        gathered = torch.empty(2 * size, dtype=torch.float8_e4m3fn)
        dist.all_gather_into_tensor(gathered, torch.full((2,), float(rank)).to(torch.float8_e4m3fn))
        equal(gathered.float(), torch.arange(float(size)).repeat_interleave(2))
    refused((ValueError, RuntimeError), "complex", lambda: dist.all_reduce(torch.ones(2, dtype=torch.complex64), OPS.MAX))
    refused((ValueError, RuntimeError), "expected integers", lambda: dist.all_reduce(torch.ones(2), OPS.BAND))


def check_layouts():
    rank, size = ranks()
    for make in (lambda: torch.ones(4, 6).t(), lambda: torch.ones(8)[::2], lambda: torch.ones(2, 3, 4, 5).to(memory_format=torch.channels_last),
                 lambda: torch.tensor(1.0), lambda: torch.ones(0), lambda: torch.ones(3, 0)):
        tensor = make()
        dist.all_reduce(tensor)
        equal(tensor, torch.full(tensor.shape, float(size)))
        tensor = make() * rank
        dist.broadcast(tensor, size - 1)
        equal(tensor, torch.full(tensor.shape, float(size - 1)))


@on_host
def check_sparse():
    rank, size = ranks()
    tensor = torch.sparse_coo_tensor([[0, rank + 1]], [1.0, 2.0], (size + 1,))
    dist.all_reduce(tensor)
    expected = torch.full((size + 1,), 2.0)
    expected[0] = size
    equal(tensor.to_dense(), expected)
    nothing = torch.sparse_coo_tensor(torch.zeros((1, 0), dtype=torch.int64), torch.zeros(0), (3,))
    dist.all_reduce(nothing)
    equal(nothing.to_dense(), torch.zeros(3))


def check_coalesced_forms():
    rank, size = ranks()
    tensors = [torch.full((3,), float(rank)), torch.full((100000,), 1.0), torch.ones(2, 2)]
    dist.all_reduce_coalesced(tensors)
    equal(tensors[0], torch.full((3,), float(sum(range(size)))))
    equal(tensors[1], torch.full((100000,), float(size)))
    equal(tensors[2], torch.full((2, 2), float(size)))
    if torch_version() >= (2, 14):
        tensors, outputs = [torch.ones(2), torch.ones(3)], [torch.empty(2 * size), torch.empty(3 * size)]
        with dist._coalescing_manager(device=torch.device(DEVICE), async_ops=True) as manager:
            for tensor in tensors:
                dist.all_reduce(tensor)
        manager.wait()
        equal(tensors[1], torch.full((3,), float(size)))
        with dist._coalescing_manager(device=torch.device(DEVICE)):
            for output, tensor in zip(outputs, tensors):
                dist.all_gather_into_tensor(output, tensor)
        equal(outputs[1], torch.full((3 * size,), float(size)))


def check_reduce_gather_scatter():
    rank, size = ranks()
    for root in range(size):
        tensor = torch.full((2,), float(rank))
        dist.reduce(tensor, root)
        equal(tensor, torch.full((2,), float(sum(range(size)) if rank == root else rank)))
        outputs = [torch.empty(2, 3) for _ in range(size)] if rank == root else None
        dist.gather(torch.full((2, 3), float(rank)), outputs, dst=root)
        if rank == root:
            for one, output in enumerate(outputs):
                equal(output, torch.full((2, 3), float(one)))
        tensor = torch.empty(2)
        dist.scatter(tensor, everyones(lambda one: torch.full((2,), float(one))) if rank == root else None, src=root)
        equal(tensor, torch.full((2,), float(rank)))


def check_large_blocks_are_scattered_and_gathered():
    rank, size = ranks()
    count = 30_000
    for root in range(size):
        parts = [torch.arange(float(count)).reshape(-1, 100).t() + one for one in range(size)]  # not contiguous
        tensor = torch.empty(100, count // 100)
        dist.scatter(tensor, parts if rank == root else None, src=root)
        equal(tensor, parts[rank])
        outputs = [torch.empty(count // 100, 100).t() for _ in range(size)] if rank == root else None
        dist.gather(tensor, outputs, dst=root)
        for output, part in zip(outputs or (), parts):
            equal(output, part)


def check_gathers_and_reduce_scatters():
    rank, size = ranks()
    outputs = [torch.empty(2, 2).t() for _ in range(size)]
    dist.all_gather(outputs, torch.full((2, 2), float(rank)))
    equal(torch.stack(outputs)[:, 0, 0], torch.arange(float(size)))
    outputs = [torch.empty(one + 1) for one in range(size)]
    dist.all_gather(outputs, torch.full((rank + 1,), float(rank)))
    for one, output in enumerate(outputs):
        equal(output, torch.full((one + 1,), float(one)))
    output = torch.empty(3)
    dist.reduce_scatter(output, everyones(lambda one: torch.full((3,), float(one * 10 + rank))))
    equal(output, torch.full((3,), float(rank * 10 * size + sum(range(size)))))
    output = torch.empty(rank + 1)
    dist.reduce_scatter(output, everyones(lambda one: torch.full((one + 1,), float(one))))
    equal(output, torch.full((rank + 1,), float(rank * size)))
    for op, expected in ((OPS.SUM, size), (OPS.AVG, 1), (OPS.MAX, 1)):
        output = torch.empty(2)
        dist.reduce_scatter_tensor(output, torch.ones(2 * size), op)
        equal(output, torch.full((2,), float(expected)))
    output = torch.empty(2, dtype=torch.int64)
    dist.reduce_scatter_tensor(output, torch.full((2 * size,), 1 << rank), OPS.BOR)
    equal(output, torch.full((2,), (1 << size) - 1))


def check_blocks_inside_of_what_they_are_blocks_of():
    rank, size = ranks()
    for place in range(size):  # one rank's own, which is another's elsewhere
        for asynchronous in (False, True):
            everyone = torch.arange(2.0 * size) + rank
            output = everyone[2 * place:2 * place + 2]
            work = dist.reduce_scatter_tensor(output, everyone, async_op=asynchronous)
            if asynchronous:
                work.wait()
            equal(output, torch.tensor([2.0 * rank, 2.0 * rank + 1]) * size + sum(range(size)))
            everyone = torch.full((2 * size,), float(rank))
            work = dist.all_gather_into_tensor(everyone, everyone[2 * place:2 * place + 2], async_op=asynchronous)
            if asynchronous:
                work.wait()
            equal(everyone, torch.arange(float(size)).repeat_interleave(2))


def check_all_to_all():
    rank, size = ranks()
    output = torch.empty(size, 2)
    dist.all_to_all_single(output, torch.arange(float(size)).repeat_interleave(2).view(size, 2) * 10 + rank)
    equal(output[:, 0], rank * 10 + torch.arange(float(size)))
    sent = [one + 1 for one in range(size)]  # rank r sends one + 1 rows to rank `one`
    output = torch.empty(size * (rank + 1), 2)
    dist.all_to_all_single(output, torch.full((sum(sent), 2), float(rank)), [rank + 1] * size, sent)
    equal(output[:, 0], torch.arange(float(size)).repeat_interleave(rank + 1))
    only_first = [2 if one == 0 else 0 for one in range(size)]  # some send and get nothing
    output = torch.empty(2 * size if rank == 0 else 0)
    dist.all_to_all_single(output, torch.full((2,), float(rank)), [2 if rank == 0 else 0] * size, only_first)
    if rank == 0:
        equal(output, torch.arange(float(size)).repeat_interleave(2))
    output, rows = torch.empty(size), [1] * size
    dist.all_to_all_single(output, torch.arange(float(size)), None if rank == 0 else rows, None if rank == 0 else rows)  # the same call
    equal(output, torch.full((size,), float(rank)))
    outputs = [torch.empty(one + 1, dtype=torch.int32) for one in range(size)]
    dist.all_to_all(outputs, [torch.full((rank + 1,), rank * 10 + one, dtype=torch.int32) for one in range(size)])
    for one, output in enumerate(outputs):
        equal(output, torch.full((one + 1,), one * 10 + rank, dtype=torch.int32))


def check_all_to_all_names_who_sends_less_than_expected():
    rank, size = ranks()
    if size == 1:
        return
    for group in (dist.group.WORLD, dist.new_group(list(range(size))[::-1])):
        me = dist.get_rank(group)
        sent = [1 if me == 0 and one == 1 else 2 for one in range(size)]
        for call in (lambda: dist.all_to_all_single(torch.empty(2 * size), torch.ones(sum(sent)), [2] * size, sent, group=group),
                     lambda: dist.all_to_all([torch.empty(2) for _ in sent], [torch.ones(one) for one in sent], group=group)):
            if me == 1:
                refused(dist.DistBackendError, "member 1 of the group has received 4 bytes from member 0, expected 8", call)
            else:
                call()
        output = torch.empty(2 * size)
        dist.all_to_all_single(output, torch.full((2 * size,), float(me)), [2] * size, [2] * size, group=group)
        equal(output, torch.arange(float(size)).repeat_interleave(2))


def check_objects():
    rank, size = ranks()
    everything = [None] * size
    dist.all_gather_object(everything, {"rank": rank, "text": "x" * (rank * 1000)})
    assert [one["rank"] for one in everything] == list(range(size))
    values = [rank, "text"] if rank == 0 else [None, None]
    dist.broadcast_object_list(values, 0)
    assert values == [0, "text"]
    gathered = [None] * size if rank == 0 else None
    dist.gather_object(rank, gathered, 0)
    assert rank != 0 or gathered == list(range(size))
    own = [None]
    dist.scatter_object_list(own, [f"for {one}" for one in range(size)] if rank == 0 else None, 0)
    assert own == [f"for {rank}"]


def check_wrong_arguments_are_refused_by_a_sentence_and_nothing_is_left():
    rank, size = ranks()
    errors = (ValueError, RuntimeError)
    refused(errors, "expected a rank of the group", lambda: _group().broadcast([torch.ones(1)], _from(size)))
    refused(errors, "one block for each rank", lambda: dist.reduce_scatter_tensor(torch.empty(3), torch.empty(3 * size + 1)))
    refused(errors, "all_gather", lambda: dist.all_gather([torch.empty(1)] * (size + 1), torch.ones(1)))
    refused(errors, "a tensor on meta: expected cpu or cuda", lambda: _group().allreduce([torch.ones(2, device="meta")]))
    tensor = torch.ones(1)
    dist.all_reduce(tensor)
    equal(tensor, [float(size)])


def _group():
    """Ours, behind torch's, which asks itself which backend serves a device."""
    from coordd.torch.distributed._group import _alive
    return _alive[0]


def _from(root):
    options = dist.BroadcastOptions()
    options.rootRank = root
    return options


def check_groups_are_made_by_their_members_alone():
    rank, size = ranks()
    own = dist.new_group([rank], use_local_synchronization=True)
    tensor = torch.full((2,), float(rank))
    dist.all_reduce(tensor, group=own)
    equal(tensor, torch.full((2,), float(rank)))
    others = [one for one in range(size) if one != 0]
    if rank == 0:  # torch numbers groups as each rank calls for them
        dist.destroy_process_group(dist.new_group([0], use_local_synchronization=True))
    elif others:
        group = dist.new_group(others, use_local_synchronization=True)
        tensor = torch.ones(1)
        dist.all_reduce(tensor, group=group)
        equal(tensor, [float(len(others))])
        dist.broadcast(tensor, others[-1], group=group)
        assert dist.get_group_rank(group, rank) == others.index(rank)
        dist.destroy_process_group(group)
    dist.destroy_process_group(own)


def check_many_groups_one_after_the_other():
    rank, size = ranks()
    for turn in range(10):
        group = dist.new_group(list(range(size)))
        tensor = torch.full((1,), float(turn))
        dist.all_reduce(tensor, group=group)
        equal(tensor, [float(turn * size)])
        dist.destroy_process_group(group)


def check_groups_use_one_worker_and_have_operations_of_their_own():
    rank, size = ranks()
    if size == 1:
        return
    first, second = dist.new_group([0, 1]), dist.new_group([0, 1])
    if rank < 2:
        threads = len(os.listdir("/proc/self/task"))
        third = dist.new_group([0, 1], use_local_synchronization=True)
        assert len(os.listdir("/proc/self/task")) == threads
        for group, value in ((first, 1.0), (second, 2.0), (third, 3.0)):  # one name and tag in each
            if rank == 0:
                dist.isend(torch.tensor([value]), 1, group=group)
        for group, value in ((third, 3.0), (second, 2.0), (first, 1.0)):
            received = torch.zeros(1)
            if rank == 1:
                dist.recv(received, 0, group=group)
                equal(received, [value])
            uneven = torch.empty(2 * (rank + 1))
            dist.all_to_all_single(uneven, torch.full((3,), value + rank), [rank + 1] * 2, [1, 2], group=group)
            equal(uneven, torch.tensor([value, value + 1]).repeat_interleave(rank + 1))
            if torch_version() >= (2, 14):  # before, torch asks a backend called gloo alone
                dist.monitored_barrier(group)
        dist.destroy_process_group(third)
    else:  # torch counts the calls, and names later groups by it
        dist.destroy_process_group(dist.new_group([rank], use_local_synchronization=True))
    dist.barrier()
    for group in (first, second):
        if rank < 2:
            dist.destroy_process_group(group)


def check_split_group():
    if torch_version() < (2, 14):
        return
    rank, size = ranks()
    group = dist.split_group(split_ranks=[list(range(size))])
    tensor = torch.ones(2)
    dist.all_reduce(tensor, group=group)
    equal(tensor, torch.full((2,), float(size)))
    dist.destroy_process_group(group)
