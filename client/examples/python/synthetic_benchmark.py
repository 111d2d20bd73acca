#!/usr/bin/env python3
"""How many images a second a model trains on, with random images: what is measured is computing and communication.

    coordrun -np 2 -- python3 synthetic_benchmark.py --model resnet50 --image-size 64 --batch-size 8
    coordrun -np 2 -- python3 synthetic_benchmark.py --ddp ...        # DistributedDataParallel on Gloo, to compare
    coordrun -np 2 -- python3 synthetic_benchmark.py --ddp-hook ...   # the same with coordd's communication hook
    horovodrun -np 2 python3 synthetic_benchmark.py --horovod ...     # Horovod, whose names coordd.torch has
"""

import argparse
import statistics
import sys
import time

import torch

import models

if "--horovod" in sys.argv:
    import horovod.torch as hvd
else:
    import coordd.torch as hvd


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="resnet50", choices=sorted(models.STAGES))
    parser.add_argument("--image-size", type=int, default=224)
    parser.add_argument("--batch-size", type=int, default=32, help="images of a step on each worker")
    parser.add_argument("--num-warmup-batches", type=int, default=10)
    parser.add_argument("--num-batches-per-iter", type=int, default=10)
    parser.add_argument("--num-iters", type=int, default=10)
    parser.add_argument("--threads", type=int, default=1, help="of each worker, for computing")
    parser.add_argument("--fp16-allreduce", action="store_true", help="gradients travel in float16")
    parser.add_argument("--bf16-allreduce", action="store_true", help="gradients travel in bfloat16")
    how = parser.add_mutually_exclusive_group()
    how.add_argument("--ddp", action="store_true", help="torch's DistributedDataParallel on Gloo")
    how.add_argument("--ddp-hook", action="store_true", help="the same, its gradients averaged by coordd")
    how.add_argument("--horovod", action="store_true", help="Horovod, started by horovodrun")
    return parser.parse_args()


def compression(options):
    if options.fp16_allreduce:
        return hvd.Compression.fp16
    return hvd.Compression.bf16 if options.bf16_allreduce else hvd.Compression.none


def join_gloo():
    """torch's own process group, whose store's port rank 0 tells the others."""
    import torch.distributed as dist
    store = dist.TCPStore("127.0.0.1", 0, hvd.size(), True, wait_for_workers=False) if hvd.rank() == 0 else None
    port = hvd.broadcast_object(store.port if store else None, name="port of torch's store")
    store = store or dist.TCPStore("127.0.0.1", port, hvd.size(), False)
    dist.init_process_group("gloo", store=store, rank=hvd.rank(), world_size=hvd.size())


def distribute(model, optimizer, options):
    """The model and the optimizer to train with."""
    if not (options.ddp or options.ddp_hook):
        hvd.broadcast_parameters(model.state_dict(), root_rank=0)
        hvd.broadcast_optimizer_state(optimizer, root_rank=0)
        return model, hvd.DistributedOptimizer(optimizer, model.named_parameters(), compression=compression(options))
    join_gloo()
    # Views save a copy for both; buffers of batch normalisation stay local, as they do without DistributedDataParallel.
    model = torch.nn.parallel.DistributedDataParallel(model, gradient_as_bucket_view=True, broadcast_buffers=False)
    if options.ddp_hook:
        hvd.ddp_hook.register(model, compression=compression(options))
    return model, optimizer


def main():
    options = arguments()
    hvd.init()
    torch.set_num_threads(options.threads)
    torch.manual_seed(1)
    model = models.residual_network(options.model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    model, optimizer = distribute(model, optimizer, options)
    images = torch.randn(options.batch_size, 3, options.image_size, options.image_size)
    labels = torch.randint(1000, (options.batch_size,))

    def step():
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(images), labels).backward()
        optimizer.step()

    def log(text):
        if hvd.rank() == 0:
            print(text, flush=True)

    log(f"Model: {options.model}\nBatch size: {options.batch_size}\nNumber of CPU workers: {hvd.size()}")
    for _ in range(options.num_warmup_batches):
        step()
    speeds = []
    for iteration in range(options.num_iters):
        began = time.perf_counter()
        for _ in range(options.num_batches_per_iter):
            step()
        speeds.append(options.batch_size * options.num_batches_per_iter / (time.perf_counter() - began))
        log(f"Iter #{iteration}: {speeds[-1]:.1f} img/sec per worker")
    mean = statistics.mean(speeds)
    spread = 1.96 * (statistics.stdev(speeds) if len(speeds) > 1 else 0.0)
    log(f"Img/sec per worker: {mean:.1f} +-{spread:.1f}")
    log(f"Total img/sec on {hvd.size()} worker(s): {hvd.size() * mean:.1f} +-{hvd.size() * spread:.1f}")
    hvd.barrier()
    return 0


if __name__ == "__main__":
    sys.exit(main())
