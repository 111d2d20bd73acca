"""What trains over torch.distributed: the same weights as by torch's gloo. Run by c10d_ranks.py."""

import shutil
import tempfile

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from c10d_ranks import DEVICE, on_host, torch_version
from check_c10d_collectives import equal, ranks

STEPS = 3


def group_of(backend):
    return dist.new_group(list(range(dist.get_world_size())), backend=backend)


def model(seed=11):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(6, 200), nn.Tanh(), nn.Linear(200, 200), nn.Tanh(), nn.Linear(200, 2)).double()


def inputs(step, rank=None):
    """Of this rank, or of another."""
    generator = torch.Generator().manual_seed(100 * step + (dist.get_rank() if rank is None else rank))
    return torch.randn(4, 6, generator=generator, dtype=torch.float64, device="cpu").to(DEVICE)


def train(wrapped, optimizer=None):
    optimizer = optimizer or torch.optim.SGD(wrapped.parameters(), lr=0.1, momentum=0.9)
    for step in range(STEPS):
        optimizer.zero_grad()
        wrapped(inputs(step)).pow(2).mean().backward()
        optimizer.step()
    return torch.cat([one.detach().flatten() for one in wrapped.parameters()])


def close(got, expected):
    assert torch.allclose(got, expected, rtol=1e-10, atol=1e-12), (got - expected).abs().max()


def check_ddp_trains_as_over_gloo():
    gloo, own = group_of("gloo"), group_of("coordd")
    plain = train(DistributedDataParallel(model(), process_group=gloo, bucket_cap_mb=0.2))
    for options in ({}, {"gradient_as_bucket_view": True}, {"static_graph": True}, {"find_unused_parameters": True}):
        close(train(DistributedDataParallel(model(), process_group=own, bucket_cap_mb=0.2, **options)), plain)
    dist.destroy_process_group(own)
    dist.destroy_process_group(gloo)


def check_ddp_broadcasts_the_model_of_rank_0():
    wrapped = DistributedDataParallel(model(seed=dist.get_rank()))
    equal(next(wrapped.parameters()).detach(), next(model(seed=0).parameters()).detach())


def check_ddp_hooks_and_no_sync():
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
    expected = None
    for hook in (None, default_hooks.allreduce_hook, default_hooks.fp16_compress_hook):
        wrapped = DistributedDataParallel(model())
        if hook is not None:
            wrapped.register_comm_hook(None, hook)
        with wrapped.no_sync():
            wrapped(inputs(0)).pow(2).mean().backward()
        wrapped(inputs(1)).pow(2).mean().backward()
        gradient = next(wrapped.parameters()).grad
        expected = gradient if expected is None else expected
        assert torch.allclose(gradient, expected, atol=1e-3)


@on_host
def check_uneven_inputs_and_sparse_gradients():
    from torch.distributed.algorithms.join import Join
    rank, size = ranks()
    wrapped = DistributedDataParallel(model())
    with Join([wrapped]):
        for step in range(1 + rank):
            wrapped(inputs(step)).sum().backward()
    sparse = DistributedDataParallel(nn.Embedding(10, 3, sparse=True))
    sparse(torch.tensor([rank, 9])).sum().backward()
    gradient = sparse.module.weight.grad
    assert gradient.is_sparse
    equal(gradient.to_dense()[9], torch.ones(3))


def check_zero_redundancy_optimizer():
    from torch.distributed.optim import ZeroRedundancyOptimizer
    plain = train(DistributedDataParallel(model()))
    wrapped = DistributedDataParallel(model())
    close(train(wrapped, ZeroRedundancyOptimizer(wrapped.parameters(), torch.optim.SGD, lr=0.1, momentum=0.9)), plain)


def check_functional_collectives():
    import torch.distributed._functional_collectives as functional
    rank, size = ranks()
    group = dist.group.WORLD
    tensor = torch.full((2 * size,), float(rank))
    equal(functional.all_reduce(tensor, "sum", group) + 0, torch.full((2 * size,), float(sum(range(size)))))
    equal((functional.all_gather_tensor(tensor, 0, group) + 0)[-1], float(size - 1))
    equal(functional.reduce_scatter_tensor(tensor, "sum", 0, group) + 0, torch.full((2,), float(sum(range(size)))))
    if torch_version() >= (2, 4):
        equal((functional.all_to_all_single(tensor, None, None, group) + 0)[::2], torch.arange(float(size)))
        equal(functional.broadcast(tensor, size - 1, group) + 0, torch.full((2 * size,), float(size - 1)))


def check_device_mesh_and_dtensor():
    if torch_version() < (2, 4):
        return
    from torch.distributed._tensor import Replicate, Shard, distribute_tensor
    from torch.distributed.device_mesh import init_device_mesh
    size = dist.get_world_size()
    mesh = init_device_mesh(DEVICE, (size,))
    full = torch.arange(4.0 * size).view(2 * size, 2)
    sharded = distribute_tensor(full, mesh, [Shard(0)])
    equal(sharded.full_tensor(), full)
    if size > 1 or torch_version() >= (2, 14):  # torch 2.4 cannot plan a product on a mesh of one
        equal((sharded @ sharded.t().redistribute(mesh, [Replicate()])).full_tensor(), full @ full.t())
    two = init_device_mesh(DEVICE, (1, size), mesh_dim_names=("dp", "tp"))
    tensor = torch.ones(1)
    dist.all_reduce(tensor, group=two["tp"].get_group())
    equal(tensor, [float(size)])


def check_fsdp2_trains_as_over_gloo():
    if torch_version() < (2, 14):
        return
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.fsdp import fully_shard
    results = []
    for backend in ("gloo", "coordd"):
        mesh = DeviceMesh.from_group(group_of(backend), DEVICE)
        sharded = model()
        for layer in sharded:
            if isinstance(layer, nn.Linear):
                fully_shard(layer, mesh=mesh)
        fully_shard(sharded, mesh=mesh)
        optimizer = torch.optim.SGD(sharded.parameters(), lr=0.1)
        for step in range(STEPS):
            optimizer.zero_grad()
            sharded(inputs(step)).pow(2).mean().backward()
            optimizer.step()
        results.append(torch.cat([one.full_tensor().detach().flatten() for one in sharded.parameters()]))
    close(results[1], results[0])


def check_tensor_parallel():
    if torch_version() < (2, 14):
        return
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
    size = dist.get_world_size()
    torch.manual_seed(0)
    plain = nn.Sequential(nn.Linear(8, 4 * size), nn.ReLU(), nn.Linear(4 * size, 8))
    data = torch.randn(3, 8)
    expected = plain(data)
    parallel = parallelize_module(plain, init_device_mesh(DEVICE, (size,)), {"0": ColwiseParallel(), "2": RowwiseParallel()})
    assert torch.allclose(parallel(data), expected, atol=1e-5)


def check_checkpoints():
    if torch_version() < (2, 14):
        return
    import torch.distributed.checkpoint as checkpoint
    folder = [tempfile.mkdtemp(prefix="coordd-c10d-") if dist.get_rank() == 0 else None]
    dist.broadcast_object_list(folder, 0)
    weights = {"weight": torch.full((3,), 5.0)}
    checkpoint.save(weights, checkpoint_id=f"{folder[0]}/one")
    read = {"weight": torch.zeros(3)}
    checkpoint.load(read, checkpoint_id=f"{folder[0]}/one")
    equal(read["weight"], weights["weight"])
    dist.barrier()
    if dist.get_rank() == 0:
        shutil.rmtree(folder[0])


def check_pipeline():
    if torch_version() < (2, 14) or dist.get_world_size() < 2:
        return
    from torch.distributed.pipelining import PipelineStage, ScheduleGPipe
    rank, size = ranks()
    torch.manual_seed(0)
    layers = [nn.Linear(4, 4) for _ in range(size)]
    stage = PipelineStage(layers[rank], rank, size, torch.device(DEVICE))
    schedule = ScheduleGPipe(stage, 2, loss_fn=lambda output, target: (output - target).pow(2).mean())
    data, target = torch.ones(4, 4), torch.zeros(4, 4)
    if rank == 0:
        schedule.step(data)
    elif rank == size - 1:
        losses = []
        schedule.step(target=target, losses=losses)
        expected = nn.Sequential(*layers)(data[:2]).pow(2).mean()
        assert torch.allclose(losses[0], expected), (losses, expected)
    else:
        schedule.step()


@on_host
def check_a_loader_with_workers_that_fork_and_spawn():
    data = torch.utils.data.TensorDataset(torch.arange(8.0))
    for context in ("fork", "spawn") if dist.get_rank() == 0 else ("fork",):
        loader = torch.utils.data.DataLoader(data, batch_size=2, num_workers=1, multiprocessing_context=context)
        equal(torch.cat([one for one, in loader]), torch.arange(8.0))
