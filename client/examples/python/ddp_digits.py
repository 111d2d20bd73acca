#!/usr/bin/env python3
"""A program for torch's DistributedDataParallel whose gradients coordd averages: one line is new, marked below.

    coordrun -np 2 -- python3 ddp_digits.py
"""

import sys

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import coordd.torch as hvd
import digits_data
from synthetic_benchmark import join_gloo


def main():
    hvd.init()
    join_gloo()
    torch.set_num_threads(1)
    torch.manual_seed(1)
    train, test = digits_data.load()
    model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 10))
    model = DistributedDataParallel(model)
    hvd.ddp_hook.register(model)  # <- this one
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for epoch in range(10):
        order = torch.randperm(len(train.labels), generator=torch.Generator().manual_seed(epoch))
        for batch in order.split(64):
            own = batch[dist.get_rank()::dist.get_world_size()]
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(model(train.images[own]), train.labels[own]).backward()
            optimizer.step()
    if dist.get_rank() == 0:
        with torch.no_grad():
            correct = (model.module(test.images).argmax(1) == test.labels).float().mean()
        print(f"test accuracy {correct:.4f} with {dist.get_world_size()} worker(s)")
    hvd.barrier()
    dist.destroy_process_group()
    return 0


if __name__ == "__main__":
    sys.exit(main())
