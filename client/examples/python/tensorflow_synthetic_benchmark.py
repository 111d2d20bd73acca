#!/usr/bin/env python3
"""How many images a second a model of Keras trains on in a tf.function with a tape, with random images.

    coordrun -np 2 -- python3 tensorflow_synthetic_benchmark.py --model MobileNetV2 --image-size 64 --batch-size 8
"""

import argparse
import time

import keras
import numpy
import tensorflow as tf

import coordd.tensorflow as hvd


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="ResNet50", help="a name of keras.applications")
    parser.add_argument("--image-size", type=int, default=224)
    parser.add_argument("--batch-size", type=int, default=32, help="images of a step on each worker")
    parser.add_argument("--num-warmup-batches", type=int, default=10)
    parser.add_argument("--num-batches-per-iter", type=int, default=10)
    parser.add_argument("--num-iters", type=int, default=10)
    parser.add_argument("--fp16-allreduce", action="store_true", help="gradients travel in float16")
    parser.add_argument("--xla", action="store_true", help="compile the step")
    return parser.parse_args()


def main():
    options = arguments()
    hvd.init()
    shape = (options.image_size, options.image_size, 3)
    model = getattr(keras.applications, options.model)(weights=None, input_shape=shape)
    optimizer = keras.optimizers.SGD(0.01)
    optimizer.build(model.trainable_variables)
    hvd.broadcast_variables(model.variables, root_rank=0)
    images = tf.random.uniform([options.batch_size, *shape])
    labels = tf.random.uniform([options.batch_size], maxval=999, dtype=tf.int64)
    loss_of = keras.losses.SparseCategoricalCrossentropy()
    compression = hvd.Compression.fp16 if options.fp16_allreduce else hvd.Compression.none

    @tf.function(jit_compile=options.xla or None)
    def step():
        with tf.GradientTape() as tape:
            loss = loss_of(labels, model(images, training=True))
        tape = hvd.DistributedGradientTape(tape, compression=compression)
        variables = [variable.value for variable in model.trainable_variables]
        optimizer.apply(tape.gradient(loss, variables), model.trainable_variables)

    for _ in range(options.num_warmup_batches):
        step()
    rates = []
    for number in range(options.num_iters):
        began = time.perf_counter()
        for _ in range(options.num_batches_per_iter):
            step()
        rates.append(options.batch_size * options.num_batches_per_iter / (time.perf_counter() - began))
        if hvd.rank() == 0:
            print(f"Iter #{number}: {rates[-1]:.1f} img/sec per worker", flush=True)
    if hvd.rank() == 0:
        mean, spread = numpy.mean(rates), 1.96 * numpy.std(rates)
        print(f"Img/sec per worker: {mean:.1f} +-{spread:.1f}")
        print(f"Total img/sec on {hvd.size()} worker(s): {hvd.size() * mean:.1f} +-{hvd.size() * spread:.1f}", flush=True)


if __name__ == "__main__":
    main()
