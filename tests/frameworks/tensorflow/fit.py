"""Keras 3's model.fit() on several ranks, each with its part of every batch, against one process with all of it.

    KERAS_BACKEND=tensorflow|jax|torch coordrun -np 2 -- python fit.py auto|true|false|eager [float64]
"""

import contextlib
import io
import sys

import keras
import numpy

import coordd.keras as hvd

BATCH, ROWS = 32, 512


def make(seed):
    keras.utils.set_random_seed(seed)
    return keras.Sequential([keras.layers.Input((20,)), keras.layers.Dense(32, activation="relu"), keras.layers.Dense(3)])


def train(model, x, y, batch, optimizer, mode, callbacks):
    model.compile(optimizer, keras.losses.SparseCategoricalCrossentropy(from_logits=True), metrics=["accuracy"],
                  jit_compile={"true": True, "auto": "auto"}.get(mode, False), run_eagerly=mode == "eager")
    return model.fit(x, y, batch_size=batch, epochs=3, shuffle=False, verbose=0, callbacks=callbacks).history["loss"][-1]


def train_by_parts(model, x, y, parts):
    """One process, on torch: of every batch the gradients of its parts, one after the other, and their mean."""
    import torch
    optimizer, loss = keras.optimizers.Adam(0.01), keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    for _ in range(3):
        for begin in range(0, ROWS, parts * BATCH):
            gradients = []
            for at in range(begin, begin + parts * BATCH, BATCH):
                model.zero_grad()
                loss(y[at:at + BATCH], model(x[at:at + BATCH], training=True)).backward()
                gradients.append([variable.value.grad.clone() for variable in model.trainable_variables])
            with torch.no_grad():
                optimizer.apply([sum(several) / parts for several in zip(*gradients)], model.trainable_variables)


def differ(one, other):
    return max(float(numpy.abs(a - b).max()) for a, b in zip(one.get_weights(), other.get_weights()))


def main():
    mode, floatx = sys.argv[1], sys.argv[2] if len(sys.argv) > 2 else "float32"
    keras.config.set_floatx(floatx)
    hvd.init()
    rng = numpy.random.default_rng(1)
    x = rng.normal(size=(ROWS, 20)).astype(floatx)
    y = (x @ rng.normal(size=(20, 3))).argmax(1)
    first, whole = hvd.rank() * BATCH, hvd.size() * BATCH
    own = numpy.concatenate([numpy.arange(begin + first, begin + first + BATCH) for begin in range(0, ROWS, whole)])
    model = make(100 + hvd.rank())  # other weights on each rank
    loss = train(model, x[own], y[own], BATCH, hvd.DistributedOptimizer(keras.optimizers.Adam(0.01)), mode,
                 [hvd.callbacks.BroadcastGlobalVariablesCallback(0), hvd.callbacks.MetricAverageCallback()])
    alone = make(100)
    expected = train(alone, x, y, whole, keras.optimizers.Adam(0.01), mode, [])
    difference = differ(model, alone)
    print(f"keras {keras.__version__} on {keras.backend.backend()} {mode}: weights differ by {difference:.1e}", flush=True)
    bound = 1e-6
    if keras.backend.backend() == "torch" and floatx == "float32":
        # The kernels of torch round the gradients of 32 rows and of 64 differently, and Adam makes that larger, in one process, too.
        by_parts = make(100)
        train_by_parts(by_parts, x, y, hvd.size())
        print(f"from one process that takes the mean of the same parts: {differ(model, by_parts):.1e}", flush=True)
        assert differ(model, by_parts) < 1e-6, differ(model, by_parts)
        bound = 5e-6
    assert difference < bound and abs(loss - expected) < 1e-5, (difference, loss, expected)
    with contextlib.redirect_stderr(io.StringIO()) as said:
        for start in ([hvd.callbacks.BroadcastGlobalVariablesCallback(0)], []):
            assert "weights differ" not in said.getvalue(), said.getvalue()
            train(make(100 + hvd.rank()), x[own], y[own], BATCH, hvd.DistributedOptimizer(keras.optimizers.Adam(0.01)), mode,
                  [*start, hvd.callbacks.MetricAverageCallback()])
    assert said.getvalue().count("the ranks' weights differ") == (hvd.rank() == 0), said.getvalue()
    print("the same as one process", hvd.rank(), flush=True)
    hvd.shutdown()


if __name__ == "__main__":
    main()
