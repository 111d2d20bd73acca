"""model.fit() with coordd.keras: callbacks, saved models, local layers."""

import contextlib
import copy
import io
import os
import pickle
import tempfile
import warnings

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


@on_sizes(2, 3)
def check_metrics_that_differ_are_named():
    """Ranks trace other functions then, whose gradients have the same names all the same."""
    own = [["mae"], ["mse"], ["mse"]][hvd.rank()]
    for metrics, found in ((own if hvd.rank() == 0 else [], "has shape"), (own, "as many, but others")):
        model = keras.Sequential([keras.layers.Input((5,)), keras.layers.Dense(1)])
        model.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(0.01)), "mse", metrics=metrics)
        x, _ = data()
        said = expect_error(hvd.HorovodInternalError, found,
                            lambda: model.fit(x, x[:, 0], verbose=0, callbacks=[hvd.callbacks.MetricAverageCallback()]))  # noqa: B023
        assert f"this rank's metrics of the epoch are {', '.join(['loss', *metrics])}: all ranks need the same" in said, said


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


def optimizers_that_are_copied():
    """(one, a copy of it) in each way."""
    for make in (keras.optimizers.Adam, lambda rate: keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(rate))):
        for copied in (copy.copy, copy.deepcopy, lambda one: pickle.loads(pickle.dumps(one))):
            optimizer = hvd.DistributedOptimizer(make(0.1), op=hvd.Sum)
            optimizer.build([keras.Variable([1.0])])
            yield optimizer, copied(optimizer)


def check_copies_of_optimizers_are_distributed():
    for optimizer, copied in optimizers_that_are_copied():
        assert copied is not optimizer and type(copied) is type(optimizer)
        assert copied._coordd_options == optimizer._coordd_options and copied.get_config() == optimizer.get_config()
        # Keras leaves the slots behind, so that the copy serves another model.
        model = model_of(1, copied)
        model.fit(*data(), batch_size=16, verbose=0)
        assert same_everywhere(model.get_weights())
    model = model_of(1, copy.deepcopy(hvd.DistributedOptimizer(keras.optimizers.Adam(0.1))))
    if hvd.rank() == 0:  # a copy on one rank alone, as for a file, has no effect on the names of the others
        copy.deepcopy(model.optimizer)
    model.fit(*data(), batch_size=16, verbose=0)
    assert same_everywhere(model.get_weights())


def check_what_a_copy_would_not_have():
    optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(0.1), groups=[[keras.Variable(1.0)]])
    optimizer.register_local_var(keras.Variable(1.0))
    expect_error(NotImplementedError, "with variables of register_local_var() and groups of variables", lambda: copy.copy(optimizer))
    if hvd.size() == 1:
        return  # that of all ranks is the only one
    own = hvd.add_process_set([0])
    expect_error(NotImplementedError, "with a process set, which a copy would not have",
                 lambda: pickle.dumps(hvd.DistributedOptimizer(keras.optimizers.SGD(0.1), process_set=own)))
    hvd.remove_process_set(own)


class OwnStep(keras.Model):
    def train_step(self, *arguments):
        return super().train_step(*arguments)


def check_plain_optimizers_are_told():
    model = model_of(1)
    start = hvd.callbacks.BroadcastGlobalVariablesCallback(0)
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "model.keras")
        model.save(path)
        loaded = {"keras": keras.models.load_model(path), "ours": hvd.load_model(path)}
    inputs = keras.Input((5,))
    loaded["own step"] = OwnStep(inputs, keras.layers.Dense(3)(inputs))
    loaded["own step"].compile(keras.optimizers.SGD(0.1), keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    for what, one in loaded.items():
        with contextlib.redirect_stderr(io.StringIO()) as said:
            one.fit(*data(), verbose=0, callbacks=[start])
        is_told = what == "keras" and hvd.size() > 1 and hvd.rank() == 0
        assert said.getvalue().count("Adam is no distributed optimizer, so that each rank trains by itself") == is_told, said.getvalue()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        type(model.optimizer).from_config(model.optimizer.get_config())
    assert ["Adam.from_config() makes a plain optimizer" in str(one.message) for one in caught] == [True], caught


def check_saved_models_with_a_layer_of_ours():
    model = keras.Sequential([keras.layers.Input((5,)), coordd.tensorflow.SyncBatchNormalization(), keras.layers.Dense(3)])
    model.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(0.1)), "mse")
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "model.keras")
        model.save(path)
        for load in (hvd.load_model, keras.models.load_model):
            assert type(load(path).layers[0]) is coordd.tensorflow.SyncBatchNormalization


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


def check_scalars_complex_numbers_and_many_dimensions():
    size, rank = hvd.size(), hvd.rank()
    assert hvd.allreduce(1.5).shape == hvd.allreduce(1j).shape == hvd.broadcast(rank, 0).shape == ()
    for call, what in ((hvd.allgather, "allgather"), (hvd.reducescatter, "reducescatter")):
        expect_error(ValueError, f"{what}: expected a value of at least one dimension, found a scalar", lambda: call(1.0))  # noqa: B023
    own = numpy.full((2, 3), rank + 1j)
    assert numpy.allclose(hvd.allreduce(own, op=hvd.Sum), numpy.full((2, 3), size * (size - 1) / 2 + size * 1j))
    assert numpy.allclose(hvd.allgather(own[:1]), [[one + 1j] * 3 for one in range(size)])
    assert hvd.allgather(numpy.zeros((0, 3), "complex64")).shape == (0, 3)
    assert numpy.allclose(hvd.reducescatter(numpy.full(size, 2j)), [2j])
    expect_error(ValueError, "Min, Max or Product of complex numbers", lambda: hvd.allreduce(own, op=hvd.Max))
    many = numpy.full((2,) + 8 * (1,) + (3,), float(rank))
    assert numpy.array_equal(hvd.allreduce(many, op=hvd.Max), numpy.full(many.shape, size - 1.0))
    assert numpy.array_equal(hvd.allgather(many)[-2:], numpy.full(many.shape, size - 1.0))
    if size > 1:
        expect_error(hvd.HorovodInternalError, "has shape", lambda: hvd.allreduce(own.reshape((2, 3) if rank else (3, 2))))


def check_factors_and_compression_of_values():
    for wrong in ({"prescale_factor": 0}, {"postscale_factor": 0}):
        expect_error(ValueError, "must not be 0", lambda: hvd.allreduce([1.0], **wrong))  # noqa: B023
    assert hvd.allreduce([3.0], op=hvd.Sum, prescale_factor=0.5, postscale_factor=4).tolist() == [6.0 * hvd.size()]
    for kind, least in ((hvd.Compression.fp16, 2.0 ** -10), (hvd.Compression.bf16, 2.0 ** -7)):
        for dtype in ("float32", "float64"):
            found = hvd.allreduce(numpy.array([1 + least / 8, 3], dtype), compression=kind)
            assert found.dtype == dtype and found.tolist() == [1.0, 3.0], (kind, found)
        assert hvd.allreduce([2 ** 20 + 1], compression=kind).tolist() == [2 ** 20 + 1]


def check_a_state_needs_the_variables():
    empty = keras.Sequential([keras.layers.Dense(3)])
    for state in (hvd.elastic.KerasState, coordd.tensorflow.elastic.TensorFlowKerasState):
        for model in (empty, LateLayers(0)):
            expect_error(ValueError, "is not built, so that it has no weights that all ranks could share",
                         lambda: state(model))  # noqa: B023
        model = LateLayers(1)
        late = state(model, epoch=0)
        late.commit()
        model(numpy.ones((1, 5)))
        expect_error(ValueError, "variables and had 2 when the state was made", late.commit)
        state(model).commit()  # now it has them
    built = model_of(hvd.rank())
    hvd.elastic.KerasState(built).sync()
    assert same_everywhere(built.get_weights()) and built.optimizer.built


class LateLayers(keras.Model):
    """Says that it is built, while of two layers so many are."""

    def __init__(self, count):
        super().__init__()
        self.first, self.last = keras.layers.Dense(5), keras.layers.Dense(3)
        for layer in (self.first, self.last)[:count]:
            layer.build((None, 5))
        self.built = True

    def call(self, x):
        return self.last(self.first(x))


def check_models_that_are_built_later():
    for count in range(3):
        for graph in (True, False):
            keras.utils.set_random_seed(hvd.rank() + 1)
            model = LateLayers(count)
            model.compile(hvd.DistributedOptimizer(keras.optimizers.Adam(0.01)),
                          keras.losses.SparseCategoricalCrossentropy(from_logits=True), run_eagerly=not graph)
            model.fit(*data(), batch_size=16, verbose=0, callbacks=[hvd.callbacks.BroadcastGlobalVariablesCallback(0)])
            assert same_everywhere(model.get_weights()) and len(model.get_weights()) == 4


def check_the_best_model():
    checkpoint = hvd.callbacks.BestModelCheckpoint("loss", 0, True, "min", "epoch")  # Horovod's places
    assert (checkpoint.monitor, checkpoint.save_weights_only, checkpoint.filepath) == ("loss", True, None)
    expect_error(TypeError, "positional", lambda: hvd.callbacks.BestModelCheckpoint("loss", 0, True, "min", "epoch", "best.keras"))
    expect_error(ValueError, "callback.filepath set before fit()", lambda: model_of(1).fit(*data(), verbose=0, callbacks=[checkpoint]))
    with tempfile.TemporaryDirectory() as folder:
        given = hvd.callbacks.BestModelCheckpoint("loss", filepath=os.path.join(folder, "given.keras"))
        checkpoint.filepath = os.path.join(folder, "set.weights.h5")
        model_of(1).fit(*data(), verbose=0, callbacks=[checkpoint, given])
        assert sorted(os.listdir(folder)) == ["given.keras", "set.weights.h5"]


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
