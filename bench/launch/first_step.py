#!/usr/bin/env python3
"""From `sbatch` to the first optimizer step: 4 nodes of 4 tasks, and where the time goes.

    python3 bench/launch/first_step.py [--json] [--rounds 3] [--python /usr/bin/python3]

A real Slurm (slurmctld, four slurmd) runs on this machine; its nodes are simulated. Three ways to start the same program
take turns: `srun python train.py`, which finds its coordd by itself; `coordrun python train.py`; and torch.distributed with
Gloo under srun, told an address and a free port. Each figure is the median over rounds of the time at which the last of the
16 processes got there: the first step needs them all.
"""

import argparse
import glob
import json
import os
import statistics
import sys
import tempfile
import time

REPOSITORY = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, REPOSITORY)

from tests.launchers import slurm_cluster  # noqa: E402

NODES, TASKS = 4, 4
WAYS = ("srun", "coordrun", "gloo")
PHASES = (
    ("submitted", "sbatch has answered"),
    ("scheduled", "the batch script runs"),
    ("started", "the last process has been started"),
    ("running", "Python runs its program"),
    ("imported", "torch and coordd are imported"),
    ("joined", "init() has returned"),
    ("stepped", "the first optimizer step is done"),
)


def script(way, folder, options):
    program = [options.python, os.path.join(REPOSITORY, "bench", "launch", "first_step_program.py"), folder, way]
    launcher = [os.path.join(options.build, "bin", "coordrun")] if way == "coordrun" else ["srun", "--kill-on-bad-exit=1"]
    return (f"#!/bin/bash\ndate +%s.%N > {folder}/scheduled\nexport PYTHONPATH={REPOSITORY}/client/python\n"
            f"export COORDD_LIBRARY={options.build}/lib/libcoordd.so FIRST_STEP_PORT={slurm_cluster.free_ports(1)}\n"
            f"{' '.join(launcher + program)}\n")


def measured(cluster, way, options):
    """Seconds from `sbatch` to each of PHASES."""
    with tempfile.TemporaryDirectory(prefix="coordd-first-step-") as folder:
        path = os.path.join(folder, "job.sbatch")
        with open(path, "w", encoding="ascii") as file:
            file.write(script(way, folder, options))
        begin = time.time()
        job = cluster.ask("sbatch", "--parsable", f"-N{NODES}", f"--ntasks-per-node={TASKS}", "-o", f"{folder}/out", path).strip()
        submitted = time.time()
        results = os.path.join(folder, "rank-*.json")
        deadline = begin + options.limit
        while running := cluster.ask("squeue", "-h", "-t", "PD,R,CG", "-j", job).strip():
            if time.time() > deadline:
                break
            time.sleep(0.2)
        if running or len(glob.glob(results)) < NODES * TASKS:
            with open(f"{folder}/out", encoding="utf-8", errors="replace") as out:
                sys.exit(f"first_step: {way}: {len(glob.glob(results))} of {NODES * TASKS} processes have made a step in "
                         f"{time.time() - begin:.0f} s; the job said:\n{out.read()[-3000:]}")
        ranks = []
        for name in glob.glob(results):
            with open(name, encoding="ascii") as file:
                ranks.append(json.load(file))
        assert all(rank["size"] == NODES * TASKS for rank in ranks), ranks
        with open(os.path.join(folder, "scheduled"), encoding="ascii") as file:
            scheduled = float(file.read())
    times = {"submitted": submitted, "scheduled": scheduled}
    times.update({phase: max(rank[phase] for rank in ranks) for phase, _ in PHASES[2:]})
    return {phase: times[phase] - begin for phase, _ in PHASES}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--ways", default=",".join(WAYS), help=f"of {', '.join(WAYS)}")
    parser.add_argument("--python", default=sys.executable, help="which has torch [this one]")
    parser.add_argument("--build", default=os.path.join(REPOSITORY, "build"))
    parser.add_argument("--limit", type=float, default=180, help="seconds for one job")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    ways = options.ways.split(",")
    if slurm_cluster.missing() or not set(ways) <= set(WAYS):
        sys.exit(f"first_step: expected --ways of {', '.join(WAYS)}; not installed: {', '.join(slurm_cluster.missing()) or 'nothing'}")
    cluster = slurm_cluster.Cluster()
    try:
        rounds = {way: [] for way in ways}
        for _ in range(options.rounds):
            for way in ways:
                rounds[way].append(measured(cluster, way, options))
    finally:
        cluster.end()
    medians = {way: {phase: statistics.median(r[phase] for r in results) for phase, _ in PHASES} for way, results in rounds.items()}
    if options.json:
        print(json.dumps({"nodes": NODES, "tasks_per_node": TASKS, "rounds": options.rounds, "cores": os.cpu_count(),
                          "load": os.getloadavg()[0], "seconds": medians}))
        return
    print(f"seconds since sbatch, {NODES} nodes of {TASKS} tasks, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}, "
          f"median of {options.rounds}")
    print(f"{'':34}" + "".join(f"{way:>12}" for way in ways))
    for phase, text in PHASES:
        print(f"{text:34}" + "".join(f"{medians[way][phase]:12.2f}" for way in ways))


if __name__ == "__main__":
    main()
