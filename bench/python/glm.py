"""How long client/examples/glm takes to a duality gap, beside scikit-learn's single process on the same rows, and with 2 workers.

    python3 bench/python/glm.py [ROWS [FEATURES]]

For each loss: the median of 3 runs, alone and with 1 and 2 workers (without the time in which rows are made), and scikit-learn's fastest
tolerance with which its weights are as near to the best as the gap says. Needs a build, scikit-learn, NumPy.
"""

import os
import re
import statistics
import subprocess
import sys
import time
import types

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, ROOT)
sys.path.insert(0, os.path.join(ROOT, "client", "examples", "python"))
# The example's rows and losses are wanted, not its collectives.
STAND_INS = ("torch", "coordd", "coordd.torch")
sys.modules.update({name: types.ModuleType(name) for name in STAND_INS})
sys.modules["coordd"].torch = sys.modules["coordd.torch"]
import glm  # noqa: E402
for stand_in in STAND_INS:
    del sys.modules[stand_in]

import numpy  # noqa: E402
from sklearn.linear_model import LogisticRegression, Ridge  # noqa: E402
from sklearn.svm import LinearSVC  # noqa: E402

from tests.support.processes import clean_environment, program  # noqa: E402

LAMBDA, GAP, RUNS = 1e-4, 1e-4, 3
TOLERANCES = [10.0 ** -exponent for exponent in range(0, 9)]


def solve(workers, loss, rows, features, gap=GAP):
    """(seconds, rounds, objective, bound)."""
    command = [program("glm"), loss, "--rows", str(rows), "--features", str(features), "--lambda", str(LAMBDA), "--gap", str(gap)]
    if workers:
        command = [program("coordrun"), "-np", str(workers), "--", *command]
    said = subprocess.run(command, env=clean_environment(), capture_output=True, text=True, check=True).stdout
    objective, bound = re.findall(r"objective ([-.\d]+), bound ([-.\d]+)", said)[-1]
    rounds, seconds = re.search(r"\((\d+) rounds, ([.\d]+) s\)", said).groups()
    return float(seconds), int(rounds), float(objective), float(bound)


def models(loss, rows, tolerance):
    if loss == "ridge":
        return [(name, Ridge(alpha=LAMBDA * rows, fit_intercept=False, solver=name, tol=tolerance)) for name in ("cholesky", "sag")]
    if loss == "svm":
        return [("liblinear", LinearSVC(C=1 / (LAMBDA * rows), loss="hinge", dual=True, fit_intercept=False, tol=tolerance))]
    return [(name, LogisticRegression(C=1 / (LAMBDA * rows), fit_intercept=False, tol=tolerance, solver=name, max_iter=1000))
            for name in ("lbfgs", "saga")]


def theirs(loss, data, labels, bound):
    """(seconds, which solver and tolerance) of the fastest that is near enough."""
    best = None
    for tolerance in TOLERANCES:
        for name, model in models(loss, len(labels), tolerance):
            begin = time.monotonic()
            model.fit(data, labels)
            took = time.monotonic() - begin
            weights = numpy.ravel(model.coef_)
            objective = glm.LOSSES[loss][1](data @ weights, labels) / len(labels) + LAMBDA / 2 * (weights @ weights)
            if objective - bound <= GAP and (best is None or took < best[0]):
                best = took, f"{name}, tol {tolerance:g}"
        if best is not None:
            return best
    return None


def main(rows, features):
    for loss in glm.LOSSES:
        data, labels = glm.make_data(loss, features, 1, 0, rows)
        bound = solve(0, loss, rows, features, GAP / 100)[3]
        found = theirs(loss, data, labels, bound)
        own = {workers: [solve(workers, loss, rows, features) for _ in range(RUNS)] for workers in (0, 1, 2)}
        times = {workers: statistics.median(run[0] for run in runs) for workers, runs in own.items()}
        rounds = {workers: runs[0][1] for workers, runs in own.items()}
        print(f"{loss}: alone {times[0]:.3f} s ({rounds[0]} rounds), 1 worker {times[1]:.3f} s, 2 workers {times[2]:.3f} s "
              f"({rounds[2]} rounds): speed-up {times[1] / times[2]:.2f}; scikit-learn "
              + (f"{found[0]:.3f} s ({found[1]}): ratio {times[1] / found[0]:.2f}" if found else "does not come so near"), flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 200_000, int(sys.argv[2]) if len(sys.argv) > 2 else 50)
