#!/usr/bin/env python3
"""How long the ranks of torch.distributed need until their first result: coordd beside gloo with a TCPStore, in turns.

    bench/python/c10d_init.py [--ranks 8] [--rounds 3]

coordrun starts them in both cases, and sets torch's variables. From its start to the moment at which the last rank has the result of
an all_reduce, and how much of that is behind the last import of torch. Needs build/ and a torch from 2.1.
"""

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
PROGRAM = """
import os, sys, time
import torch, torch.distributed as dist
imported = time.monotonic()
if sys.argv[1] == "coordd":
    import coordd.torch.distributed
    imported = time.monotonic()
dist.init_process_group(sys.argv[1])
tensor = torch.ones(1)
dist.all_reduce(tensor)
assert tensor.item() == dist.get_world_size()
print(f"moments {imported} {time.monotonic()}", flush=True)
dist.barrier()
dist.destroy_process_group()
"""


def seconds(backend, ranks, compiled):
    """From the start, and from the last import, to the last result. `compiled`: a folder for what Python compiles, as pip does when it
    installs torch and coordd."""
    environment = dict(os.environ, OMP_NUM_THREADS="1", PYTHONPATH=os.path.join(ROOT, "client", "python"), PYTHONPYCACHEPREFIX=compiled)
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    environment.setdefault("COORDD_LIBRARY", os.path.join(ROOT, "build", "lib", "libcoordd.so"))
    began = time.monotonic()
    run = subprocess.run([os.path.join(ROOT, "build", "bin", "coordrun"), "-np", str(ranks), "--", sys.executable, "-c", PROGRAM, backend],
                         env=environment, capture_output=True, text=True, check=True)
    moments = [list(map(float, line.split("moments ")[1].split())) for line in run.stdout.splitlines() if "moments " in line]
    assert len(moments) == ranks, run.stdout
    last = max(result for _, result in moments)
    return last - began, last - max(imported for imported, _ in moments)


def main():
    parser = argparse.ArgumentParser(usage=__doc__)
    parser.add_argument("--ranks", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    taken = {"coordd": [], "gloo": []}
    with tempfile.TemporaryDirectory() as compiled:
        for backend in taken:
            seconds(backend, 1, compiled)
        for _ in range(options.rounds):
            for backend, values in taken.items():
                values.append(seconds(backend, options.ranks, compiled))
    middle = {backend: [statistics.median(column) for column in zip(*values)] for backend, values in taken.items()}
    print(f"{options.ranks} ranks, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}, medians of {options.rounds}")
    for index, what in enumerate(("from the start of coordrun", "from the last import")):
        ours, theirs = middle["coordd"][index], middle["gloo"][index]
        print(f"{what:<28} coordd {ours:7.2f} s   gloo {theirs:7.2f} s ({theirs / ours:.2f} times)")


if __name__ == "__main__":
    main()
