"""model.fit() with coordd.keras: callbacks, saved models, local layers."""

import contextlib
import io
import os
import tempfile

import keras
import numpy
from check_operations import expect_error
from ranks import on_sizes

import coordd.keras as hvd
import coordd.tensorflow.keras


def data(rows=64):
    rng = numpy.random.default_rng(1)
    x = rng.normal(size=(rows * hvd.size(), 5)).astype("float32")
    y = (x @ rng.normal(size=(5, 3))).argmax(1)
    return x[hvd.rank()::hvd.size()], y[hvd.rank()::hvd.size()]


def model_of(seed, optimizer=None, **compile_arguments):
    keras.utils.set_random_seed(seed)
    model = keras.Sequential([keras.layers.Input((5,)), keras.layers.Dense(8, activation="relu"), keras.layers.Dropout(0.1),
                              keras.layers.Dense(3)])
    model.compile(optimizer or hvd.DistributedOptimizer(keras.optimizers.Adam(0.01)),
                  keras.losses.SparseCategoricalCrossentropy(from_logits=True), metrics=["accuracy"], **compile_arguments)
    return model


def same_everywhere(values):
    return all(all(numpy.array_equal(one, other) for one, other in zip(values, others))
               for others in hvd.allgather_object(values))


def check_the_first_step_is_that_of_the_root():
    for root in (0, hvd.size() - 1):
        model = model_of(hvd.rank() + 1)
        first = model.get_weights()
        model.fit(*data(), batch_size=16, epochs=1, verbose=0, callbacks=[hvd.callbacks.BroadcastGlobalVariablesCallback(root)])
        assert same_everywhere(model.get_weights()) and int(model.optimizer.iterations) == 4
        wanted = hvd.broadcast_object(first, root)
        again = model_of(5)
        again.set_weights(wanted)
        again.fit(*data(), batch_size=16, epochs=1, verbose=0, callbacks=[hvd.callbacks.BroadcastGlobalVariablesCallback(root)])
        assert same_everywhere(again.get_weights())


@on_sizes(2, 3)
def check_different_models_are_named():
    keras.utils.set_random_seed(1)
    model = keras.Sequential([keras.layers.Input((5,)), keras.layers.Dense(8 + hvd.rank(), name="own"), keras.layers.Dense(3)])
    model.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(0.01)), keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    start = hvd.callbacks.BroadcastGlobalVariablesCallback(0)
    found = expect_error(hvd.HorovodInternalError, "own/kernel on this rank: all ranks need the same model",
                         lambda: model.fit(*data(), verbose=0, callbacks=[start]))
    assert "[5, 9]" in found or "[5, 10]" in found, found


def check_an_optimizer_is_an_object():
    expect_error(ValueError, "found the class Adam: call it", lambda: hvd.DistributedOptimizer(keras.optimizers.Adam))
    expect_error(ValueError, "keras.optimizers.get('adam')", lambda: hvd.DistributedOptimizer("adam"))
    expect_error(ValueError, "such as keras.optimizers.Adam(0.001), found int", lambda: hvd.DistributedOptimizer(1))
    expect_error(AttributeError, "import coordd.keras", lambda: coordd.tensorflow.callbacks)


def check_metrics_are_averaged():
    seen = {}

    class Keep(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            seen.update(logs)

    model = model_of(1)
    model.fit(*data(), verbose=0, callbacks=[hvd.callbacks.BroadcastGlobalVariablesCallback(0), Keep(),
                                             hvd.callbacks.MetricAverageCallback()])
    own, averaged = float(seen["loss"]), model.history.history["loss"][0]
    assert abs(numpy.mean(hvd.allgather_object(own)) - averaged) < 1e-6 and same_everywhere([averaged])


def said_about_weights(model, *callbacks):
    """How often on rank 0, in two epochs; nothing on the others."""
    with contextlib.redirect_stderr(io.StringIO()) as said:
        model.fit(*data(), batch_size=16, epochs=2, verbose=0, callbacks=[*callbacks, hvd.callbacks.MetricAverageCallback()])
    counts = hvd.allgather_object(said.getvalue().count("ranks' weights differ"))
    assert not any(counts[1:]), counts
    return counts[0]


@on_sizes(2, 3)
def check_weights_that_differ_are_told_once():
    assert said_about_weights(model_of(hvd.rank() + 1)) == 1
    assert said_about_weights(model_of(1, keras.optimizers.Adam(0.1))) == 1  # of its own data alone
    model = model_of(hvd.rank() + 1)
    assert said_about_weights(model, hvd.callbacks.BroadcastGlobalVariablesCallback(0)) == 0
    for variable in model.trainable_variables:  # what may be rounded otherwise elsewhere
        variable.assign(variable * (1 + 1e-5 * hvd.rank()))
    assert said_about_weights(model) == 0
    last = model.layers[-1].trainable_weights
    last[0].assign(last[0] * (1 + 0.1 * hvd.rank()))
    assert said_about_weights(model) == 1


@on_sizes(2, 3)
def check_weights_that_may_differ_are_not_told():
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    for register in (True, False):  # with the optimizer, or with the callback alone
        model = model_of(1)
        local = model.layers[-1].trainable_weights
        optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(0.1))
        for variable in local:
            variable.assign(variable + hvd.rank())
            if register:
                optimizer.register_local_var(variable)
        model.compile(optimizer, loss)
        told = [] if register else [hvd.callbacks.BroadcastGlobalVariablesCallback(0, local_variables=local)]
        assert said_about_weights(model, *told) == 0
    first = hvd.add_process_set([0])
    model = model_of(hvd.rank() + 1)
    model.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(0.1), process_set=first), loss)
    assert said_about_weights(model) == 0
    hvd.remove_process_set(first)


@on_sizes(2, 3)
def check_weights_that_cannot_be_read_end_no_training():
    from coordd.keras import _alike

    class Unreadable:
        trainable_variables = property(lambda self: 1 / 0)

    assert numpy.isnan(_alike.digest(Unreadable())).all() and not _alike.do_differ(_alike.digest(Unreadable()))
    assert len(_alike.digest(Unreadable())) == len(_alike.digest(model_of(1)))
    model, most = model_of(hvd.rank() + 1), _alike._MOST_ELEMENTS
    _alike._MOST_ELEMENTS = 4  # a bias alone, which is still 0
    try:
        assert _alike.digest(model) == [0.0] * 5
    finally:
        _alike._MOST_ELEMENTS = most


def check_schedules():
    rates = []

    class Keep(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            rates.append(float(self.model.optimizer.learning_rate))

    model = model_of(1)
    model.fit(*data(), batch_size=16, epochs=3, verbose=0,
              callbacks=[hvd.callbacks.LearningRateWarmupCallback(0.1, warmup_epochs=2),
                         hvd.callbacks.LearningRateScheduleCallback(0.1, 0.5, start_epoch=2), Keep()])
    size = hvd.size()
    wanted = [0.1 / size * ((batch + 1) / 4 * (size - 1) / 2 + 1) for batch in range(8)] + [0.05] * 4
    assert numpy.allclose(rates, wanted), (rates, wanted)
    assert numpy.allclose(model.history.history["lr"], [wanted[3], 0.1, 0.05])
    expect_error(ValueError, "initial_lr", lambda: hvd.callbacks.LearningRateScheduleCallback(None, 0.1))


def check_saved_models():
    model = model_of(1)
    model.fit(*data(), batch_size=16, verbose=0)
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "model.keras")
        model.save(path)
        plain = keras.models.load_model(path)
        assert type(plain.optimizer) is keras.optimizers.Adam and int(plain.optimizer.iterations) == 4
        loaded = hvd.load_model(path)
    assert isinstance(loaded.optimizer, hvd.optimizer.Distributed) and int(loaded.optimizer.iterations) == 4
    slots = [numpy.array(one) for one in model.optimizer.variables]
    assert all(numpy.array_equal(one, other) for one, other in zip(slots, map(numpy.array, loaded.optimizer.variables)))
    loaded.fit(*data(), batch_size=16, verbose=0, callbacks=[hvd.callbacks.BroadcastGlobalVariablesCallback(0)])
    assert int(loaded.optimizer.iterations) == 8 and same_everywhere(loaded.get_weights())


@keras.saving.register_keras_serializable("of_a_program")
class _OwnOptimizer(keras.optimizers.SGD):
    pass


def check_saved_models_with_an_optimizer_of_the_program():
    model = keras.Sequential([keras.layers.Input((4,)), keras.layers.Dense(2)])
    model.compile(hvd.DistributedOptimizer(_OwnOptimizer(0.1)), "mse")
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "model.keras")
        model.save(path)
        assert type(keras.models.load_model(path).optimizer) is _OwnOptimizer
        loaded = hvd.load_model(path).optimizer
    assert isinstance(loaded, hvd.optimizer.Distributed) and isinstance(loaded, _OwnOptimizer)
    copied = type(loaded).from_config(loaded.get_config())
    assert type(copied) is _OwnOptimizer and isinstance(hvd.DistributedOptimizer(copied), hvd.optimizer.Distributed)


def check_values():
    assert numpy.allclose(hvd.allreduce(hvd.rank() + 1.0), (hvd.size() + 1) / 2)
    assert numpy.allclose(hvd.allreduce([1, 2], op=hvd.Sum), [hvd.size(), 2 * hvd.size()])
    assert hvd.allgather([hvd.rank()]).tolist() == list(range(hvd.size()))
    assert hvd.broadcast([hvd.rank()], hvd.size() - 1).tolist() == [hvd.size() - 1]
    assert hvd.reducescatter(numpy.ones((hvd.size() + 1, 2))).shape == ((2, 2) if hvd.rank() == 0 else (1, 2))
    expect_error(NotImplementedError, "BroadcastGlobalVariablesCallback", lambda: hvd.broadcast_global_variables(0))
    assert coordd.tensorflow.keras.DistributedOptimizer is hvd.DistributedOptimizer


def check_local_layers():
    model = model_of(1, keras.optimizers.SGD(0.1))
    local = model.layers[-1]
    model.compile(hvd.PartialDistributedOptimizer(keras.optimizers.SGD(0.1), local_layers=[local]),
                  keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    broadcast = hvd.callbacks.BroadcastGlobalVariablesCallback(0, local_variables=local.trainable_weights)
    model.fit(*data(), verbose=0, callbacks=[broadcast])
    assert same_everywhere(model.layers[0].get_weights())
    assert hvd.size() == 1 or not same_everywhere(local.get_weights())


def check_a_loss_scale_around_ours_is_refused():
    optimizer = keras.optimizers.LossScaleOptimizer(hvd.DistributedOptimizer(keras.optimizers.SGD()))
    model = model_of(1, optimizer)
    expect_error(ValueError, "DistributedOptimizer(LossScaleOptimizer(optimizer))",
                 lambda: model.fit(*data(), verbose=0, callbacks=[hvd.callbacks.BroadcastGlobalVariablesCallback(0)]))
