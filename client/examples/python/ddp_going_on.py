#!/usr/bin/env python3
"""DistributedDataParallel that goes on without a rank that is lost, step by step:

    coordrun -np 3 --min-np 1 -- python ddp_going_on.py [--steps 60] [--pause SECONDS]

Kill one of the workers (kill -9): the others make a smaller group, agree on whose state is the newest, and go on with the step that
failed. No checkpoint is read, and no process started anew. Each step's batch is shared by whoever is there.
"""

import argparse
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import coordd.torch.distributed as coordd
import digits_data

BATCH = 120  # images of a step, of all ranks


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--pause", type=float, default=0.0, help="seconds between steps, to have time for a kill")
    options = parser.parse_args()

    torch.manual_seed(0)
    dist.init_process_group("coordd")
    (images, labels), _ = digits_data.load()
    model = nn.Sequential(nn.Linear(images.shape[1], 32), nn.ReLU(), nn.Linear(32, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    parallel, step = DistributedDataParallel(model), 0
    while step < options.steps:
        try:
            chosen = torch.randperm(len(images), generator=torch.Generator().manual_seed(step))[:BATCH]  # the same on all ranks
            own = chosen[dist.get_rank()::dist.get_world_size()]
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(parallel(images[own]), labels[own])
            loss.backward()
        except RuntimeError as error:  # DistBackendError is one, as is what DDP makes of it
            rank, size = coordd.recover(error)
            # Ranks may be one step apart: the newest state goes on.
            step, of_model, of_optimizer = coordd.share_newest(step, lambda: (step, model.state_dict(), optimizer.state_dict()))
            model.load_state_dict(of_model)
            optimizer.load_state_dict(of_optimizer)
            parallel = DistributedDataParallel(model)
            print(f"rank {rank} of {size} goes on with step {step}", flush=True)
            continue
        optimizer.step()
        step += 1
        if dist.get_rank() == 0 and step % 10 == 0:
            print(f"step {step}: loss {loss.item():.4f}, {dist.get_world_size()} ranks", flush=True)
        time.sleep(options.pause)
    weights = sum(parameter.double().sum().item() for parameter in model.parameters())
    print(f"rank {dist.get_rank()} of {dist.get_world_size()} is done: {step} steps, loss {loss.item():.4f}, weights {weights:.9f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
