#!/usr/bin/env python3
"""Trains a small network on handwritten digits with JAX. What coordd adds is marked 1 to 4.

    coordrun -np 1 -- python3 jax_digits.py --save one.npz
    coordrun -np 4 -- python3 jax_digits.py --save four.npz
    python3 jax_digits.py --compare one.npz four.npz      # how far the weights are apart
"""

import argparse
import gzip
import os

import jax
import jax.numpy as jnp
import numpy

import coordd.jax as hvd

DATA = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "digits", "data", "digits.csv.gz")
RATE, MOMENTUM = 0.1, 0.9


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--batch", type=int, default=64, help="images of a step, over all workers; their number divides it")
    parser.add_argument("--save", metavar="FILE", help="where rank 0 writes the weights")
    parser.add_argument("--compare", nargs=2, metavar="FILE", help="print the largest difference of two files of weights")
    return parser.parse_args()


def digits():
    """(images, labels) to train on and to test with: every fifth one is for the test."""
    with gzip.open(DATA, "rt") as lines:
        rows = numpy.loadtxt(lines, delimiter=",")
    images, labels = (rows[:, :64] / 16).astype("float32"), rows[:, 64].astype("int32")
    is_test = numpy.arange(len(rows)) % 5 == 4
    return (images[~is_test], labels[~is_test]), (images[is_test], labels[is_test])


def network(seed):
    first, second = jax.random.split(jax.random.key(seed))
    return {"hidden": jax.random.normal(first, (64, 64)) / 8, "hidden_bias": jnp.zeros(64),
            "output": jax.random.normal(second, (64, 10)) / 8, "output_bias": jnp.zeros(10)}


def scores(params, images):
    hidden = jax.nn.relu(images @ params["hidden"] + params["hidden_bias"])
    return hidden @ params["output"] + params["output_bias"]


def loss_of(params, images, labels):
    chances = jax.nn.log_softmax(scores(params, images))
    return -jnp.take_along_axis(chances, labels[:, None], 1).mean()


@jax.jit
def step(params, velocity, images, labels):
    loss, gradients = jax.value_and_grad(loss_of)(params, images, labels)
    # 3: use everybody's gradients, in one call; and the mean of everybody's loss
    gradients, loss = hvd.allreduce((gradients, loss), name="step")
    velocity = jax.tree_util.tree_map(lambda old, new: MOMENTUM * old + new, velocity, gradients)
    return jax.tree_util.tree_map(lambda weight, speed: weight - RATE * speed, params, velocity), velocity, loss


def main():
    options = arguments()
    if options.compare:
        first, second = map(numpy.load, options.compare)
        print(f"{max(float(numpy.abs(first[name] - second[name]).max()) for name in first):.3g}")
        return

    hvd.init()  # 1: become a worker of the job
    rank, size = hvd.rank(), hvd.size()
    (images, labels), test = digits()
    params = network(seed=rank)  # on purpose not the same: step 2 sees to that
    # 2: start from the same weights
    params = {name: hvd.broadcast(weight, root_rank=0, name=name) for name, weight in sorted(params.items())}
    velocity = jax.tree_util.tree_map(jnp.zeros_like, params)
    for epoch in range(options.epochs):
        order, losses = numpy.random.default_rng(epoch).permutation(len(labels)), []
        for begin in range(0, len(labels) - options.batch + 1, options.batch):
            own = order[begin:begin + options.batch][rank::size]  # 4: take your part of each batch
            params, velocity, loss = step(params, velocity, images[own], labels[own])
            losses.append(loss)
        if rank == 0:
            print(f"epoch {epoch + 1:2}  loss {float(sum(losses)) / len(losses):.4f}", flush=True)
    if rank == 0:
        print(f"test accuracy {float((scores(params, test[0]).argmax(1) == test[1]).mean()):.4f} with {size} worker(s)", flush=True)
        if options.save:
            numpy.savez(options.save, **params)
    hvd.shutdown()


if __name__ == "__main__":
    main()
