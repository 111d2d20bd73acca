#!/usr/bin/env python3
"""All measurements of the Python package, one after the other, as one JSON object and as a table.

    python3 bench/python/run.py [--python PYTHON] [--json FILE] [--quick]

Needs build/. Compare figures of one run only; on a machine that does nothing else. Minutes: 3, with --quick 1.
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


def figures(options, program, *arguments):
    output = ranks(options, 2, os.path.join(HERE, program), *arguments)
    return json.loads(next(line for line in output.splitlines() if line.startswith("{")))


def images(options, count, *how):
    """Images per second of all workers together."""
    iterations = "2" if options.quick else "5"
    output = ranks(options, count, BENCHMARK, "--image-size", "32", "--batch-size", "4", "--num-warmup-batches", "2",
                   "--num-batches-per-iter", "2", "--num-iters", iterations, *how)
    return float(re.search(r"Total img/sec on \d+ worker\(s\): ([\d.]+)", output).group(1))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", default="/usr/bin/python3")
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
    if options.json:
        with open(options.json, "w", encoding="utf-8") as file:
            json.dump(result, file, indent=1)
    latency, cost, step = result["latency"], result["submit_cost"], result["training_step"]
    print("| what | coordd | DDP hook | torch.distributed on Gloo |\n|---|---|---|---|")
    print(f"| synchronous allreduce of 4 bytes, us | {latency['coordd_us']} | | {latency['gloo_us']} |")
    print(f"| async allreduce on the caller's thread, us per tensor | {cost['allreduce_async__us']} | | |")
    print(f"| the same, grouped | {cost['grouped_allreduce_async__us_per_tensor']} | | |")
    parts = step["communication_ms"]
    print(f"| communication part of a step, ms | {parts['coordd']} | {parts['ddp_hook']} | {parts['ddp']} |")
    for count in (1, 2, 4):
        row = [result["images_per_second"][name][count] for name in ("coordd", "ddp_hook", "ddp")]
        print(f"| images per second, {count} worker(s) | {row[0]} | {row[1]} | {row[2]} |")
    print(json.dumps(result))
    return 0


if __name__ == "__main__":
    sys.exit(main())
