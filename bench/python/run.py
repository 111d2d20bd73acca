#!/usr/bin/env python3
"""All measurements of the Python package, one after the other, as one JSON object and as a table.

    python3 bench/python/run.py [--python PYTHON] [--horovod PYTHON] [--json FILE] [--quick]

--horovod names an interpreter that has Horovod, built with Gloo, for a column of its own; horovodrun is beside it. Needs build/.
Compare figures of one run only; on a machine that does nothing else. Minutes: 3, with --quick 1; with Horovod twice as many.
"""

import argparse
import json
import os
import re
import subprocess
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
COORDRUN = os.path.join(ROOT, "build", "bin", "coordrun")
BENCHMARK = os.path.join(ROOT, "client", "examples", "python", "synthetic_benchmark.py")
PATIENCE_S = 600


def ranks(options, count, *arguments):
    """Standard output of so many ranks."""
    environment = {**os.environ, "PYTHONPATH": os.path.join(ROOT, "client", "python")}
    ended = subprocess.run([COORDRUN, "-np", str(count), "--no-prefix", "--", options.python, *arguments], env=environment,
                           text=True, stdout=subprocess.PIPE, timeout=PATIENCE_S, check=True)
    return ended.stdout


def horovod_ranks(options, count, *arguments):
    """The same of so many ranks of Horovod's."""
    run = os.path.join(os.path.dirname(options.horovod), "horovodrun")
    ended = subprocess.run([run, "--gloo", "-np", str(count), "-H", f"localhost:{count}", options.horovod, *arguments],
                           text=True, stdout=subprocess.PIPE, timeout=PATIENCE_S, check=True,
                           env={**os.environ, "PATH": os.path.dirname(run) + os.pathsep + os.environ["PATH"]})
    return ended.stdout


def figures(options, program, *arguments, start=ranks):
    output = start(options, 2, os.path.join(HERE, program), *arguments)
    return json.loads(next(line[line.index("{"):] for line in output.splitlines() if '{"ranks"' in line))


def images(options, count, *how, start=ranks):
    """Images per second of all workers together."""
    iterations = "2" if options.quick else "5"
    output = start(options, count, BENCHMARK, "--image-size", "32", "--batch-size", "4", "--num-warmup-batches", "2",
                   "--num-batches-per-iter", "2", "--num-iters", iterations, *how)
    return float(re.search(r"Total img/sec on \d+ worker\(s\): ([\d.]+)", output).group(1))


def measure_horovod(options, rounds):
    there = {"start": horovod_ranks}
    return {
        "latency": figures(options, "latency.py", "--peer", "horovod", "--turns", "10" if options.quick else "40", **there),
        "submit_cost": figures(options, "submit_cost.py", "--peer", "horovod", **there),
        "training_step": figures(options, "training_step.py", "--peer", "horovod", "--image-size", "32", "--rounds", rounds,
                                 **there),
        "images_per_second": {count: images(options, count, "--horovod", **there) for count in (1, 2, 4)},
    }


def print_table(result):
    latency, cost, step, peer = (result[name] for name in ("latency", "submit_cost", "training_step", "horovod"))

    def horovods(part, figure):
        return peer[part][figure] if peer else ""

    print("| what | coordd | DDP hook | torch.distributed on Gloo | Horovod on Gloo |\n|---|---|---|---|---|")
    print(f"| synchronous allreduce of 4 bytes, us | {latency['coordd_us']} | | {latency['gloo_us']} "
          f"| {horovods('latency', 'horovod_us')} |")
    print(f"| the same without a name and into a new tensor, us | {latency['unnamed_us']} | | | |")
    print(f"| of it in Python | {' and '.join(map(str, cost['python_part_us']))} | | | |")
    for what, name in (("async allreduce on the caller's thread, us per tensor", "allreduce_async__us"),
                       ("the same, grouped, in place", "grouped_allreduce_async__us_per_tensor"),
                       ("the same, grouped, into new tensors", "grouped_allreduce_async_us_per_tensor"),
                       ("of it torch's making of a tensor", "torch_empty_like_us")):
        print(f"| {what} | {cost[name]} | | | {horovods('submit_cost', name)} |")
    parts = step["communication_ms"]
    print(f"| communication part of a step, ms | {parts['coordd']} | {parts['ddp_hook']} | {parts['ddp']} "
          f"| {peer['training_step']['communication_ms']['horovod'] if peer else ''} |")
    for count in (1, 2, 4):
        row = [result["images_per_second"][name][count] for name in ("coordd", "ddp_hook", "ddp")]
        row.append(peer["images_per_second"][count] if peer else "")
        print(f"| images per second, {count} worker(s) | {' | '.join(map(str, row))} |")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", default="/usr/bin/python3")
    parser.add_argument("--horovod", metavar="PYTHON")
    parser.add_argument("--json", metavar="FILE")
    parser.add_argument("--quick", action="store_true")
    options = parser.parse_args()
    rounds = "8" if options.quick else "25"
    result = {
        "latency": figures(options, "latency.py", "--turns", "10" if options.quick else "40"),
        "submit_cost": figures(options, "submit_cost.py"),
        "training_step": figures(options, "training_step.py", "--image-size", "32", "--rounds", rounds),
        "images_per_second": {name: {count: images(options, count, *how) for count in (1, 2, 4)}
                              for name, how in (("coordd", ()), ("ddp", ("--ddp",)), ("ddp_hook", ("--ddp-hook",)))},
    }
    result["horovod"] = measure_horovod(options, rounds) if options.horovod else None
    if options.json:
        with open(options.json, "w", encoding="utf-8") as file:
            json.dump(result, file, indent=1)
    print_table(result)
    print(json.dumps(result))
    return 0


if __name__ == "__main__":
    sys.exit(main())
