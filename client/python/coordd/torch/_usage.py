"""Which parameters had a gradient in a step, and on which rank does not matter: one that nobody had has no result either.

An optimizer does something else with a gradient of zeros than with none (momentum, Adam's averages, weight decay), so training
by several ranks would differ from training by one. See coordd.torch._gradients.
"""

from typing import Dict, Iterable, List, Optional, Tuple

import torch

from coordd import _basics
from coordd.process_sets import ProcessSet
from coordd.torch import mpi_ops

ABSENT, DENSE = 0, 1  # kinds of gradients; DENSE + n: sparse, with n sparse dimensions


class Flags:
    """What a unit that travels as one says about its gradients: two elements for each, whether there is one and whether that is
    sparse, which are reduced with the gradients by the same operator. A rank that has all gradients does not read them: of a GPU
    it would have to wait for the device."""

    def __init__(self, flags: torch.Tensor, op: int):
        """`flags`: elements_for() elements of the unit's memory."""
        self._flags = flags
        self._yes, self._no = (0.0, 1.0) if op in (mpi_ops.Min, mpi_ops.Product) else (1.0, 0.0)
        self._count = flags.numel() // 2
        self._all_dense = self._of([DENSE] * self._count)

    @staticmethod
    def elements_for(parameters: int) -> int:
        return 2 * parameters

    def _of(self, kinds: List[int]) -> torch.Tensor:
        values = [self._no if kind == ABSENT else self._yes for kind in kinds]
        values += [self._yes if kind > DENSE else self._no for kind in kinds]
        return torch.tensor(values, dtype=torch.float32).to(self._flags)

    def write(self, kinds: Optional[List[int]]) -> None:
        """Before the unit is submitted. None: all are there, and dense."""
        self._flags.copy_(self._all_dense if kinds is None else self._of(kinds))

    def read(self) -> List[int]:
        """Of all ranks together, once the unit is complete; one sparse dimension stands for all."""
        said = [value != self._no for value in self._flags.tolist()]
        return [(DENSE + is_sparse) if is_there else ABSENT
                for is_there, is_sparse in zip(said[:self._count], said[self._count:])]


class Used:
    """The same for gradients that travel one by one: a byte for each, by an operation of its own at the end of the backward
    pass. Whoever has left some out waits for it before submitting those."""

    def __init__(self, name: str, kinds: List[int], process_set: ProcessSet):
        """Submits."""
        self._kinds = torch.tensor(kinds, dtype=torch.uint8)
        self._handle: Optional[int] = mpi_ops.allreduce_async_(self._kinds, name=name, op=mpi_ops.Max,
                                                               process_set=process_set)

    def wait(self) -> List[int]:
        """Kinds, of all ranks together. HorovodInternalError: the operation failed."""
        handle, self._handle = self._handle, None
        if handle is not None:
            mpi_ops.synchronize(handle)
        return self._kinds.tolist()


class OwnerNumbers:
    """Sets those apart whose tensors have the same names, such as the optimizers of two models of one class: how many there have
    been before in this membership of the process. (Not ever: a rank that joins later has made fewer.) Ranks make them in the
    same order."""

    def __init__(self):
        self._next: Dict[Tuple[Optional[int], str], int] = {}

    def take(self, names: Iterable[str], process_set: ProcessSet) -> int:
        keys = [(process_set.process_set_id, name) for name in names]
        number = max((self._next.get(key, 0) for key in keys), default=0)
        self._next.update(dict.fromkeys(keys, number + 1))
        return number

    def reset(self) -> None:
        self._next.clear()


owner_numbers = OwnerNumbers()
_basics.on_end(owner_numbers.reset)
