#!/usr/bin/env python3
"""Trains a small network of Keras 3 on handwritten digits. What coordd adds is marked 1 to 4.

    coordrun -np 4 -- python3 keras_digits.py                              # KERAS_BACKEND=tensorflow, jax or torch
    coordrun -np 4 --min-np 2 -- python3 keras_digits.py --elastic         # goes on without workers that die
    coordrun -np 4 --min-np 2 -- python3 keras_digits.py --elastic --crash 2:3    # and rank 2 does, in epoch 3
"""

import argparse
import gzip
import os
import signal

import keras
import numpy

import coordd.keras as hvd

DATA = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "digits", "data", "digits.csv.gz")


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--batch", type=int, default=64, help="images of a step, over all workers")
    parser.add_argument("--elastic", action="store_true", help="commit, and go on when a worker dies")
    parser.add_argument("--crash", metavar="RANK:EPOCH", help="this rank kills itself in this epoch")
    return parser.parse_args()


def digits():
    """(images, labels) to train on and to test with: every fifth one is for the test."""
    with gzip.open(DATA, "rt") as lines:
        rows = numpy.loadtxt(lines, delimiter=",")
    images, labels = (rows[:, :64] / 16).astype("float32"), rows[:, 64].astype("int32")
    is_test = numpy.arange(len(rows)) % 5 == 4
    return (images[~is_test], labels[~is_test]), (images[is_test], labels[is_test])


class Crash(keras.callbacks.Callback):
    def __init__(self, rank, epoch):
        super().__init__()
        self.mine, self.epoch = hvd.rank() == rank, epoch  # whoever has this rank later on lives

    def on_epoch_begin(self, epoch, logs=None):
        if epoch == self.epoch and self.mine:
            os.kill(os.getpid(), signal.SIGKILL)


def main():
    options = arguments()
    hvd.init()  # 1: become a worker of the job
    (images, labels), test = digits()
    model = keras.Sequential([keras.layers.Input((64,)), keras.layers.Dense(64, activation="relu"), keras.layers.Dense(10)])
    # 2: use everybody's gradients
    model.compile(hvd.DistributedOptimizer(keras.optimizers.Adam(0.003)),
                  keras.losses.SparseCategoricalCrossentropy(from_logits=True), metrics=["accuracy"])
    crash = [Crash(*map(int, options.crash.split(":")))] if options.crash else []

    def fit(initial_epoch, callbacks):
        rank, size = hvd.rank(), hvd.size()
        count = len(images) // size  # all workers make as many steps
        own = slice(rank * count, (rank + 1) * count)  # 3: each has its part of the data
        # 4: start from the same weights, and print the mean of everybody's metrics
        callbacks = [hvd.callbacks.BroadcastGlobalVariablesCallback(0), hvd.callbacks.MetricAverageCallback(), *callbacks, *crash]
        model.fit(images[own], labels[own], batch_size=options.batch // size, epochs=options.epochs, initial_epoch=initial_epoch,
                  callbacks=callbacks, verbose=2 if rank == 0 else 0)

    if options.elastic:
        @hvd.elastic.run
        def train(state):
            fit(state.epoch, [hvd.elastic.UpdateEpochStateCallback(state), hvd.elastic.CommitStateCallback(state, 4)])

        train(hvd.elastic.KerasState(model, epoch=0))
    else:
        fit(0, [])
    if hvd.rank() == 0:
        print(f"test accuracy {model.evaluate(*test, verbose=0)[1]:.4f} with {hvd.size()} worker(s)", flush=True)


if __name__ == "__main__":
    main()
