"""Callbacks of coordd.keras.elastic, each with fit() in one rank by itself: what they do when fit() begins once more."""

import keras
import numpy
from ranks import on_sizes

import coordd.keras as hvd


class Interrupt(Exception):
    pass


class InterruptAt(keras.callbacks.Callback):
    """Ends fit() at one batch, as a lost rank does."""

    def __init__(self, epoch, batch):
        super().__init__()
        self._at, self._epoch = (epoch, batch), 0

    def on_epoch_begin(self, epoch, logs=None):
        self._epoch = epoch

    def on_train_batch_begin(self, batch, logs=None):
        if (self._epoch, batch) == self._at:
            self._at = None
            raise Interrupt()


def fit(callbacks, **arguments):
    """With six batches in an epoch. Whether it came to its end."""
    model = keras.Sequential([keras.layers.Input((2,)), keras.layers.Dense(1)])
    model.compile(keras.optimizers.SGD(0.01), "mse", steps_per_execution=1)
    x = numpy.ones((12, 2), "float32")
    try:
        model.fit(x, x[:, :1], batch_size=2, verbose=0, callbacks=callbacks, **arguments)
    except Interrupt:
        return False
    return True


class State:
    """Keeps what the callbacks tell it."""

    def __init__(self):
        self.epoch, self.commits, self.batches = 0, [], 0

    def commit(self):
        self.commits.append(self.batches)


class CountBatches(keras.callbacks.Callback):

    def __init__(self, state):
        super().__init__()
        self._state = state

    def on_train_begin(self, logs=None):
        self._state.batches, self._state.commits = 0, []

    def on_train_batch_end(self, batch, logs=None):
        self._state.batches += 1


@on_sizes(1)
def check_epochs_are_counted_on_in_both_ways():
    for arguments in (lambda state: {"initial_epoch": state.epoch, "epochs": 7}, lambda state: {"epochs": 7 - state.epoch}):
        state, begun = State(), []
        callbacks = [hvd.elastic.UpdateEpochStateCallback(state)]
        for interrupt, epoch in ((2, 2), (1, 3), (None, 7)):
            given = arguments(state)
            begun.append(state.epoch)
            at = InterruptAt(None if interrupt is None else given.get("initial_epoch", 0) + interrupt, 3)
            assert fit([*callbacks, at], **given) == (interrupt is None)
            assert state.epoch == epoch, (state.epoch, epoch, given)
        assert begun == [0, 2, 3], begun
    state = State()
    fit([hvd.elastic.UpdateEpochStateCallback(state)], initial_epoch=3, epochs=5)  # of a state that was not told of the first three
    assert state.epoch == 5


@on_sizes(1)
def check_commits_are_counted_from_the_beginning_of_fit():
    state = State()
    callbacks = [CountBatches(state), hvd.elastic.CommitStateCallback(state, 4), InterruptAt(0, 2)]
    assert not fit(callbacks) and state.commits == []
    assert fit(callbacks) and state.commits == [4, 6], state.commits
