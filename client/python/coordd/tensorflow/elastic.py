"""Elastic training with TensorFlow: `coordrun -np 4 --min-np 2 -- python train.py` goes on without ranks that are lost.

    state = coordd.tensorflow.elastic.TensorFlowState([*variables], batch=0)

    @coordd.tensorflow.elastic.run
    def train(state):
        while state.batch < 1000:
            step(...)                     # a tf.function: it goes on after a loss, and is not traced anew
            state.batch += 1
            state.commit()

    train(state)
"""

from typing import Any, Callable, Iterable, Optional

import numpy
import tensorflow as tf

from coordd import _basics, _built
from coordd._translated import translated
from coordd._variables import VariablesState
from coordd.elastic import run_fn
from coordd.exceptions import UnsupportedError

__all__ = ["run", "TensorFlowState", "TensorFlowKerasState"]


def run(func: Callable) -> Callable:
    """Decorates a training function whose first argument is a state: all ranks start from rank 0's; see coordd.elastic. The error of an
    op counts as HorovodInternalError when a rank was lost."""
    return run_fn(translated(func, (tf.errors.OpError,)), _basics.change_members)


def _to_array(variable) -> numpy.ndarray:
    return numpy.array(tf.convert_to_tensor(variable).numpy())


def _variables_of(optimizer) -> list:
    return list(optimizer.variables() if callable(optimizer.variables) else optimizer.variables)


class TensorFlowState(VariablesState):
    """Variables, and what is given by name: state.batch, for instance."""

    def __init__(self, variables: Optional[Iterable] = None, session=None, **kwargs: Any):
        if session is not None or variables is None:
            raise UnsupportedError("TensorFlowState of a session's variables: expected a list of variables, as model.variables",
                                   "UNIMPLEMENTED")
        own = list(variables)
        self.variables = own
        super().__init__(lambda: own, _to_array, **kwargs)


class TensorFlowKerasState(VariablesState):
    """state.model, state.optimizer, and what is given by name, for a training loop of the program's own; with fit() use
    coordd.keras.elastic.KerasState. ValueError: the model is not built, here or, of a layer that is built later, in save() and
    commit()."""

    def __init__(self, model, optimizer=None, backend=None, **kwargs: Any):
        self._known = _built.Known(model, "TensorFlowKerasState")
        self.model = model
        self.optimizer = own = optimizer if optimizer is not None else getattr(model, "optimizer", None)
        _built.build_optimizer(model, own)
        super().__init__(lambda: list(model.variables) + ([] if own is None else _variables_of(own)), _to_array, **kwargs)

    def save(self) -> None:
        """ValueError: layers were built since the state was made."""
        self._known.check()
        super().save()
