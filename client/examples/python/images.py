#!/usr/bin/env python3
"""A convolutional network on the digits, with what programs for images usually have: a data loader with workers of its own,
a sampler that divides the data, batch normalisation over all ranks, gradients that travel in bfloat16, and accuracy over all
ranks.

    coordrun -np 2 -- python3 images.py
"""

import argparse
import sys

import torch
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

import coordd.torch as hvd
import digits_data


def network():
    return torch.nn.Sequential(
        torch.nn.Conv2d(1, 16, 3, padding=1, bias=False), torch.nn.BatchNorm2d(16), torch.nn.ReLU(), torch.nn.MaxPool2d(2),
        torch.nn.Conv2d(16, 32, 3, padding=1, bias=False), torch.nn.BatchNorm2d(32), torch.nn.ReLU(), torch.nn.MaxPool2d(2),
        torch.nn.Flatten(), torch.nn.Linear(128, 10))


def accuracy(model, loader):
    """Over the images of all ranks."""
    model.eval()
    counts = torch.zeros(2)
    with torch.no_grad():
        for images, labels in loader:
            counts += torch.tensor([(model(images).argmax(1) == labels).sum(), len(labels)])
    model.train()
    correct, images = hvd.allreduce(counts, name="accuracy", op=hvd.Sum)
    return (correct / images).item()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--batch", type=int, default=32, help="images of a step on each worker")
    parser.add_argument("--loaders", type=int, default=2, help="processes of each worker that load data")
    options = parser.parse_args()

    hvd.init()
    torch.set_num_threads(1)
    torch.manual_seed(1)
    sets = [TensorDataset(part.images.view(-1, 1, 8, 8), part.labels) for part in digits_data.load()]
    samplers = [DistributedSampler(part, hvd.size(), hvd.rank(), shuffle=part is sets[0]) for part in sets]
    train, test = [DataLoader(part, options.batch, sampler=sampler, num_workers=options.loaders,
                              persistent_workers=options.loaders > 0) for part, sampler in zip(sets, samplers)]

    model = hvd.SyncBatchNorm.convert_sync_batchnorm(network())
    optimizer = torch.optim.Adam(model.parameters(), lr=0.002)
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters(), compression=hvd.Compression.bf16)

    for epoch in range(options.epochs):
        samplers[0].set_epoch(epoch)
        for images, labels in train:
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(model(images), labels).backward()
            optimizer.step()
        reached = accuracy(model, test)
        if hvd.rank() == 0:
            print(f"epoch {epoch + 1}  test accuracy {reached:.4f}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
