#!/usr/bin/env python3
"""digits.py, made to go on when a worker is lost. What that adds to the training loop is marked 1 to 4.

    coordrun -np 4 --min-np 2 -- python3 digits_elastic.py                   # then kill -9 one of the workers
    coordrun -np 4 --min-np 2 -- python3 digits_elastic.py --crash 2:100     # rank 2 kills itself in step 100
    coordctl drain 1 --job digits_elastic  # meanwhile: rank 1 leaves at its next commit, as after kill -TERM

The others go on from their last commit. Since the batch of a step is that of the whole job, its parts are then larger, and
nothing is lost or counted twice: the weights are those of `coordrun -np 1 -- python3 digits.py`.
"""

import argparse
import os
import signal
import sys
import time

import torch

import coordd.torch as hvd
import digits_data


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--batch", type=int, default=64, help="images of a step, over all workers")
    parser.add_argument("--save", metavar="FILE", help="where rank 0 writes the weights")
    parser.add_argument("--crash", metavar="RANK:STEP", action="append", default=[], help="may be given several times")
    return parser.parse_args()


def crash(step, crashes):
    # The ranks are those of the job's start: who has moved up is not meant.
    if (int(os.environ.get("COORDD_RANK", "0")), step) in crashes:
        os.kill(os.getpid(), signal.SIGKILL)


def main():
    options = arguments()
    crashes = {tuple(map(int, crash.split(":"))) for crash in options.crash}
    hvd.init()
    torch.set_num_threads(1)
    torch.manual_seed(1)
    train, test = digits_data.load()
    model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters(), op=hvd.Sum)

    state = hvd.elastic.TorchState(model=model, optimizer=optimizer, epoch=0, start=0, total=0.0)  # 1: all that has to survive
    lost_at = []
    state.register_reset_callbacks([lambda: lost_at.append(time.monotonic())])  # 2: what is to be done with fewer workers

    @hvd.elastic.run  # 3: runs again, from the last commit, whenever a worker was lost
    def train_all(state):
        if hvd.rank() == 0 and lost_at:
            print(f"going on with {hvd.size()} worker(s) at epoch {state.epoch + 1}, image {state.start}", flush=True)
        for state.epoch in range(state.epoch, options.epochs):
            order = torch.randperm(len(train.labels), generator=torch.Generator().manual_seed(state.epoch))
            while state.start < len(order):
                crash(state.epoch * -(-len(order) // options.batch) + state.start // options.batch, crashes)
                batch = order[state.start:state.start + options.batch]
                own = batch[hvd.rank()::hvd.size()]
                optimizer.zero_grad()
                loss = torch.nn.functional.cross_entropy(model(train.images[own]), train.labels[own], reduction="sum")
                (loss / len(batch)).backward()
                optimizer.step()
                state.total += hvd.allreduce(loss.detach(), name="loss", op=hvd.Sum).item()
                state.start += options.batch
                state.commit()  # 4: from here on, nothing before is done again
            if hvd.rank() == 0:
                print(f"epoch {state.epoch + 1:2}  loss {state.total / len(order):.4f}", flush=True)
            state.start, state.total = 0, 0.0

    train_all(state)
    if hvd.rank() == 0:
        with torch.no_grad():
            correct = (model(test.images).argmax(1) == test.labels).float().mean()
        print(f"test accuracy {correct:.4f} with {hvd.size()} worker(s)")
        if options.save:
            torch.save(model.state_dict(), options.save)
    return 0


if __name__ == "__main__":
    sys.exit(main())
