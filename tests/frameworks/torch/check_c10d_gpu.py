"""What only memory of a GPU has: streams, calls that do not wait for the device, FSDP there. Run by c10d_ranks.py."""

import os
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from c10d_ranks import DEVICE, left_out, torch_version
from check_c10d_collectives import backend, equal, ranks, refused
from check_c10d_training import STEPS, close, inputs, model, train


def check_a_call_follows_the_stream_and_does_not_wait_for_the_device():
    rank, size = ranks()
    side = torch.cuda.Stream()
    warm = torch.zeros(1 << 20)
    dist.all_reduce(warm)
    torch.cuda.synchronize()
    with torch.cuda.stream(side):
        tensor = torch.zeros(1 << 20)
        torch.cuda._sleep(500_000_000)  # cycles: the input is there after that
        tensor += rank + 1
        before = time.monotonic()
        work = dist.all_reduce(tensor, async_op=True)
        work.wait()
        returned = not side.query()
        doubled = tensor * 2
    assert returned or time.monotonic() - before < 0.1, "the call has waited for the device"
    side.synchronize()
    equal(doubled, torch.full((1 << 20,), float(size * (size + 1))))


def check_calls_on_the_same_memory_without_a_wait():
    rank, size = ranks()
    tensor, everyone = torch.ones(1000), torch.empty(1000 * size)
    works = [dist.all_reduce(tensor, async_op=True) for _ in range(3)]
    works.append(dist.all_gather_into_tensor(everyone, tensor, async_op=True))
    for work in works[::-1]:
        work.wait()
    equal(tensor, torch.full((1000,), float(size ** 3)))
    equal(everyone, torch.full((1000 * size,), float(size ** 3)))


def check_a_result_is_waited_for_by_several_streams():
    rank, size = ranks()
    tensor = torch.arange(24.0).view(4, 6).t()  # has to be copied, so something comes behind
    work = dist.all_reduce(tensor, async_op=True)
    sides = [torch.cuda.Stream() for _ in range(2)]
    for side in sides:
        side.wait_stream(torch.cuda.current_stream())
    found = []
    for side in sides:
        with torch.cuda.stream(side):
            work.wait()
            found.append(tensor * 1)
    for side in sides:
        side.synchronize()
    for one in found:
        equal(one, torch.arange(24.0).view(4, 6).t() * size)


def check_memory_of_works_that_nobody_keeps_is_not_given_away():
    rank, size = ranks()
    results = []
    for turn in range(50):
        output = torch.empty(1 << 16)
        results.append(output)
        dist.all_gather_into_tensor(torch.empty((1 << 16) * size), torch.full((1 << 16,), float(turn)), async_op=True)
        dist.all_reduce(output.fill_(turn), async_op=True)
    dist.barrier()
    for turn, output in enumerate(results):
        equal(output, torch.full((1 << 16,), float(turn * size)))


def check_host_and_device_side_by_side():
    rank, size = ranks()
    works = [dist.all_reduce(torch.ones(5, device=device), async_op=True) for device in ("cpu", DEVICE) for _ in range(3)]
    for work in works:
        work.wait()
    for device in ("cpu", DEVICE):
        tensor = torch.full((3,), float(rank), device=device)
        dist.broadcast(tensor, size - 1)
        equal(tensor.cpu(), torch.full((3,), size - 1.0, device="cpu"))
    if size > 1:
        refused((ValueError, RuntimeError), "expected one device", lambda: dist.all_gather_into_tensor(
            torch.empty(size, device="cpu"), torch.ones(1, device=DEVICE)))


def check_half_precisions_and_minima():
    rank, size = ranks()
    for dtype in (torch.float16, torch.bfloat16):
        tensor = torch.full((1001,), rank + 1, dtype=dtype)
        dist.all_reduce(tensor, dist.ReduceOp.AVG)
        equal(tensor, torch.full((1001,), (size + 1) / 2, dtype=dtype))
        dist.all_reduce(tensor.fill_(rank + 1), dist.ReduceOp.MIN)
        equal(tensor, torch.full((1001,), 1, dtype=dtype))


def check_fsdp2_trains_as_over_nccl_or_one_process():
    """Each rank's data is known to all, so one process trains on all of it."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    rank, size = ranks()
    sharded, alone = model(), model()
    for layer in sharded:
        if isinstance(layer, nn.Linear):
            fully_shard(layer, mesh=init_device_mesh(DEVICE, (size,)))
    fully_shard(sharded, mesh=init_device_mesh(DEVICE, (size,)))
    optimizers = [torch.optim.SGD(one.parameters(), lr=0.1) for one in (sharded, alone)]
    for step in range(STEPS):
        for optimizer in optimizers:
            optimizer.zero_grad()
        sharded(inputs(step)).pow(2).mean().backward()
        everybodys = torch.cat([inputs(step, other) for other in range(size)])
        alone(everybodys).pow(2).mean().backward()
        for optimizer in optimizers:
            optimizer.step()
    close(torch.cat([one.full_tensor().detach().flatten() for one in sharded.parameters()]),
          torch.cat([one.detach().flatten() for one in alone.parameters()]))


def has_pools():
    return hasattr(getattr(torch.cuda, "MemPool", None), "snapshot")


def check_ddp_trains_in_buckets_that_are_registered():
    from coordd.torch.distributed import register_buckets
    if not has_pools():
        return left_out(f"torch {torch.__version__} does not tell what a pool has, expected 2.6 or later")
    results = []
    for registers in (False, True):
        wrapped = DistributedDataParallel(model(), device_ids=[torch.cuda.current_device()], bucket_cap_mb=0.2)
        buckets = register_buckets(wrapped) if registers else None
        results.append(train(wrapped))
        if buckets is not None:
            assert buckets.registered
            buckets.deregister()
    close(results[1], results[0])


def check_fsdp2_communicates_in_memory_that_is_registered():
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from coordd.torch.distributed import register_all_gathers, register_reduce_scatters
    if not has_pools() or torch_version() < (2, 14) or dist.get_world_size() < 2:
        return left_out(f"torch {torch.__version__}, {dist.get_world_size()} rank(s): expected torch 2.14 or later, and two ranks")
    results = []
    for registers in (False, True):
        mesh, sharded = init_device_mesh(DEVICE, (dist.get_world_size(),)), model()
        for layer in sharded:
            if isinstance(layer, nn.Linear):
                fully_shard(layer, mesh=mesh)
        fully_shard(sharded, mesh=mesh)
        registered = [register_all_gathers(sharded), register_reduce_scatters(sharded)] if registers else []
        optimizer = torch.optim.SGD(sharded.parameters(), lr=0.1)
        for step in range(STEPS):
            optimizer.zero_grad()
            sharded(inputs(step)).pow(2).mean().backward()
            optimizer.step()
        results.append(torch.cat([one.full_tensor().detach().flatten() for one in sharded.parameters()]))
        for one in registered:
            assert one.registered
            one.deregister()
    close(results[1], results[0])


def check_a_pool_of_memory_is_registered_with_nccl():
    if not has_pools():
        return left_out(f"torch {torch.__version__} does not tell what a pool has, expected 2.6 or later")
    rank, size = ranks()
    pool = torch.cuda.MemPool(backend().mem_allocator)
    with torch.cuda.use_mem_pool(pool):
        tensor = torch.empty(1 << 21)
    backend().register_mem_pool(pool, symm=os.environ.get("COORDD_GPU_REGISTER") == "symmetric")
    for _ in range(3):
        tensor.fill_(rank + 1)
        dist.all_reduce(tensor)
        equal(tensor, torch.full((1 << 21,), size * (size + 1) / 2))
    backend().deregister_mem_pool(pool)
    refused(ValueError, "expected a pool", lambda: backend().deregister_mem_pool(pool))
