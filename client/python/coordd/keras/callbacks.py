"""Callbacks for fit(), with Horovod's names and arguments."""

import sys
import zlib
from typing import Any, Callable, List, Optional, Union

import numpy

from coordd import _arrays, _basics, _built
from coordd._arguments import checked_root
from coordd.exceptions import HorovodInternalError, InvalidArgumentError
from coordd.keras import _alike, _reduce
from coordd.keras._which import LEGACY, keras
from coordd.keras.functions import broadcast_variables, variables_of
from coordd.keras.optimizer import Distributed

__all__ = ["BroadcastGlobalVariablesCallback", "MetricAverageCallback", "LearningRateScheduleCallback",
           "LearningRateWarmupCallback", "BestModelCheckpoint"]


class BroadcastGlobalVariablesCallback(keras.callbacks.Callback):
    """Gives all ranks the root's model and optimizer before the first step; what of the model is not built before, after the first batch.

    local_variables: stay as they are on each rank. `device` is there for Horovod's sake."""

    def __init__(self, root_rank: int, device: str = "", local_variables: Optional[List] = None):
        super().__init__()
        self.root_rank = checked_root(root_rank)
        self._local = {_reduce.key_of(variable) for variable in local_variables or ()}
        self._done = False

    def on_train_begin(self, logs=None) -> None:
        _refuse_wrapped(self.model.optimizer)
        _warn_of_plain(self.model)
        _alike.leave_out(self.model, self._local)
        if self._done:
            return
        if _built.is_complete(self.model):
            self._broadcast_all()
        elif self.model.built:  # Keras 2 does not say the variables of another one
            self._broadcast(self.model.variables)

    def on_train_batch_end(self, batch, logs=None) -> None:
        if not self._done:
            self._broadcast_all()

    def _broadcast_all(self) -> None:
        self._done = True
        optimizer = self.model.optimizer
        _built.build_optimizer(self.model, optimizer)
        self._broadcast(list(self.model.variables) + variables_of(optimizer))

    def _broadcast(self, variables: List) -> None:
        known, once = set(self._local), []
        for variable in variables:
            if _reduce.key_of(variable) not in known and not _is_random_state(variable):
                known.add(_reduce.key_of(variable))
                once.append(variable)
        broadcast_variables(once, self.root_rank)


def _is_random_state(variable) -> bool:
    """Each rank's dropout is its own."""
    return "seed_generator" in (getattr(variable, "path", "") or "")


def _warn_of_plain(model) -> None:
    """Of a model that was loaded, cloned or copied by Keras alone, for instance. One with a train_step() of its own may reduce there."""
    optimizer = model.optimizer
    is_keras_own = type(model).train_step.__module__.startswith(keras.__name__ + ".")
    if isinstance(optimizer, Distributed) or not is_keras_own or _basics.size() == 1 or _basics.rank() != 0:
        return
    print(f"coordd: {type(optimizer).__name__} is no distributed optimizer, so that each rank trains by itself: expected compile() with "
          "DistributedOptimizer(), or coordd.keras.load_model(); what Keras loads, clones or makes of a configuration has a plain one",
          file=sys.stderr, flush=True)


def _refuse_wrapped(optimizer) -> None:
    inner = getattr(optimizer, "inner_optimizer", None)
    if isinstance(inner, Distributed) and not isinstance(optimizer, Distributed):
        raise InvalidArgumentError("compile() has put the DistributedOptimizer into a LossScaleOptimizer, in which ranks would wait for "
                                   "each other at the first infinity: expected DistributedOptimizer(LossScaleOptimizer(optimizer)), or "
                                   "the policy mixed_float16 set before DistributedOptimizer()", "INVALID_ARGUMENT")


class MetricAverageCallback(keras.callbacks.Callback):
    """Averages the metrics of an epoch over the ranks, for the callbacks behind this one, such as ReduceLROnPlateau. One small
    allreduce, in which a digest of the weights goes along: rank 0 says once on stderr when the ranks' weights differ."""

    def __init__(self, device: str = ""):
        super().__init__()
        self._has_warned = False

    def on_epoch_end(self, epoch, logs=None) -> None:
        names = sorted(name for name, value in (logs or {}).items() if numpy.ndim(value) == 0)  # the same order on all ranks
        if names and logs is not None:
            mean = _mean_of(names, [float(logs[name]) for name in names] + _alike.digest(self.model))
            logs.update(zip(names, map(float, mean)))
            self._warn(epoch, mean[len(names):])

    def _warn(self, epoch: int, digest) -> None:
        if self._has_warned or _basics.rank() != 0 or not _alike.do_differ(digest):
            return
        self._has_warned = True
        print(f"coordd: after epoch {epoch + 1} the ranks' weights differ, so that each trains another model: expected the callback "
              "BroadcastGlobalVariablesCallback(0), with which all start alike, and an optimizer of DistributedOptimizer(), with which "
              "they stay so", file=sys.stderr, flush=True)


def _mean_of(names: List[str], values: List[float]) -> List[float]:
    """Of all ranks' values, which have the same names."""
    which = zlib.crc32("\n".join(names).encode())  # a number that is its own mean where all have it
    told = {"INVALID_ARGUMENT": f"this rank's metrics of the epoch are {', '.join(names)}: all ranks need the same",
            "DEADLINE_EXCEEDED": "this rank has ended an epoch that another has not: all ranks need as many batches, and what ends fit() "
                                 "early, such as EarlyStopping or TerminateOnNaN, has to end it on all of them"}
    try:
        *mean, found = _arrays.allreduce("keras.metrics", numpy.array([*values, float(which)]), _basics.Average)
    except HorovodInternalError as error:
        if error.code not in told:
            raise
        raise HorovodInternalError(f"{error}; {told[error.code]}", error.code, error.rank, error.tensor, error.generation) from None
    if found != which:
        raise HorovodInternalError(f"tensor keras.metrics: the ranks' metrics are as many, but others; {told['INVALID_ARGUMENT']}",
                                   "INVALID_ARGUMENT")
    return mean


def _learning_rate(optimizer) -> float:
    return float(keras.backend.get_value(optimizer.learning_rate) if LEGACY else keras.ops.convert_to_numpy(
        optimizer.learning_rate))


class LearningRateScheduleCallback(keras.callbacks.Callback):
    """From `start_epoch` to before `end_epoch`: the learning rate is `initial_lr` times `multiplier`, a number or a function of the epoch.

    staircase: changes between epochs only; False: with each batch, for which the multiplier gets parts of epochs, and
    `steps_per_epoch` says how many batches there are where fit() does not know.
    momentum_correction: there for Horovod's sake: Keras compiles the momentum into its step, so that it cannot follow."""

    def __init__(self, initial_lr: float, multiplier: Union[float, Callable[[float], float]], start_epoch: int = 0,
                 end_epoch: Optional[int] = None, staircase: bool = True, momentum_correction: bool = True,
                 steps_per_epoch: Optional[int] = None):
        super().__init__()
        if initial_lr is None:
            raise InvalidArgumentError("initial_lr is None: expected the learning rate that is multiplied", "INVALID_ARGUMENT")
        self.initial_lr = initial_lr
        self.start_epoch = start_epoch
        self.end_epoch = end_epoch
        self.steps_per_epoch = steps_per_epoch
        self.staircase = staircase if callable(multiplier) else True
        self.multiplier: Callable[[float], float] = multiplier if callable(multiplier) else lambda epoch: multiplier
        self.current_epoch = 0

    def on_train_begin(self, logs=None) -> None:
        if not self.staircase and not self.steps_per_epoch:
            self.steps_per_epoch = (self.params or {}).get("steps")
            if not self.steps_per_epoch:
                raise InvalidArgumentError("steps_per_epoch is not known here: expected it as an argument of the callback",
                                           "INVALID_ARGUMENT")

    def _adjust(self, epoch: float) -> None:
        if epoch < self.start_epoch or (self.end_epoch is not None and epoch >= self.end_epoch):
            return
        rate = self.initial_lr * self.multiplier(epoch)
        optimizer: Any = self.model.optimizer
        if LEGACY:
            keras.backend.set_value(optimizer.learning_rate, rate)
        else:
            optimizer.learning_rate = rate

    def on_epoch_begin(self, epoch, logs=None) -> None:
        self.current_epoch = epoch
        if self.staircase:
            self._adjust(epoch)

    def on_train_batch_begin(self, batch, logs=None) -> None:
        if not self.staircase:
            self._adjust(self.current_epoch + float(batch) / (self.steps_per_epoch or 1))

    def on_epoch_end(self, epoch, logs=None) -> None:
        if logs is not None:
            logs["lr"] = _learning_rate(self.model.optimizer)


class LearningRateWarmupCallback(LearningRateScheduleCallback):
    """From initial_lr / size() to `initial_lr` in the first epochs, batch by batch: `initial_lr` is that for all ranks together. Goyal et
    al., 2017."""

    def __init__(self, initial_lr: float, warmup_epochs: int = 5, momentum_correction: bool = True,
                 steps_per_epoch: Optional[int] = None, verbose: int = 0):
        self._verbose = verbose
        self._warmup_epochs = warmup_epochs

        def multiplier(epoch: float) -> float:
            epoch += 1.0 / (self.steps_per_epoch or 1)  # the first batch of the epoch behind has the full rate
            return 1.0 / _basics.size() * (epoch * (_basics.size() - 1) / warmup_epochs + 1)

        super().__init__(initial_lr, multiplier, 0, warmup_epochs, False, momentum_correction, steps_per_epoch)

    def on_epoch_end(self, epoch, logs=None) -> None:
        super().on_epoch_end(epoch, logs)
        if epoch == self._warmup_epochs - 1 and self._verbose > 0:
            print(f"\nEpoch {epoch + 1}: finished gradual learning rate warmup to {_learning_rate(self.model.optimizer):g}.")


class BestModelCheckpoint(keras.callbacks.ModelCheckpoint):
    """Keras's ModelCheckpoint of the best model, with Horovod's arguments. `filepath`, which Horovod's does not have: where the model
    goes; the attribute of that name may be set before fit() instead. Give it to rank 0's fit() only, or a file for each rank."""

    def __init__(self, monitor: str = "val_loss", verbose: int = 0, save_weights_only: bool = False, mode: str = "auto",
                 save_freq: Any = "epoch", *, filepath: Optional[str] = None):
        placeholder = "best.weights.h5" if save_weights_only else "best.keras"  # Keras takes no checkpoint without a file
        super().__init__(placeholder if filepath is None else filepath, monitor=monitor, verbose=verbose, save_best_only=True,
                         save_weights_only=save_weights_only, mode=mode, save_freq=save_freq)
        if filepath is None:
            self.filepath: Any = None

    def on_train_begin(self, logs=None) -> None:
        """ValueError: there is no path."""
        if not self.filepath:
            raise InvalidArgumentError("BestModelCheckpoint does not know where the model goes: expected BestModelCheckpoint("
                                       "filepath=\"best.keras\"), or callback.filepath set before fit()", "INVALID_ARGUMENT")
        super().on_train_begin(logs)
