"""Elastic state of variables that a framework keeps: they are saved, restored and shared as NumPy's arrays."""

import pickle
from typing import Any, Callable, List

import numpy

from coordd import _arrays, _basics
from coordd.elastic import ObjectState


class VariablesState(ObjectState):
    """The variables that `variables()` returns, each with assign(array), and objects that can be pickled. `to_array`: a copy of a
    variable's value."""

    def __init__(self, variables: Callable[[], List], to_array: Callable[[Any], numpy.ndarray], **kwargs: Any):
        self._variables = variables
        self._to_array = to_array
        super().__init__(lambda obj, root_rank=0: _arrays.broadcast_object(obj, root_rank, "coordd.elastic.objects"),
                         _basics.rank, **kwargs)
        self._saved = self._arrays()

    def _arrays(self) -> List[numpy.ndarray]:
        return [self._to_array(variable) for variable in self._variables()]

    def _assign(self, arrays: List[numpy.ndarray]) -> None:
        for variable, array in zip(self._variables(), arrays):
            variable.assign(array)

    def save(self) -> None:
        self._saved = self._arrays()
        super().save()

    def restore(self) -> None:
        self._assign(self._saved)
        super().restore()

    def sync(self) -> None:
        """Everyone takes rank 0's, and has it committed."""
        arrays = self._arrays()
        _arrays.broadcast([(f"coordd.elastic.variable.{index}", array) for index, array in enumerate(arrays)], 0)
        self._assign(arrays)
        self._saved = arrays
        super().sync()

    def pack(self) -> bytes:
        return pickle.dumps((self._arrays(), super().pack()))

    def unpack(self, packed: bytes) -> None:
        arrays, objects = pickle.loads(packed)
        self._assign(arrays)
        super().unpack(objects)
