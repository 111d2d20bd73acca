"""How long a synchronous allreduce of 4 bytes takes from Python, beside torch.distributed on Gloo.

    coordrun -np 2 -- python3 bench/python/latency.py [--json FILE]       (Horovod by itself: see peer.py)

Both are called in turns in the same processes, so that whatever else the machine does meets both. Rank 0 prints one JSON
object: medians over all calls, and the median of each turn's ratio.
"""

import argparse
import json
import statistics
import time

import peer
import torch
import torch.distributed as dist

hvd = peer.hvd


def calls_us(call, count):
    figures = []
    for _ in range(count):
        began = time.perf_counter()
        call()
        figures.append((time.perf_counter() - began) * 1e6)
    return figures


def main():
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--turns", type=int, default=40)
    arguments.add_argument("--calls", type=int, default=100, help="in each turn of each")
    peer.add_option(arguments)
    arguments.add_argument("--json", help="a file that receives what rank 0 prints")
    options = arguments.parse_args()
    hvd.init()
    torch.set_num_threads(1)
    tensor = torch.zeros(1)
    contenders = {peer.NAME: lambda: hvd.allreduce_(tensor, name="loss", op=hvd.Sum)}
    if peer.NAME == "coordd":
        contenders["unnamed"] = lambda: hvd.allreduce(tensor)  # as scripts write it: a new tensor, no name
        from synthetic_benchmark import join_gloo
        join_gloo()
        contenders["gloo"] = lambda: dist.all_reduce(tensor)
    for call in contenders.values():
        calls_us(call, 20)
    figures = {name: [] for name in contenders}
    ratios = []
    for _ in range(options.turns):
        turn = {name: calls_us(call, options.calls) for name, call in contenders.items()}
        for name, taken in turn.items():
            figures[name] += taken
        if "gloo" in turn:
            ratios.append(statistics.median(turn["gloo"]) / statistics.median(turn["coordd"]))
    result = {"ranks": hvd.size(), "bytes": 4, "calls": options.turns * options.calls,
              **{f"{name}_us": round(statistics.median(taken), 1) for name, taken in figures.items()},
              **{f"{name}_us_fastest_tenth": round(statistics.quantiles(taken, n=10)[0], 1)
                 for name, taken in figures.items()},
              **({"gloo_by_coordd": round(statistics.median(ratios), 2)} if ratios else {}), "torch": torch.__version__}
    if hvd.rank() == 0:
        print(json.dumps(result), flush=True)
        if options.json:
            with open(options.json, "w", encoding="utf-8") as file:
                json.dump(result, file)
    hvd.barrier()


main()
