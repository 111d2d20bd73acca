"""What an asynchronous allreduce costs the thread that calls it, from Python, and how long a synchronous one takes.

    coordrun -np 2 -- python3 bench/python/submit_cost.py [--json FILE]   (Horovod: see peer.py)

"python_part_us" is what Python adds to a synchronous call: the same call, with a C function in the library's place that returns
at once. Elsewhere only the calls are timed, not the reductions: a training step submits its gradients one after the other while it computes.
Rank 0 prints one JSON object; each figure is the median over `--rounds` rounds, in microseconds: processor time of the
calling thread for the asynchronous calls, time on the wall for the synchronous one.
"""

import argparse
import json
import statistics
import sys
import time

import peer
import torch

hvd = peer.hvd


def timed_us(call, clock=time.thread_time):
    """Microseconds of processor time of this thread, which other processes on a busy machine do not change."""
    start = clock()
    result = call()
    return (clock() - start) * 1e6, result


def single(count, rounds, submit):
    """Microseconds per tensor of `count` calls of submit(index)."""
    figures = []
    for _ in range(rounds):
        taken, handles = timed_us(lambda: [submit(index) for index in range(count)])
        for handle in handles:
            hvd.synchronize(handle)
        figures.append(taken / count)
    return round(statistics.median(figures), 2)


def grouped(count, rounds, submit):
    figures = []
    for _ in range(rounds):
        taken, handle = timed_us(submit)
        hvd.synchronize(handle)
        figures.append(taken / count)
    return round(statistics.median(figures), 2)


def grouped_alone(count, rounds, call):
    """Microseconds per tensor of what torch does by itself for results in new tensors."""
    return round(statistics.median(timed_us(call)[0] for _ in range(rounds)) / count, 2)


def synchronous(rounds):
    tensor = torch.zeros(1)
    figures = [timed_us(lambda: hvd.allreduce_(tensor, name="sync"), time.perf_counter)[0] for _ in range(rounds)]
    return round(statistics.median(figures[rounds // 10:]), 1)


def python_part():
    """Microseconds of processor time of a synchronous call around the call of the library: named in place, and as scripts write
    it."""
    import ctypes
    from coordd import _library
    from coordd.torch import _submit
    blocking = vars(_library.library().blocking)
    tensor = torch.zeros(1)
    _submit._calls.clear()  # they hold the library's function
    original = blocking.pop("coordd_allreduce_for", None)
    blocking["coordd_allreduce_for"] = ctypes.CDLL(None).pthread_equal  # of a worker and a tensor: 0
    try:
        figures = []
        for call in (lambda: hvd.allreduce_(tensor, name="loss", op=hvd.Sum), lambda: hvd.allreduce(tensor)):
            taken = [timed_us(call)[0] - timed_us(lambda: None)[0] for _ in range(3000)]
            figures.append(round(statistics.median(taken), 2))
        return figures
    finally:
        _submit._calls.clear()
        del blocking["coordd_allreduce_for"]
        if original is not None:
            blocking["coordd_allreduce_for"] = original


def main():
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--tensors", type=int, default=161, help="as many as a model of 25.6 M parameters has")
    arguments.add_argument("--elements", type=int, default=256)
    arguments.add_argument("--rounds", type=int, default=50)
    peer.add_option(arguments)
    arguments.add_argument("--json", help="a file that receives what rank 0 prints")
    options = arguments.parse_args()

    hvd.init()
    torch.set_num_threads(1)
    count, rounds = options.tensors, options.rounds
    tensors = [torch.zeros(options.elements) for _ in range(count)]
    names = [f"layer{index}.weight" for index in range(count)]
    figures = {
        "ranks": hvd.size(), "tensors": count, "elements": options.elements,
        "allreduce_async__us": single(count, rounds, lambda i: hvd.allreduce_async_(tensors[i], name=names[i])),
        "allreduce_async_us": single(count, rounds, lambda i: hvd.allreduce_async(tensors[i], name=names[i])),
        "allreduce_async_unnamed_us": single(count, rounds, lambda i: hvd.allreduce_async(tensors[i])),
        "grouped_allreduce_async__us_per_tensor": grouped(
            count, rounds, lambda: hvd.grouped_allreduce_async_(tensors, name="all")),
        "grouped_allreduce_async_us_per_tensor": grouped(
            count, rounds, lambda: hvd.grouped_allreduce_async(tensors, name="all")),
        "torch_empty_like_us": grouped_alone(count, rounds, lambda: list(map(torch.empty_like, tensors))),
        "allreduce_4_bytes_us": synchronous(rounds * 20),
        **({"python_part_us": python_part()} if peer.NAME == "coordd" else {}),
        "torch": torch.__version__, "python": sys.version.split()[0],
    }
    if hvd.rank() == 0:
        print(json.dumps(figures), flush=True)
        if options.json:
            with open(options.json, "w", encoding="utf-8") as file:
                json.dump(figures, file)


main()
