#!/usr/bin/env python3
"""What first_step.py starts in each task: trains for one step, and writes when it got where, in seconds since 1970."""

import json
import os
import sys
import time

started = time.time()


def started_by_kernel():
    """When this process began: Python itself takes a while to the first line of a program."""
    with open("/proc/self/stat", encoding="ascii") as stat:
        ticks = int(stat.read().rsplit(")", 1)[1].split()[19])
    with open("/proc/uptime", encoding="ascii") as uptime:
        since_boot = float(uptime.read().split()[0])
    return time.time() - since_boot + ticks / os.sysconf("SC_CLK_TCK")


class Coordd:
    def __init__(self, times):
        import coordd.torch as hvd
        times["imported"] = time.time()
        self._hvd = hvd
        hvd.init()
        self.rank, self.size = hvd.rank(), hvd.size()

    def prepare(self, model, optimizer):
        self._hvd.broadcast_parameters(model.state_dict(), root_rank=0)
        return model, self._hvd.DistributedOptimizer(optimizer, model.named_parameters())


class Gloo:
    def __init__(self, times):
        import torch.distributed as dist
        times["imported"] = time.time()
        dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{os.environ['FIRST_STEP_PORT']}",
                                rank=int(os.environ["SLURM_PROCID"]), world_size=int(os.environ["SLURM_NTASKS"]))
        self.rank, self.size = dist.get_rank(), dist.get_world_size()

    @staticmethod
    def prepare(model, optimizer):
        import torch
        return torch.nn.parallel.DistributedDataParallel(model), optimizer


def main():
    folder, how = sys.argv[1:3]
    times = {"started": started_by_kernel(), "running": started}
    import torch
    torch.set_num_threads(1)
    worker = (Gloo if how == "gloo" else Coordd)(times)
    times["joined"] = time.time()
    model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 10))
    model, optimizer = worker.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
    loss = torch.nn.functional.cross_entropy(model(torch.ones(4, 64)), torch.zeros(4, dtype=torch.long))
    loss.backward()
    optimizer.step()
    times["stepped"] = time.time()
    with open(os.path.join(folder, f"rank-{worker.rank}.json"), "w", encoding="ascii") as file:
        json.dump({"rank": worker.rank, "size": worker.size, **times}, file)


if __name__ == "__main__":
    main()
