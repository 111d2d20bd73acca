"""A sampler that knows how much has been seen, so that an interrupted epoch goes on where it was."""

import math
from typing import Iterator, List

import torch.utils.data

from coordd.torch import mpi_ops

__all__ = ["ElasticSampler"]


class ElasticSampler(torch.utils.data.Sampler):
    """Gives each rank its part of what the current epoch has left of a data set.

    All ranks' parts are equally long: some samples are repeated where the number does not divide. record_batch() counts what
    has been processed; state_dict() and load_state_dict() carry the count, and with a TorchState it becomes that of all ranks.
    The order of an epoch is the same on all ranks and in every membership, and what has been processed is the beginning of it,
    so one number says it all.
    """

    def __init__(self, dataset, shuffle: bool = True, seed: int = 0):
        self.dataset = dataset
        self.shuffle = shuffle
        self.seed = seed
        self.epoch = 0
        self.processed_num = 0  # samples of this epoch, by all ranks together
        self.reset()

    def set_epoch(self, epoch: int) -> None:
        """Begins an epoch: another order, nothing processed. To be called at the end of each epoch, and not at the start:
        a partly processed one would begin again."""
        self.epoch = epoch
        self.processed_num = 0
        self.reset()

    def record_batch(self, batch_idx: int, batch_size: int) -> None:
        """This rank has processed a batch of so many samples, and so have the others. `batch_idx` does not matter: it may count
        on after a reset()."""
        del batch_idx
        self.processed_num += batch_size * self.num_replicas

    def load_state_dict(self, state_dict: dict) -> None:
        self.epoch = state_dict["epoch"]
        self.processed_num = state_dict["processed_num"]
        self.reset()

    def state_dict(self) -> dict:
        return {"epoch": self.epoch, "processed_num": self.processed_num}

    def reset(self) -> None:
        """Divides what is left among the ranks anew."""
        self.num_replicas = mpi_ops.size()
        self.rank = mpi_ops.rank()
        self._first = min(self.processed_num, len(self.dataset))
        self.num_samples = math.ceil((len(self.dataset) - self._first) / self.num_replicas)
        self.total_size = self.num_samples * self.num_replicas

    @property
    def remaining_indices(self) -> List[int]:
        """What was left of the epoch at the last reset(), in its order, of all ranks."""
        return self._remaining().tolist()

    def _remaining(self) -> torch.Tensor:
        count = len(self.dataset)
        if not self.shuffle:
            return torch.arange(self._first, count)
        generator = torch.Generator()
        generator.manual_seed(self.seed * 1_000_003 + self.epoch)
        return torch.randperm(count, generator=generator)[self._first:]

    def __iter__(self) -> Iterator[int]:
        order = self._remaining()
        if 0 < len(order) < self.total_size:  # repeated from the beginning, more than once where ranks outnumber samples
            order = order.repeat(math.ceil(self.total_size / len(order)))[:self.total_size]
        self.indices = order[self.rank::self.num_replicas].tolist()
        return iter(self.indices)

    def __len__(self) -> int:
        return self.num_samples
