"""Elastic training with Keras: `coordrun -np 4 --min-np 2 -- python train.py` goes on without ranks that are lost.

    state = coordd.keras.elastic.KerasState(model, batch=0, epoch=0)

    @coordd.keras.elastic.run
    def train(state):
        model.fit(..., initial_epoch=state.epoch, callbacks=[
            coordd.keras.elastic.CommitStateCallback(state), coordd.keras.elastic.UpdateEpochStateCallback(state)])

    train(state)

What Keras has compiled stays: the next fit() does not trace anew.
"""

from typing import Any, Callable, List, Optional

import numpy

from coordd import _basics, _built
from coordd._translated import translated
from coordd._variables import VariablesState
from coordd.elastic import run_fn
from coordd.keras import _reduce
from coordd.keras._which import keras
from coordd.keras.functions import to_array, variables_of

__all__ = ["run", "KerasState", "CommitStateCallback", "UpdateBatchStateCallback", "UpdateEpochStateCallback"]


def run(func: Callable) -> Callable:
    """Decorates a training function whose first argument is a state: all ranks start from rank 0's; see coordd.elastic. What a backend's
    runtime raises when a rank was lost counts as HorovodInternalError."""
    return run_fn(translated(func, _reduce.ERRORS), _basics.change_members)


class KerasState(VariablesState):
    """state.model, state.optimizer, and what is given by name: state.epoch, for instance. ValueError: the model is not built, here or,
    of a layer that is built later, in save() and commit()."""

    def __init__(self, model, optimizer=None, **kwargs: Any):
        self._known = _built.Known(model, "KerasState")
        self.model = model
        self.optimizer = own = optimizer if optimizer is not None else getattr(model, "optimizer", None)
        _built.build_optimizer(model, own)
        super().__init__(lambda: list(model.variables) + ([] if own is None else variables_of(own)), to_array, **kwargs)

    def _arrays(self) -> List[numpy.ndarray]:
        if hasattr(self.model, "jax_state_sync"):
            self.model.jax_state_sync()  # in fit() on JAX the values are in Keras's own hands, and the variables have none
        return super()._arrays()

    def save(self) -> None:
        """ValueError: layers were built since the state was made."""
        self._known.check()
        super().save()

    def restore(self) -> None:
        if hasattr(self.model, "_jax_state"):
            self.model._jax_state = None  # of the step that failed: fit() was to give it back, and may have had nothing to give
        super().restore()


class CommitStateCallback(keras.callbacks.Callback):
    """Commits the state after so many batches, and after each epoch. Each fit() counts from its first batch: the ranks that a loss has
    interrupted may have come to different ones, and would wait for each other in different batches."""

    def __init__(self, state, batches_per_commit: int = 1):
        super().__init__()
        self.state = state
        self.batches_per_commit = batches_per_commit
        self._batches = 0

    def on_train_begin(self, logs=None) -> None:
        self._batches = 0

    def on_train_batch_end(self, batch, logs=None) -> None:
        self._batches += 1
        if self._batches >= self.batches_per_commit:
            self._batches = 0
            self.state.commit()

    def on_epoch_end(self, epoch, logs=None) -> None:
        self._batches = 0
        self.state.commit()


class UpdateBatchStateCallback(keras.callbacks.Callback):
    """Keeps state.batch at the number of batches of this epoch that are done: an epoch that was interrupted has that many fewer, if fit()
    is given as many. Behind it comes CommitStateCallback."""

    def __init__(self, state):
        super().__init__()
        self.state = state

    def on_train_batch_end(self, batch, logs=None) -> None:
        self.state.batch += 1

    def on_epoch_end(self, epoch, logs=None) -> None:
        self.state.batch = 0


class UpdateEpochStateCallback(keras.callbacks.Callback):
    """Keeps state.epoch at the epoch that comes next. Behind it comes CommitStateCallback. It serves both ways to go on: a fit() with
    initial_epoch=state.epoch, whose epochs are numbered on, and Horovod's with epochs=all - state.epoch, which begins at 0 again."""

    def __init__(self, state):
        super().__init__()
        self.state = state
        self._before: Optional[int] = None  # how many epochs were done before those that this fit() numbers

    def on_train_begin(self, logs=None) -> None:
        self._before = None

    def on_epoch_begin(self, epoch, logs=None) -> None:
        if self._before is None:
            self._before = self.state.epoch if epoch == 0 else 0

    def on_epoch_end(self, epoch, logs=None) -> None:
        self.state.epoch = (self._before or 0) + epoch + 1
