"""The communication part of a training step: a model of 25.6 million parameters in 161 tensors, beside
DistributedDataParallel on Gloo.

    coordrun -np 2 -- python3 bench/python/training_step.py [--json FILE]   (Horovod by itself: see peer.py)

Communication part: the time of a step less the time of the same step without communication. Each round makes one step of each
kind, one after the other in the same processes, in an order that turns from round to round; a step takes as long as on the
slowest rank. Rank 0 prints one JSON object: medians over the rounds, in milliseconds; of the communication part, the median
of each round's difference. Processor time is that of all threads of a process, the mean over the ranks: where there are no
more cores than ranks, communication takes it from computing, and it is steadier than the clock on a machine that does other
things too.

    alone      no communication
    coordd     coordd.torch.DistributedOptimizer, gradients as views of its buckets
    coordd_own the same, gradients in memory of torch's (gradient_as_bucket_view=False)
    ddp        DistributedDataParallel on Gloo, gradients as views of its buckets
    ddp_hook   the same with coordd's communication hook
"""

import argparse
import copy
import json
import statistics
import time

import peer  # noqa: I001  it says where models is
import models
import torch

hvd = peer.hvd


def contenders(options):
    """Name -> (model, optimizer)."""
    torch.manual_seed(1)
    origin = models.residual_network(options.model)

    def sgd(model):
        return torch.optim.SGD(model.parameters(), lr=1e-6)

    def ddp():
        return torch.nn.parallel.DistributedDataParallel(copy.deepcopy(origin), gradient_as_bucket_view=True,
                                                         broadcast_buffers=False)

    models_of = {"alone": origin, peer.NAME: copy.deepcopy(origin)}
    if peer.NAME == "coordd":
        models_of.update(coordd_own=copy.deepcopy(origin), ddp=ddp(), ddp_hook=ddp())
        hvd.ddp_hook.register(models_of["ddp_hook"])
    result = {name: (model, sgd(model)) for name, model in models_of.items()}
    model, optimizer = result[peer.NAME]
    result[peer.NAME] = (model, hvd.DistributedOptimizer(optimizer, model.named_parameters()))
    if "coordd_own" in result:
        model, optimizer = result["coordd_own"]
        named = [("own." + name, parameter) for name, parameter in model.named_parameters()]
        result["coordd_own"] = (model, hvd.DistributedOptimizer(optimizer, named, gradient_as_bucket_view=False))
    return result


def step_ms(model, optimizer, images, labels):
    """Milliseconds of the clock and of the processor."""
    hvd.barrier()
    used, began = time.process_time(), time.perf_counter()
    if peer.NAME == "coordd":
        optimizer.zero_grad(set_to_none=False)
    else:
        optimizer.zero_grad()
    torch.nn.functional.cross_entropy(model(images), labels).backward()
    optimizer.step()
    return (time.perf_counter() - began) * 1e3, (time.process_time() - used) * 1e3


def measure(options):
    """Name -> milliseconds of each round by the clock, on the slowest rank; the same by the processor, in the mean."""
    torch.manual_seed(2)
    images = torch.randn(options.batch_size, 3, options.image_size, options.image_size)
    labels = torch.randint(1000, (options.batch_size,))
    running = contenders(options)
    names = list(running)
    taken = {name: [] for name in names}
    for turn in range(-options.warmup, options.rounds):
        for index in range(len(names)):
            name = names[(turn + index) % len(names)]
            figure = step_ms(*running[name], images, labels)
            if turn >= 0:
                taken[name].append(figure)
    everyone = hvd.allgather_object(taken)
    rounds = {name: list(zip(*(one[name] for one in everyone))) for name in names}  # of each round, each rank's pair
    return ({name: [max(pair[0] for pair in ranks) for ranks in rounds[name]] for name in names},
            {name: [statistics.mean(pair[1] for pair in ranks) for ranks in rounds[name]] for name in names})


def communication(taken):
    """Name -> median of each round's difference to the step without communication."""
    return {name: statistics.median(step - alone for step, alone in zip(figures, taken["alone"]))
            for name, figures in taken.items() if name != "alone"}


def main():
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--model", default="resnet50", choices=sorted(models.STAGES))
    arguments.add_argument("--batch-size", type=int, default=2)
    arguments.add_argument("--image-size", type=int, default=64)
    arguments.add_argument("--warmup", type=int, default=3)
    arguments.add_argument("--rounds", type=int, default=20)
    peer.add_option(arguments)
    arguments.add_argument("--json", help="a file that receives what rank 0 prints")
    options = arguments.parse_args()
    hvd.init()
    if peer.NAME == "coordd":
        from synthetic_benchmark import join_gloo
        join_gloo()
    torch.set_num_threads(1)
    taken, processor = measure(options)
    parts, processor_parts = communication(taken), communication(processor)
    result = {"ranks": hvd.size(), "model": options.model, "batch_size": options.batch_size,
              "image_size": options.image_size, "rounds": options.rounds,
              "step_ms": {name: round(statistics.median(figures), 1) for name, figures in taken.items()},
              "step_ms_fastest": {name: round(min(figures), 1) for name, figures in taken.items()},
              "communication_ms": {name: round(part, 1) for name, part in parts.items()},
              "processor_ms": {name: round(statistics.median(figures), 1) for name, figures in processor.items()},
              "communication_processor_ms": {name: round(part, 1) for name, part in processor_parts.items()},
              **{f"ddp_by_{name}": round(parts["ddp"] / parts[name], 2) for name in parts if "ddp_hook" in parts},
              **{f"processor_ddp_by_{name}": round(processor_parts["ddp"] / processor_parts[name], 2)
                 for name in parts if "ddp_hook" in parts}, "torch": torch.__version__}
    if hvd.rank() == 0:
        print(json.dumps(result), flush=True)
        if options.json:
            with open(options.json, "w", encoding="utf-8") as file:
                json.dump(result, file)
    hvd.barrier()


main()
