"""coordd.torch on CUDA tensors; a rank of tests/gpu/run. Checks results, streams, half precisions, the optimizer, the hook of
torch's DistributedDataParallel, SyncBatchNorm, CUDA graphs, and that a step does not wait for the device."""

import shutil
import tempfile
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import coordd.torch as hvd
from coordd.torch import ddp_hook


def check(condition, what):
    if not condition:
        raise AssertionError(f"rank {hvd.rank()}: {what}")


def results(device, total):
    for dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.int32, torch.int16):
        tensor = torch.full((1001,), hvd.rank() + 1, dtype=dtype, device=device)
        check(torch.all(hvd.allreduce(tensor, op=hvd.Sum) == total), f"allreduce of {dtype}")
    gathered = hvd.allgather(torch.full((hvd.rank() + 1, 3), hvd.rank(), device=device))
    check(gathered.shape[0] == total and torch.all(gathered[-1] == hvd.size() - 1), "allgather")
    sent = hvd.broadcast(torch.full((5,), float(hvd.rank()), device=device), root_rank=hvd.size() - 1)
    check(torch.all(sent == hvd.size() - 1), "broadcast")


def averages_and_registered_memory(device, total):
    """Of whole numbers, whose sums are exact; alone, so that NCCL multiplies where it can; in memory that it is told of."""
    for dtype in (torch.float32, torch.float64, torch.bfloat16, torch.float16):
        for elements in (1000, 1 << 20):  # below and above what a switch may reduce
            tensor = torch.full((elements,), hvd.size() * (hvd.rank() + 1), dtype=dtype, device=device)
            check(torch.all(hvd.allreduce(tensor, op=hvd.Average) == total), f"average of {elements} {dtype}")
            halved = hvd.allreduce(tensor, op=hvd.Average, prescale_factor=0.5)
            check(torch.all(halved * 2 == total), f"average of {elements} {dtype} with a prescale factor")
    with torch.cuda.use_mem_pool(hvd.mem_pool()):
        bucket = torch.empty(1 << 22, device=device)
    hvd.register_memory(bucket)
    for _ in range(3):
        bucket.fill_(hvd.rank() + 1)
        hvd.allreduce_(bucket, op=hvd.Sum, name="registered bucket")
        check(torch.all(bucket == total), "allreduce of registered memory")
    hvd.unregister_memory(bucket)


def streams(device, total):
    """The input is made, and the result read, on a stream that is not the default one."""
    side = torch.cuda.Stream(device)
    with torch.cuda.stream(side):
        tensor = torch.zeros(1 << 20, device=device)
        torch.cuda._sleep(50_000_000)  # cycles: the input is there after that
        tensor += hvd.rank() + 1
        before = time.monotonic()
        handle = hvd.allreduce_async_(tensor, op=hvd.Sum, name="behind a sleep")
        hvd.synchronize(handle)
        waited = time.monotonic() - before
        check(not side.query() or waited < 0.005, "synchronize waited for the device")
        doubled = tensor * 2
    side.synchronize()
    check(torch.all(doubled == 2 * total), "a result read on another stream")


def training(device):
    """One process and several come to the same weights."""
    torch.manual_seed(1)
    model = torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.ReLU(), torch.nn.Linear(128, 10)).to(device).double()
    alone = torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.ReLU(), torch.nn.Linear(128, 10)).to(device).double()
    alone.load_state_dict(model.state_dict())
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters())
    reference = torch.optim.SGD(alone.parameters(), lr=0.1)
    for _ in range(50):
        batch = torch.randn(8 * hvd.size(), 64, device=device, dtype=torch.double)
        labels = torch.randint(10, (8 * hvd.size(),), device=device)
        for net, step, rows in ((model, optimizer, slice(hvd.rank(), None, hvd.size())), (alone, reference, slice(None))):
            step.zero_grad()
            torch.nn.functional.cross_entropy(net(batch[rows]), labels[rows]).backward()
            step.step()
    for ours, theirs in zip(model.parameters(), alone.parameters()):
        check(torch.allclose(ours, theirs, rtol=1e-9, atol=1e-12), "weights of several ranks and of one differ")


def training_on_streams(device):
    """Gradients of one bucket that are made on several streams: torch makes each where its forward pass was."""
    torch.manual_seed(3)
    nets = [torch.nn.ModuleList(torch.nn.Linear(512, 512) for _ in range(3)).to(device).double() for _ in range(2)]
    nets[1].load_state_dict(nets[0].state_dict())
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(nets[0].parameters(), lr=0.1), nets[0].named_parameters())
    reference = torch.optim.SGD(nets[1].parameters(), lr=0.1)
    sides = [torch.cuda.Stream(device) for _ in range(3)]
    main = torch.cuda.current_stream(device)
    for _ in range(5):
        batch = torch.randn(8 * hvd.size(), 512, device=device, dtype=torch.double)
        for net, step, rows in ((nets[0], optimizer, slice(hvd.rank(), None, hvd.size())), (nets[1], reference, slice(None))):
            step.zero_grad()
            losses = []
            for layer, side in zip(net, sides):
                side.wait_stream(main)
                with torch.cuda.stream(side):
                    torch.cuda._sleep(1_000_000)
                    losses.append(layer(batch[rows]).square().mean())
            for side in sides:
                main.wait_stream(side)
            sum(losses).backward()
            step.step()
    for ours, theirs in zip(nets[0].parameters(), nets[1].parameters()):
        check(torch.allclose(ours, theirs, rtol=1e-9, atol=1e-12), "weights whose gradients were made on several streams")


def batch_norm(device):
    """Over the batches of all ranks, as over one; ranks have different numbers of rows."""
    layer, alone = hvd.SyncBatchNorm(5).to(device).double(), torch.nn.BatchNorm1d(5).to(device).double()
    counts = [3 + rank for rank in range(hvd.size())]
    for step in range(3):
        torch.manual_seed(step)
        whole = torch.randn(sum(counts), 5, 7, dtype=torch.double).to(device).requires_grad_()
        mine = whole.detach().split(counts)[hvd.rank()].clone().requires_grad_()
        layer(mine).pow(3).sum().backward()
        alone(whole).pow(3).sum().backward()
        check(torch.allclose(mine.grad, whole.grad.split(counts)[hvd.rank()], atol=1e-9), "gradient of SyncBatchNorm's input")
        check(torch.allclose(layer.running_var, alone.running_var, atol=1e-9), "running variance of SyncBatchNorm")


def with_ddp(device):
    """Gradients that the hook averages are those of all ranks' rows in one process. torch's own group is Gloo's."""
    folder = hvd.broadcast_object(tempfile.mkdtemp(prefix="coordd-ddp-") if hvd.rank() == 0 else None)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=hvd.rank(), world_size=hvd.size())
    torch.manual_seed(2)
    alone = torch.nn.Sequential(torch.nn.Linear(64, 300), torch.nn.Tanh(), torch.nn.Linear(300, 10)).to(device).double()
    inner = torch.nn.Sequential(torch.nn.Linear(64, 300), torch.nn.Tanh(), torch.nn.Linear(300, 10)).to(device).double()
    inner.load_state_dict(alone.state_dict())
    model = DistributedDataParallel(inner, bucket_cap_mb=0.1)  # several buckets
    ddp_hook.register(model)
    for _ in range(5):
        batch = torch.randn(8 * hvd.size(), 64, device=device, dtype=torch.double)
        for net, rows in ((model, slice(hvd.rank(), None, hvd.size())), (alone, slice(None))):
            net.zero_grad()
            net(batch[rows]).square().mean().backward()
        for ours, theirs in zip(inner.parameters(), alone.parameters()):
            check(torch.allclose(ours.grad, theirs.grad, rtol=1e-9, atol=1e-12), "gradients of the DDP hook")
    hvd.barrier()
    dist.destroy_process_group()
    if hvd.rank() == 0:
        shutil.rmtree(folder, ignore_errors=True)


class Captured:
    """What `run` enqueues, as a graph, captured on `side` after so many runs there without one."""

    def __init__(self, run, side, warm_ups):
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(warm_ups):
                run()
        torch.cuda.current_stream().wait_stream(side)
        torch.cuda.synchronize()
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph, stream=side):
            self.result = run()

    def replay(self):
        self.graph.replay()
        return self.result


def graphs_refused(device):
    """Before a set is prepared."""
    tensor = torch.ones(16, device=device)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        try:
            hvd.allreduce_(tensor, op=hvd.Sum, name="in a graph")
        except ValueError as error:
            check("prepare_graphs" in str(error), f"the sentence of a set that is not prepared: {error}")
        else:
            check(False, "a capture without prepare_graphs was not refused")
        tensor.mul_(1.0)  # an empty graph is a warning


def graphs_of_collectives(device):
    """100 replays with new inputs, of each collective, exact; and other collectives between them."""
    size, rank = hvd.size(), hvd.rank()
    hvd.prepare_graphs()
    hvd.prepare_graphs()  # does nothing
    whole = torch.zeros(4096, device=device)
    half = torch.zeros(1001, device=device, dtype=torch.float16)
    numbers = torch.zeros((3, 5), device=device, dtype=torch.int64)
    blocks = torch.zeros((4 * size, 3), device=device)
    flat = torch.zeros(64 * size, device=device)
    out = torch.zeros(64, device=device)
    place = torch.zeros(4096, device=device)

    def run():
        place.copy_(whole)
        hvd.allreduce_(place, op=hvd.Sum)
        summed = hvd.allreduce(whole, op=hvd.Sum)
        mean = hvd.allreduce(whole, op=hvd.Average, prescale_factor=2.0)
        group = hvd.grouped_allreduce([whole, half, numbers], op=hvd.Sum)
        handle = hvd.allreduce_async(half, op=hvd.Max)
        rows = hvd.allgather(numbers)
        part = hvd.reducescatter(blocks, op=hvd.Average)
        hvd.reduce_scatter_tensor(out, flat)
        sent = hvd.broadcast(whole, root_rank=size - 1)
        most = hvd.synchronize(handle)
        return place, summed, mean, group, most, rows, part, out, sent, summed * 2

    captured = Captured(run, torch.cuda.Stream(), warm_ups=1)
    hvd.check_graphs()
    total = size * (size + 1) // 2
    for step in range(100):
        base = step % 7 + 1
        whole.fill_(base * (rank + 1))
        half.fill_(base * (rank + 1))
        numbers.fill_(base * 10 + rank)
        blocks.fill_(base * (rank + 1))
        flat.copy_(torch.arange(64 * size, device=device) + base * rank)
        place_, summed, mean, group, most, rows, part, scattered, sent, doubled = captured.replay()
        wanted = float(base * total)
        what = f"replay {step}: "
        check(torch.all(place_ == wanted) and torch.all(summed == wanted), what + "sum")
        check(torch.all(doubled == 2 * wanted), what + "what follows the sum")
        check(torch.all(mean == 2 * wanted / size), what + "average")
        check(torch.all(group[0] == wanted) and torch.all(group[1] == wanted), what + "group")
        check(torch.all(group[2] == base * 10 * size + total - size), what + "group of integers")
        check(torch.all(most == base * size), what + "maximum")
        check(rows.shape == (3 * size, 5) and torch.all(rows[-1] == base * 10 + size - 1), what + "allgather")
        check(part.shape == (4, 3) and torch.all(part == wanted / size), what + "reducescatter")
        expected = (torch.arange(64, device=device) + 64 * rank) * size + base * (total - size)
        check(torch.all(scattered == expected), what + "reduce_scatter_tensor")
        check(torch.all(sent == base * size), what + "broadcast")
        if step % 10 == 0:  # behind the graph, and before the next one
            between = hvd.allreduce(summed, op=hvd.Sum, name="between replays")
            check(torch.all(between == wanted * size), what + "an allreduce behind it")
    torch.cuda.synchronize()


def graph_of_a_step(device, with_optimizer):
    """Forward, backward, allreduce of the gradients and SGD in one graph are what the same steps are without."""

    def training(seed):
        torch.manual_seed(seed)
        net = torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.Tanh(), torch.nn.Linear(128, 10)).to(device).double()
        optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
        return net, hvd.DistributedOptimizer(optimizer, net.named_parameters()) if with_optimizer else optimizer

    # What accumulates a gradient runs on the stream that was current when its parameter's hook was set: not on the default
    # one, which takes no part in a capture.
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        nets = [training(5), training(5)]
    batch = torch.zeros((8, 64), device=device, dtype=torch.double)

    def step(net, optimizer):
        optimizer.zero_grad(set_to_none=False)
        loss = net(batch).square().mean()
        loss.backward()
        if not with_optimizer:
            hvd.grouped_allreduce_([parameter.grad for parameter in net.parameters()], op=hvd.Average)
        optimizer.step()
        return loss

    torch.manual_seed(100 + hvd.rank())
    batch.normal_()
    torch.cuda.synchronize()
    with torch.cuda.stream(side):
        for net, optimizer in nets:  # the graph's warm-ups are steps, too
            for _ in range(3):
                step(net, optimizer)
    captured = Captured(lambda: step(*nets[0]), side, warm_ups=0)
    hvd.check_graphs()
    for _ in range(20):
        batch.normal_()
        captured.replay()
        step(*nets[1])
        for ours, theirs in zip(nets[0][0].parameters(), nets[1][0].parameters()):
            check(torch.allclose(ours, theirs, rtol=1e-12, atol=1e-14), "weights of a step in a graph and of one without")
    torch.cuda.synchronize()


def main():
    hvd.init()
    device = torch.device("cuda", hvd.local_rank() % torch.cuda.device_count())
    torch.cuda.set_device(device)
    total = hvd.size() * (hvd.size() + 1) // 2
    results(device, total)
    averages_and_registered_memory(device, total)
    streams(device, total)
    training(device)
    training_on_streams(device)
    batch_norm(device)
    with_ddp(device)
    graphs_refused(device)
    graphs_of_collectives(device)
    graph_of_a_step(device, with_optimizer=False)
    graph_of_a_step(device, with_optimizer=True)
    print(f"torch on CUDA: rank {hvd.rank()} of {hvd.size()}: ok", flush=True)
    hvd.shutdown()


if __name__ == "__main__":
    main()
