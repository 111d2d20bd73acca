#!/usr/bin/env python3
"""Trains a small network on handwritten digits. What coordd adds to a training loop is marked 1 to 5.

    coordrun -np 1 -- python3 digits.py --save one.pt
    coordrun -np 4 -- python3 digits.py --save four.pt    # --device cuda: on the GPUs that there are
    python3 digits.py --compare one.pt four.pt            # how far the weights are apart
"""

import argparse
import sys

import torch

import coordd.torch as hvd
import digits_data


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--batch", type=int, default=64, help="images of a step, over all workers")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--save", metavar="FILE", help="where rank 0 writes the weights")
    parser.add_argument("--compare", nargs=2, metavar="FILE", help="print the largest difference of two files of weights")
    return parser.parse_args()


def largest_difference(first, second):
    first, second = torch.load(first), torch.load(second)
    return max((first[name] - second[name]).abs().max().item() for name in first)


def main():
    options = arguments()
    if options.compare:
        print(f"{largest_difference(*options.compare):.3g}")
        return 0

    hvd.init()  # 1: become a worker of the job
    torch.set_num_threads(1)
    torch.manual_seed(hvd.rank())  # on purpose not the same: step 2 sees to that
    device = torch.device(options.device)
    if options.device == "cuda":
        device = torch.device("cuda", hvd.local_rank() % torch.cuda.device_count())
        torch.cuda.set_device(device)
    train, test = (digits_data.Digits(*(tensor.to(device) for tensor in part)) for part in digits_data.load())
    model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 10)).to(device)
    if hvd.rank() == 0:
        torch.manual_seed(1)
        for layer in (model[0], model[2]):
            layer.reset_parameters()
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)  # 2: start from the same weights

    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    # 3: use everybody's gradients. Sum, since the loss below is divided by the size of the whole batch.
    optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters(), op=hvd.Sum)

    for epoch in range(options.epochs):
        order = torch.randperm(len(train.labels), generator=torch.Generator().manual_seed(epoch))
        total = torch.zeros((), device=device)
        for batch in order.split(options.batch):
            own = batch[hvd.rank()::hvd.size()]  # 4: take your part of each batch
            optimizer.zero_grad()
            loss = torch.nn.functional.cross_entropy(model(train.images[own]), train.labels[own], reduction="sum")
            (loss / len(batch)).backward()
            optimizer.step()
            total += loss.detach()  # stays where it is: the host need not wait for each step
        mean = hvd.allreduce(total, name="loss", op=hvd.Sum).item() / len(train.labels)
        if hvd.rank() == 0:  # 5: one of you speaks and saves
            print(f"epoch {epoch + 1:2}  loss {mean:.4f}", flush=True)

    if hvd.rank() == 0:
        with torch.no_grad():
            correct = (model(test.images).argmax(1) == test.labels).float().mean()
        print(f"test accuracy {correct:.4f} with {hvd.size()} worker(s)")
        if options.save:
            torch.save(model.state_dict(), options.save)
    return 0


if __name__ == "__main__":
    sys.exit(main())
