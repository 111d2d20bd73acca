"""The 1,797 handwritten digits of client/examples/digits, as tensors."""

import gzip
import os
from typing import NamedTuple

import torch

DATA = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "digits", "data", "digits.csv.gz")


class Digits(NamedTuple):
    images: torch.Tensor  # (N, 64), ink from 0 to 1
    labels: torch.Tensor  # (N,)


def load(dtype=torch.float32):
    """(images to train on, images to test with): every fifth one is for the test, as in the C++ example."""
    with gzip.open(DATA, "rt") as lines:
        rows = torch.tensor([[int(value) for value in line.split(",")] for line in lines])
    images, labels = rows[:, :64].to(dtype) / 16, rows[:, 64]
    is_test = torch.arange(len(rows)) % 5 == 4
    return Digits(images[~is_test], labels[~is_test]), Digits(images[is_test], labels[is_test])
