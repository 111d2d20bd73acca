#!/usr/bin/env python3
"""What coordd.ray costs beside Ray itself, and how soon the others go on when an actor is killed.

    PYTHONPATH=client/python python3 bench/python/ray_executor.py [--turns N] [--kills N]

The interpreter has ray and numpy. Needs build/. In turns: four plain actors, from their creation to the first result of a function that
imports what the other one does; and a RayExecutor of four, from start() to the first allreduce's result. Prints both and their ratio,
which must be at most 1.3; then milliseconds from the kill of one of three actors to the last survivor's first result without it, which
must be at most 500.
"""

import argparse
import os
import statistics
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
TESTS = os.path.join(ROOT, "tests", "frameworks", "ray")
sys.path[:0] = [TESTS, os.path.join(ROOT, "client", "python")]
os.environ["PYTHONPATH"] = os.pathsep.join([TESTS, os.path.join(ROOT, "client", "python")])
os.environ.setdefault("RAY_AUTH_MODE", "disabled")

import ray  # noqa: E402

import functions  # noqa: E402
from coordd.ray import RayExecutor  # noqa: E402

ACTORS = 4


class Plain:
    def call(self):
        import functions  # noqa: F401  (as the other actors do)
        return os.getpid()


def plain():
    began = time.monotonic()
    actors = [ray.remote(Plain).options(num_cpus=1).remote() for _ in range(ACTORS)]
    ray.get([one.call.remote() for one in actors])
    took = time.monotonic() - began
    for one in actors:
        ray.kill(one)
    return took


def executor():
    began = time.monotonic()
    made = RayExecutor(num_workers=ACTORS)
    made.start()
    made.run(functions.ranks)
    took = time.monotonic() - began
    made.shutdown()
    return took


def recovery():
    with tempfile.TemporaryDirectory() as folder:
        open(os.path.join(folder, "end"), "w").close()
        made = RayExecutor(num_workers=3, min_workers=2, reset_limit=1)
        made.start()
        made.run(functions.train, args=[120, folder, 1, 40])
        made.shutdown()
        with open(os.path.join(folder, "killed")) as file:
            killed = float(file.read())
        with open(os.path.join(folder, "size-2")) as file:
            return max(float(line.split()[1]) for line in file) - killed


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--kills", type=int, default=5)
    options = parser.parse_args()
    ray.init(num_cpus=8, include_dashboard=False, object_store_memory=80 << 20, logging_level="ERROR", log_to_driver=False)
    plain(), executor()  # the pages of the files are in memory then
    pairs = []
    for _ in range(options.turns):
        time.sleep(2)  # Ray starts processes ahead
        alone = plain()
        time.sleep(2)
        pairs.append((alone, executor()))
        print("actors {:.2f} s, executor {:.2f} s".format(*pairs[-1]), flush=True)
    alone, ours = (statistics.median(column) for column in zip(*pairs))
    print(f"{ACTORS} actors: alone {alone:.2f} s, start() to the first result {ours:.2f} s, ratio {ours / alone:.2f} (at most 1.3)")
    after = [recovery() * 1000 for _ in range(options.kills)]
    print(f"survivors go on after {statistics.median(after):.0f} ms, at worst {max(after):.0f} ms (at most 500)")


if __name__ == "__main__":
    main()
