#!/usr/bin/env python3
"""Ridge regression, a linear support vector machine, or logistic regression, on rows that are spread over the workers.

    coordrun -np 4 -- python3 glm.py svm                  # each worker has a quarter of the rows
    coordrun -np 2 -- python3 glm.py logistic --gap 1e-5 --save weights.txt

Every round each worker goes through its rows once and changes their dual variables, as if the others changed the weights as much as it
does (CoCoA with adding, Ma et al., ICML 2015; a step is one of SDCA, Shalev-Shwartz and Zhang, JMLR 2013). One allreduce adds up the
changes of the weights, a second one the losses. The duality gap says how far the weights are from the best ones. The same in C++, on the
same rows, is client/examples/glm.
"""

import argparse
import math
import sys
import time

import numpy
import torch

import coordd.torch as hvd

OF_WEIGHTS, OF_NOISE = 1 << 61, 1 << 62


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("loss", choices=("ridge", "svm", "logistic"))
    parser.add_argument("--rows", type=int, default=2000, help="of all workers [%(default)s]")
    parser.add_argument("--features", type=int, default=50, help="of a row [%(default)s]")
    parser.add_argument("--seed", type=int, default=1, help="of the data [%(default)s]")
    parser.add_argument("--lambda", dest="weight", type=float, default=1e-3, help="weight of |w|^2 / 2 [%(default)s]")
    parser.add_argument("--gap", type=float, default=1e-3, help="until the duality gap is this [%(default)s]")
    parser.add_argument("--rounds", type=int, default=1000, help="at most; status 1 where the gap is larger then [%(default)s]")
    parser.add_argument("--save", metavar="FILE", help="where rank 0 writes the weights, one a line")
    return parser.parse_args()


def uniform(seed, indices):
    """Numbers in [-1, 1) for integers: splitmix64."""
    with numpy.errstate(over="ignore"):
        z = numpy.uint64(seed) * numpy.uint64(0x9E3779B97F4A7C15) + (indices + numpy.uint64(1)) * numpy.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> numpy.uint64(30))) * numpy.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> numpy.uint64(27))) * numpy.uint64(0x94D049BB133111EB)
    z ^= z >> numpy.uint64(31)
    return (z >> numpy.uint64(11)).astype(numpy.float64) * 2.0 ** -52 - 1


def make_data(loss, features, seed, begin, end, noise=0.1):
    """Rows begin to end, and their labels."""
    indices = numpy.arange(begin * features, end * features, dtype=numpy.uint64)
    rows = uniform(seed, indices).reshape(end - begin, features) / math.sqrt(features)
    weights = uniform(seed, OF_WEIGHTS + numpy.arange(features, dtype=numpy.uint64))
    scores = rows @ weights + noise * uniform(seed, OF_NOISE + numpy.arange(begin, end, dtype=numpy.uint64))
    return rows, scores if loss == "ridge" else numpy.where(scores >= 0, 1.0, -1.0)


def ridge_step(a, z, y, q):
    return a + (y - z - a) / (1 + q)


def svm_step(a, z, y, q):
    return y * min(max(a * y + (1 - y * z) / q, 0.0), 1.0)


def logistic_step(a, z, y, q):
    """The zero of log(b / (1 - b)) + q (b - b0) + m, by Newton's steps that stay between what has been found below and above it."""
    b0, m, low, high = a * y, y * z, 0.0, 1.0
    b = min(max(b0, 1e-6), 1 - 1e-6)
    for _ in range(60):
        slope = math.log(b / (1 - b)) + q * (b - b0) + m
        low, high = (low, b) if slope > 0 else (b, high)
        following = b - slope / (1 / (b * (1 - b)) + q)
        if not low < following < high:
            following = (low + high) / 2
        if abs(following - b) < 1e-12:
            break
        b = following
    return y * b


def entropy(b):
    b = b[(b > 0) & (b < 1)]
    return -(b * numpy.log(b) + (1 - b) * numpy.log(1 - b)).sum()


# The step of one dual variable; the sum of losses at scores; what the dual variables give to the bound.
LOSSES = {
    "ridge": (ridge_step, lambda z, y: ((z - y) ** 2).sum() / 2, lambda a, y: (y * a - a * a / 2).sum()),
    "svm": (svm_step, lambda z, y: numpy.maximum(0, 1 - y * z).sum(), lambda a, y: (a * y).sum()),
    "logistic": (logistic_step, lambda z, y: numpy.logaddexp(0, -y * z).sum(), lambda a, y: entropy(a * y)),
}


class Solver:
    """One worker's rows and their dual variables."""

    def __init__(self, options, rank, size):
        begin, end = options.rows * rank // size, options.rows * (rank + 1) // size
        self.rows, self.labels = make_data(options.loss, options.features, options.seed, begin, end)
        self.step, self.losses, self.bound = LOSSES[options.loss]
        self.duals = numpy.zeros(end - begin)
        self.size, self.scale = size, size / (options.weight * options.rows)
        self.lengths = (self.rows ** 2).sum(axis=1) * self.scale
        self.random = numpy.random.default_rng(options.seed + rank)

    def improve(self, weights):
        """The change of the weights, which is to be added to them with those of the others."""
        seen = weights.copy()
        for i in self.random.permutation(len(self.labels)):
            row = self.rows[i]
            following = self.step(self.duals[i], row @ seen, self.labels[i], self.lengths[i])
            seen += (self.scale * (following - self.duals[i])) * row
            self.duals[i] = following
        return (seen - weights) / self.size

    def sums(self, weights):
        return numpy.array([self.losses(self.rows @ weights, self.labels), self.bound(self.duals, self.labels)])


def total(name, array):
    """The sum over all workers."""
    return hvd.allreduce(torch.from_numpy(array), name=name, op=hvd.Sum).numpy()


def main():
    options = arguments()
    hvd.init()
    solver = Solver(options, hvd.rank(), hvd.size())
    weights = numpy.zeros(options.features)
    begin = time.monotonic()
    for round_number in range(1, options.rounds + 1):
        weights = weights + total("change", solver.improve(weights))
        losses, bound = total("sums", solver.sums(weights)) / options.rows
        penalty = options.weight / 2 * (weights @ weights)
        gap = losses + penalty - (bound - penalty)
        if hvd.rank() == 0:
            print(f"round {round_number}: objective {losses + penalty:.9f}, bound {bound - penalty:.9f}, gap {gap:.3e}", flush=True)
        if gap <= options.gap:
            break
    if hvd.rank() == 0:
        print(f"certificate: {options.loss}, {options.rows} rows, {hvd.size()} workers: no weights have an objective that is smaller "
              f"by more than {gap:.3e} ({round_number} rounds, {time.monotonic() - begin:.3f} s)")
        if options.save:
            numpy.savetxt(options.save, weights, fmt="%.17g")
    hvd.shutdown()
    return 0 if gap <= options.gap else 1


if __name__ == "__main__":
    sys.exit(main())
