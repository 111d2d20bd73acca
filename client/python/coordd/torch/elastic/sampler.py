"""A sampler that knows what has been seen, so that an interrupted epoch goes on where it was."""

import math
import random
from typing import Iterator, List, Set

import torch.utils.data

from coordd.torch import mpi_ops

__all__ = ["ElasticSampler"]


class ElasticSampler(torch.utils.data.Sampler):
    """Gives each rank its part of what the current epoch has left of a data set.

    All ranks' parts are equally long: some samples are repeated where the number does not divide. record_batch() says what
    has been processed; state_dict() and load_state_dict() carry it, and with a TorchState it becomes that of all ranks.
    """

    def __init__(self, dataset, shuffle: bool = True, seed: int = 0):
        self.dataset = dataset
        self.shuffle = shuffle
        self.seed = seed
        self.epoch = 0
        self.processed_indices: Set[int] = set()
        self.reset()

    def set_epoch(self, epoch: int) -> None:
        """Begins an epoch: another order, nothing processed. To be called at the end of each epoch, and not at the start:
        a partly processed one would begin again."""
        self.epoch = epoch
        self.processed_indices = set()
        self.reset()

    def record_batch(self, batch_idx: int, batch_size: int) -> None:
        """Batch number `batch_idx` of this rank, since the last reset(), has been processed."""
        self.record_indices(self.get_indices(batch_idx, batch_size))

    def record_indices(self, indices) -> None:
        """These samples have been processed."""
        self.processed_indices.update(indices)

    def get_indices(self, batch_idx: int, batch_size: int) -> List[int]:
        """Samples of this rank's batch."""
        return self.indices[batch_idx * batch_size:(batch_idx + 1) * batch_size]

    def load_state_dict(self, state_dict: dict) -> None:
        self.epoch = state_dict["epoch"]
        self.processed_indices = set(state_dict["processed_indices"])
        self.reset()

    def state_dict(self) -> dict:
        return {"epoch": self.epoch, "processed_indices": set(self.processed_indices)}

    def reset(self) -> None:
        """Divides what is left among the ranks anew."""
        self.num_replicas = mpi_ops.size()
        self.rank = mpi_ops.rank()
        self.remaining_indices = [index for index in range(len(self.dataset)) if index not in self.processed_indices]
        self.num_samples = math.ceil(len(self.remaining_indices) / self.num_replicas)
        self.total_size = self.num_samples * self.num_replicas
        self.indices = self._own_indices()

    def _own_indices(self) -> List[int]:
        order = list(self.remaining_indices)
        if self.shuffle:
            random.Random(self.seed * 1_000_003 + self.epoch).shuffle(order)
        padding = self.total_size - len(order)
        order += (order * math.ceil(padding / len(order)))[:padding] if order else []
        return order[self.rank:self.total_size:self.num_replicas]

    def __iter__(self) -> Iterator[int]:
        self.indices = self._own_indices()
        return iter(self.indices)

    def __len__(self) -> int:
        return self.num_samples
