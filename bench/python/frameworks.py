#!/usr/bin/env python3
"""What TensorFlow, Keras and JAX cost on coordd, beside what they cost alone and with TensorFlow's own strategy, as a table with its
bars.

    python3 bench/python/frameworks.py --python PYTHON [--turns N] [--json FILE]

PYTHON has tensorflow, keras and jax, and torch for Keras's third backend. Needs build/. The programs take turns, each in processes of
its own with 2 ranks; figures are medians over the turns. Compare figures of one run only; on a machine that does nothing else.
"""

import argparse
import json
import os
import re
import statistics
import subprocess
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
COORDRUN = os.path.join(ROOT, "build", "bin", "coordrun")
FIT = os.path.join(ROOT, "tests", "frameworks", "tensorflow", "fit.py")
PATIENCE_S = 900
# XLA takes a block for all operands of a call in each step; one of more than 32 MiB comes from the system each time, unless glibc is told
# to keep such blocks.
ROOMY = {"MALLOC_MMAP_THRESHOLD_": "1000000000", "MALLOC_TRIM_THRESHOLD_": "4000000000"}


def ranks(options, program, *arguments, **variables):
    """Standard output of two ranks."""
    environment = {**os.environ, "PYTHONPATH": os.path.join(ROOT, "client", "python"), "TF_CPP_MIN_LOG_LEVEL": "3", **variables}
    ended = subprocess.run([COORDRUN, "-np", "2", "--no-prefix", "--", options.python, program, *arguments], env=environment, text=True,
                           stdout=subprocess.PIPE, timeout=PATIENCE_S, check=True)
    return ended.stdout


def figures(options, program, *arguments, **variables):
    output = ranks(options, os.path.join(HERE, program), *arguments, **variables)
    return json.loads(next(line for line in output.splitlines() if line.startswith("{")))


def medians(results):
    return {key: statistics.median(result[key] for result in results) if isinstance(results[0][key], (int, float)) else results[0][key]
            for key in results[0]}


def measure(options):
    turns = {"own": [], "roomy": [], "mirrored": [], "jax": []}
    for _ in range(options.turns):
        turns["own"].append(figures(options, "tensorflow_cost.py"))
        turns["roomy"].append(figures(options, "tensorflow_cost.py", "--only-steps", **ROOMY))
        turns["mirrored"].append(figures(options, "tensorflow_cost.py", "--mirrored"))
        turns["jax"].append(figures(options, "jax_cost.py"))
    result = {name: medians(all_of_it) for name, all_of_it in turns.items()}
    result["fit"] = {}
    for backend in ("tensorflow", "jax", "torch"):
        if subprocess.run([options.python, "-c", f"import {backend}"], stderr=subprocess.DEVNULL, check=False).returncode == 0:
            found = re.findall(r"weights differ by (\S+)", ranks(options, FIT, "auto", KERAS_BACKEND=backend))
            result["fit"][backend] = max(map(float, found))
    return result


def rows(result):
    """(what, figure, beside what, figure, unit, the bar, whether it is met)"""
    own, mirrored, jax = result["own"], result["mirrored"], result["jax"]
    step, theirs = own["step_graph"] - own["step_alone"], mirrored["step_mirrored"] - mirrored["step_mirrored_alone"]
    xla, roomy = own["step_xla"] - own["step_xla_alone"], result["roomy"]
    roomy_xla, roomy_step = roomy["step_xla"] - roomy["step_xla_alone"], roomy["step_graph"] - roomy["step_alone"]
    yield ("4-byte allreduce, eager", own["eager"], "the C call", own["c_call"], "us", "at most 25 us more",
           own["eager"] - own["c_call"] <= 25)
    yield "the same", own["eager"], "TensorFlow's x + x", own["eager_alone"], "us", "", None
    yield ("4-byte allreduce in a tf.function", own["graph"], "the function alone", own["graph_alone"], "us", "at most 30 us more",
           own["graph"] - own["graph_alone"] <= 30)
    yield ("what communication adds to a step", step, "MultiWorkerMirroredStrategy", theirs, "ms", "at least 2 times less",
           theirs >= 2 * step)
    yield "the same under XLA, grouped", xla, "in a graph", step, "ms", "at most 1.3 times as much", xla <= 1.3 * step
    yield ("the same, glibc keeping large blocks", roomy_xla, "in a graph", roomy_step, "ms", "at most 1.3 times as much",
           roomy_xla <= 1.3 * roomy_step)
    yield "the whole step under XLA", own["step_xla"], "in a graph", own["step_graph"], "ms", "", None
    yield "JAX, jit, 4 bytes", jax["jit"], "jit alone", jax["jit_alone"], "us", "at most 40 us more", jax["jit"] - jax["jit_alone"] <= 40
    for backend, difference in result["fit"].items():
        yield (f"Keras fit on {backend}, largest difference of weights", difference, "one process", 0, "", "at most 1e-6",
               difference <= 1e-6)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", required=True)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--json", metavar="FILE")
    options = parser.parse_args()
    result = measure(options)
    if options.json:
        with open(options.json, "w", encoding="utf-8") as file:
            json.dump(result, file, indent=1)
    print("| what | coordd | beside | | bar | |\n|---|---|---|---|---|---|")
    for what, figure, beside, other, unit, bar, met in rows(result):
        verdict = {None: "", True: "met", False: "NOT MET"}[met]
        print(f"| {what} | {figure:.3g} {unit} | {beside} | {other:.3g} {unit} | {bar} | {verdict} |")
    print(json.dumps(result))
    return 0


if __name__ == "__main__":
    sys.exit(main())
