#!/usr/bin/env python3
"""torch.distributed over coordd beside gloo, and beside commux where it is installed: the same calls in the same processes, in turn.

    bench/python/c10d.py [--ranks 2] [--rounds 5] [--only PART] [--spinners 8]

  --only       calls, messages, async, groups, store, ddp or fsdp
  --spinners N  beside N processes that spin: what a loaded machine makes of it

For each row the medians of the rounds' lower quartiles, and how many times as long the other takes. Needs build/ and a torch from 2.1.
"""

import argparse
import datetime
import os
import statistics
import sys
import tempfile
import time

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, os.path.join(ROOT, "client", "python"))
os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from torch import nn  # noqa: E402

import coordd.torch.distributed  # noqa: E402

_CALLS = 1000  # of a store, by each rank


def say(*words):
    if dist.get_rank() == 0:
        print(*words, flush=True)


def seconds_of(call, times):
    """Lower quartile."""
    taken = []
    for _ in range(times):
        began = time.perf_counter()
        call()
        taken.append(time.perf_counter() - began)
    return sorted(taken)[len(taken) // 4]


def compare(what, calls, times, rounds):
    """Prints a row. `calls`: by backend."""
    taken = {name: [] for name in calls}
    for _ in range(rounds):
        for name, call in calls.items():
            call()
            dist.barrier()
            taken[name].append(seconds_of(call, times))
    middle = {name: statistics.median(values) for name, values in taken.items()}
    others = ", ".join(f"{name} {value * 1e6:.1f} us ({value / middle['coordd']:.1f} times)" for name, value in middle.items()
                       if name != "coordd")
    say(f"{what:<34} coordd {middle['coordd'] * 1e6:10.1f} us   {others}")


def reduce_on(group, count, asynchronous=False):
    tensor = torch.zeros(count)
    if asynchronous:
        return lambda: dist.all_reduce(tensor, group=group, async_op=True).wait()
    return lambda: dist.all_reduce(tensor, group=group)


def calls(groups, rounds):
    for size, times in ((4, 400), (64 << 10, 200), (1 << 20, 50), (16 << 20, 10)):
        compare(f"all_reduce {size} B", {name: reduce_on(group, size // 4) for name, group in groups.items()}, times, rounds)


def there_and_back(group, count):
    rank, tensor = dist.get_rank(), torch.zeros(count)

    def call():
        if rank == 0:
            dist.send(tensor, 1, group=group)
            dist.recv(tensor, 1, group=group)
        elif rank == 1:
            dist.recv(tensor, 0, group=group)
            dist.send(tensor, 0, group=group)

    return call


def messages(groups, rounds):
    rank, size = dist.get_rank(), dist.get_world_size()
    for nbytes, times in ((4, 400), (64 << 10, 200), (1 << 20, 50), (16 << 20, 10)):
        compare(f"send and recv, back too, {nbytes} B", {name: there_and_back(group, nbytes // 4) for name, group in groups.items()}, times,
                rounds)
    for nbytes, times in ((4, 200), (1 << 20, 50), (16 << 20, 10)):
        parts = [torch.zeros(nbytes // 4) for _ in range(size)]
        own = parts if rank == 0 else None
        compare(f"scatter, {nbytes} B to each", {name: lambda group=group: dist.scatter(torch.empty_like(parts[0]), own, 0, group=group)
                                               for name, group in groups.items()}, times, rounds)
        compare(f"gather, {nbytes} B of each", {name: lambda group=group: dist.gather(parts[rank], own, 0, group=group)
                                              for name, group in groups.items()}, times, rounds)


def asynchronous(groups, rounds):
    for size, times in ((4, 400), (1 << 20, 50)):
        compare(f"async all_reduce and wait, {size} B", {name: reduce_on(group, size // 4, True) for name, group in groups.items()},
                times, rounds)
    for name, group in {**groups, "nothing": empty_group()}.items():
        wall, processor = cost_of_starting(group)
        say(f"{f'the call alone, {name}':<34} {wall * 1e6:10.1f} us, processor time of its thread {processor * 1e6:.1f} us")


def cost_of_starting(group):
    """Lower quartiles of many rounds, a call: seconds, and the thread's processor time, which others on the machine lengthen less."""
    tensors, walls, processors = [torch.zeros(1) for _ in range(50)], [], []
    for _ in range(40):
        began, processor = time.perf_counter(), time.thread_time()
        works = [dist.all_reduce(tensor, group=group, async_op=True) for tensor in tensors]
        walls.append((time.perf_counter() - began) / len(tensors))
        processors.append((time.thread_time() - processor) / len(tensors))
        for work in works:
            work.wait()
    return sorted(walls)[len(walls) // 4], sorted(processors)[len(processors) // 4]


class Nothing(torch._C._distributed_c10d.Backend):  # type: ignore[misc,name-defined]
    """What torch itself takes: a backend in Python that does nothing."""

    supports_coalescing = supports_splitting = supports_shrinking = supports_reconfigure = property(lambda self: False)
    supports_window = supports_abort_hooks = _supports_time_estimate = property(lambda self: False)

    class Work(torch._C._distributed_c10d.Work):  # type: ignore[name-defined]
        def wait(self, timeout=None):
            return True

    @property
    def options(self):
        return torch._C._distributed_c10d.Backend.Options("nothing")  # type: ignore[attr-defined]

    def getBackendName(self):
        return "nothing"

    def allreduce(self, tensors, opts=None):
        return self.Work()


def empty_group():
    """Needs a torch that calls backends in Python."""
    dist.Backend.register_backend("nothing", lambda _, rank, size, __: Nothing(rank, size), devices=["cpu"])
    return dist.new_group(backend="nothing")


def new_groups(groups, rounds):
    made = []

    def make(name):
        def call():
            group = dist.new_group([0, 1], backend=name)
            if dist.get_rank() < 2:
                dist.barrier(group=group)
            made.append(group)  # gloo's members must not end while others still connect
        return call
    compare("new_group of 2 and a barrier", {name: make(name) for name in groups}, 5, min(rounds, 3))


def stores(groups, rounds):
    from coordd.torch.distributed._group import _alive
    ours = coordd.torch.distributed.Store(_alive[0]._channel.worker, datetime.timedelta(seconds=60))
    port = [None]
    if dist.get_rank() == 0:
        server = dist.TCPStore("127.0.0.1", 0, None, True, wait_for_workers=False)
        port = [server.port]
    dist.broadcast_object_list(port, 0)
    theirs = dist.TCPStore("127.0.0.1", port[0], None, False) if dist.get_rank() else server
    for store in (ours, theirs):
        store.set("key", "value")
    dist.barrier()
    both = {"coordd": ours, "TCPStore": theirs}
    compare("store.get, all ranks at it", {name: lambda store=store: store.get("key") for name, store in both.items()}, 200, rounds)
    dist.barrier()
    for what, call in (("get", lambda store: store.get("key")), ("set", lambda store: store.set(f"own{dist.get_rank()}", "value")),
                       ("add", lambda store: store.add("sum", 1))):
        taken = {name: [] for name in both}
        for _ in range(rounds):
            for name, store in both.items():
                dist.barrier()
                began = time.perf_counter()
                for _ in range(_CALLS):
                    call(store)
                dist.barrier()
                taken[name].append(time.perf_counter() - began)
        middle = {name: statistics.median(values) for name, values in taken.items()}
        say(f"{f'store: {_CALLS} {what}s by each of {dist.get_world_size()}':<34} coordd {middle['coordd'] * 1e3:10.1f} ms   "
            f"TCPStore {middle['TCPStore'] * 1e3:.1f} ms ({middle['TCPStore'] / middle['coordd']:.2f} times)")


def model():
    torch.manual_seed(0)
    return nn.Sequential(*(layer for _ in range(6) for layer in (nn.Linear(2040, 2040), nn.ReLU())))


def step_of(one):
    inputs = torch.randn(8, 2040)

    def step():
        for parameter in one.parameters():
            parameter.grad = None
        one(inputs).square().mean().backward()

    return step


def ddp(groups, rounds):
    steps = {name: step_of(nn.parallel.DistributedDataParallel(model(), process_group=group, gradient_as_bucket_view=True))
             for name, group in groups.items()}
    steps["alone"] = step_of(model())
    compare("DDP step, 25 M parameters", steps, 5, min(rounds, 3))


def fsdp(groups, rounds):
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.fsdp import fully_shard
    steps = {}
    for name, group in groups.items():
        mesh, one = DeviceMesh.from_group(group, "cpu"), model()
        for layer in one:
            if isinstance(layer, nn.Linear):
                fully_shard(layer, mesh=mesh)
        steps[name] = step_of(fully_shard(one, mesh=mesh))
    compare("FSDP2 step, 25 M parameters", steps, 5, min(rounds, 3))


PARTS = {"calls": calls, "messages": messages, "async": asynchronous, "groups": new_groups, "store": stores, "ddp": ddp, "fsdp": fsdp}


def be_rank(rank, size, folder, options):
    torch.set_num_threads(1)
    dist.init_process_group("coordd", init_method=f"file://{folder}/store", rank=rank, world_size=size)
    groups = {"coordd": dist.group.WORLD, "gloo": dist.new_group(backend="gloo")}
    try:
        import commux  # noqa: F401
        groups["commux"] = dist.new_group(backend="commux")
    except ImportError:
        pass
    say(f"torch {torch.__version__}, {size} ranks, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}")
    for name, part in PARTS.items():
        if options.only in ("", name):
            part(groups, options.rounds)
    dist.barrier()
    dist.destroy_process_group()
    os._exit(0)


def main():
    parser = argparse.ArgumentParser(usage=__doc__)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", default="", choices=["", *PARTS])
    parser.add_argument("--spinners", type=int, default=0)
    options = parser.parse_args()
    spinners, ranks = [], []
    for _ in range(options.spinners):
        pid = os.fork()
        if pid == 0:
            while os.getppid() != 1:
                sum(range(100000))
            os._exit(0)
        spinners.append(pid)
    with tempfile.TemporaryDirectory(prefix="coordd-bench-") as folder:
        for rank in range(options.ranks):
            pid = os.fork()
            if pid == 0:
                be_rank(rank, options.ranks, folder, options)
            ranks.append(pid)
        failed = [pid for pid in ranks if os.waitpid(pid, 0)[1] != 0]
    for pid in spinners:
        os.kill(pid, 9)
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
