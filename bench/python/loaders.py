"""Images that loaders make beside a training whose gradients are exchanged, beside DistributedDataParallel on Gloo.

    coordrun -np 2 -- python3 bench/python/loaders.py [--loaders 2] [--json FILE]

A rank takes each batch from its own DataLoader processes, which compute as decoders do (inflate, resize, normalise) and are what the
training waits for: with more processes than cores, what a library computes or spins while it exchanges is taken from them. A phase is
--seconds of training with one library; phases take turns in the same processes, and so do both libraries' idle threads. Rank 0 prints
one JSON object: images per second of all ranks, medians over the phases; "alone" does not exchange anything.
"""

import argparse
import copy
import json
import statistics
import time
import zlib

import peer  # noqa: I001  it says where models is
import numpy
import torch

hvd = peer.hvd
SIDE = 256


class Images(torch.utils.data.IterableDataset):
    """Pictures without end, made from a compressed one."""

    def __iter__(self):
        pattern = numpy.add.outer(numpy.arange(SIDE), numpy.arange(SIDE))
        packed = zlib.compress((pattern[:, :, None] * numpy.array([1, 2, 3]) % 256).astype(numpy.uint8).tobytes())
        while True:
            image = numpy.frombuffer(zlib.decompress(packed), numpy.uint8).reshape(SIDE, SIDE, 3).astype(numpy.float32)
            small = image.reshape(64, 4, 64, 4, 3).mean(axis=(1, 3))
            yield torch.from_numpy((small - small.mean()) / (small.std() + 1e-6)).reshape(-1)


def contenders(options):
    """Name -> (model, optimizer)."""
    torch.manual_seed(1)
    origin = torch.nn.Sequential(torch.nn.Linear(64 * 64 * 3, options.width), torch.nn.ReLU(),
                                 torch.nn.Linear(options.width, options.width), torch.nn.ReLU(),
                                 torch.nn.Linear(options.width, 10))
    models = {"alone": origin, "coordd": copy.deepcopy(origin),
              "ddp": torch.nn.parallel.DistributedDataParallel(copy.deepcopy(origin), gradient_as_bucket_view=True)}
    result = {name: (model, torch.optim.SGD(model.parameters(), lr=1e-6)) for name, model in models.items()}
    model, optimizer = result["coordd"]
    result["coordd"] = (model, hvd.DistributedOptimizer(optimizer, model.named_parameters()))
    return result


def phase(model, optimizer, batches, seconds):
    """Images per second of this rank. All ranks make as many steps: they agree at each on whether there is time left."""
    hvd.barrier()
    began, images = time.perf_counter(), 0
    while hvd.allreduce(torch.tensor([time.perf_counter() - began < seconds], dtype=torch.float32), op=hvd.Min,
                        name="time is left").item() > 0:
        batch = next(batches)
        optimizer.zero_grad(set_to_none=False)
        torch.nn.functional.cross_entropy(model(batch), torch.zeros(len(batch), dtype=torch.long)).backward()
        optimizer.step()
        images += len(batch)
    return images / (time.perf_counter() - began)


def main():
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--loaders", type=int, default=2, help="processes of each rank")
    arguments.add_argument("--batch-size", type=int, default=32)
    arguments.add_argument("--width", type=int, default=1024, help="of the model's layers: 12,288 x WIDTH parameters and more")
    arguments.add_argument("--seconds", type=float, default=4, help="of a phase")
    arguments.add_argument("--rounds", type=int, default=5)
    arguments.add_argument("--json", help="a file that receives what rank 0 prints")
    options = arguments.parse_args()
    torch.set_num_threads(1)
    batches = iter(torch.utils.data.DataLoader(Images(), batch_size=options.batch_size, num_workers=options.loaders))
    next(batches)  # the processes are there before this one has threads
    hvd.init()
    from synthetic_benchmark import join_gloo
    join_gloo()
    running = contenders(options)
    names = list(running)
    rates = {name: [] for name in names}
    for turn in range(-1, options.rounds):
        for index in range(len(names)):
            name = names[(turn + index) % len(names)]
            rate = phase(*running[name], batches, options.seconds)
            if turn >= 0:
                rates[name].append(rate)
    everyone = hvd.allgather_object(rates)
    sums = {name: [sum(figures) for figures in zip(*(one[name] for one in everyone))] for name in names}
    images = {name: statistics.median(figures) for name, figures in sums.items()}
    result = {"ranks": hvd.size(), "loaders": options.loaders, "batch_size": options.batch_size, "width": options.width,
              "images_per_second": {name: round(figure, 1) for name, figure in images.items()},
              "all": {name: [round(figure, 1) for figure in figures] for name, figures in sums.items()},
              "coordd_by_ddp": round(statistics.median(a / b for a, b in zip(sums["coordd"], sums["ddp"])), 3),
              "torch": torch.__version__}
    if hvd.rank() == 0:
        print(json.dumps(result), flush=True)
        if options.json:
            with open(options.json, "w", encoding="utf-8") as file:
                json.dump(result, file)
    hvd.barrier()


main()
