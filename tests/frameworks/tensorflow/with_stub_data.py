"""Runs a program with a stand-in for MNIST, which its author's machine would fetch from the network:

    python with_stub_data.py PROGRAM [ARGUMENTS]

The program is as it is; keras.datasets.mnist.load_data() returns images of 6 x 6 in MNIST's dtypes: random ones, each with a bright
square whose place is its label, or without one, so that a network has something to learn. They are the same in every process.
"""

import os
import runpy
import sys

import numpy
import tensorflow as tf

ROWS, TEST_ROWS = 4096, 512


def images_and_labels(rows, seed):
    rng = numpy.random.default_rng(seed)
    labels = rng.integers(0, 10, rows)
    images = rng.integers(0, 64, (rows, 6, 6))
    for image, label in zip(images, labels):
        top, left = 2 * (label // 3), 2 * (label % 3)  # below the image: the last label
        image[top:top + 2, left:left + 2] = 255
    return images.astype("uint8"), labels.astype("uint8")


def load_data(path="mnist.npz"):
    del path
    return images_and_labels(ROWS, 1), images_and_labels(TEST_ROWS, 2)


def main():
    tf.keras.datasets.mnist.load_data = load_data
    program = sys.argv[1]
    sys.argv = sys.argv[1:]
    sys.path[0] = os.path.dirname(os.path.abspath(program))
    runpy.run_path(program, run_name="__main__")


if __name__ == "__main__":
    main()
