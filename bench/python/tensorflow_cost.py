"""What a collective of coordd.tensorflow costs: a call of 4 bytes, and the communication of a step of 158 gradients.

    coordrun -np 2 -- python3 bench/python/tensorflow_cost.py [--rounds N] [--calls N] [--only-steps] [--json FILE]
    coordrun -np 2 -- python3 bench/python/tensorflow_cost.py --mirrored     # the step with MultiWorkerMirroredStrategy instead

Rank 0 prints one JSON object; each figure is the median over the rounds, all measured in turn in each round. Microseconds of a call:
"c_call" is coordd_allreduce by ctypes, "eager" the op, "eager_alone" TensorFlow's x + x, "graph" and "xla" a tf.function with it,
"graph_alone" and "xla_alone" the same function without it. Milliseconds of a step of 25.6 million floats in 158 tensors: "step_graph",
"step_xla" (grouped), and the same without communication.
"""

import argparse
import ctypes
import json
import os
import statistics
import sys
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import numpy  # noqa: E402
import tensorflow as tf  # noqa: E402

import coordd.tensorflow as hvd  # noqa: E402
from coordd import _basics, _library, _native  # noqa: E402

GRADIENTS, FLOATS = 158, 25.6e6


def c_call():
    """The shortest way from Python: prepared once, two addresses."""
    array, output = numpy.ones(1, numpy.float32), numpy.empty(1, numpy.float32)
    prepared = _native.Prepared("bench.c_call", array.shape, _library.DTYPES["float32"])
    prepared.structure.input, prepared.structure.output = array.ctypes.data, output.ctypes.data
    function, worker, total = _library.library().blocking.coordd_allreduce, _basics.worker().pointer, ctypes.c_int32(1)

    def call():
        status = function(worker, prepared.reference, total, None, None)
        assert status == 0, _library.library().last_error()

    call.kept = (array, output)
    return call


def calls():
    x = tf.ones([1])

    def functions(jit):
        return (tf.function(lambda x: hvd.allreduce(x + 1, name=f"bench.{jit}", op=hvd.Sum), jit_compile=jit, autograph=False),
                tf.function(lambda x: x + 1, jit_compile=jit, autograph=False))

    (graph, graph_alone), (xla, xla_alone) = functions(False), functions(True)
    return {"c_call": c_call(), "eager": lambda: hvd.allreduce(x, name="bench.eager", op=hvd.Sum), "eager_alone": lambda: x + x,
            "graph": lambda: graph(x), "graph_alone": lambda: graph_alone(x), "xla": lambda: xla(x), "xla_alone": lambda: xla_alone(x)}


def gradients():
    """Sizes as of a network: few large ones, many small ones."""
    sizes = numpy.geomspace(64, 2359296, GRADIENTS)
    return [tf.random.normal([int(size * FLOATS / sizes.sum())]) for size in sizes]


def steps():
    tensors = gradients()

    def step(reduce, jit):
        return tf.function(lambda: reduce([tensor * 1.0001 for tensor in tensors]), jit_compile=jit, autograph=False)

    def one_by_one(grads):
        return [hvd.allreduce(one, name=f"bench.step.{index}", op=hvd.Sum) for index, one in enumerate(grads)]

    def grouped(grads):
        return hvd.grouped_allreduce(grads, name="bench.step", op=hvd.Sum)

    return {"step_graph": step(one_by_one, False), "step_grouped": step(grouped, False), "step_alone": step(list, False),
            "step_xla": step(grouped, True), "step_xla_alone": step(list, True)}


def mirrored_steps():
    """The same reductions by TensorFlow's own strategy, whose cluster the ranks of this job are."""
    ports = hvd.allgather_object(free_port())
    os.environ["TF_CONFIG"] = json.dumps({"cluster": {"worker": [f"127.0.0.1:{port}" for port in ports]},
                                          "task": {"type": "worker", "index": hvd.rank()}})
    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    tensors = gradients()

    def replica():
        context = tf.distribute.get_replica_context()
        return context.all_reduce(tf.distribute.ReduceOp.SUM, [tensor * 1.0001 for tensor in tensors])

    reduced = tf.function(lambda: strategy.run(replica), autograph=False)
    alone = tf.function(lambda: strategy.run(lambda: [tensor * 1.0001 for tensor in tensors]), autograph=False)
    return {"step_mirrored": reduced, "step_mirrored_alone": alone}


def free_port():
    import socket
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return probe.getsockname()[1]


def measured(functions, count, rounds, factor):
    """Median of each over the rounds, which begin together."""
    times = {name: [] for name in functions}
    for number in range(rounds + 1):
        for name, function in functions.items():
            hvd.barrier()
            began = time.perf_counter()
            for _ in range(count):
                function()
            if number > 0:  # the first one traces
                times[name].append((time.perf_counter() - began) / count * factor)
    return {name: round(statistics.median(all_of_it), 2) for name, all_of_it in times.items()}


def main():
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--rounds", type=int, default=9)
    arguments.add_argument("--calls", type=int, default=300)
    arguments.add_argument("--steps", type=int, default=5)
    arguments.add_argument("--mirrored", action="store_true")
    arguments.add_argument("--only-steps", action="store_true")
    arguments.add_argument("--json", metavar="FILE")
    options = arguments.parse_args()
    hvd.init()
    result = {"tensorflow": tf.__version__, "ranks": hvd.size()}
    if options.mirrored:
        result.update(measured(mirrored_steps(), options.steps, options.rounds, 1e3))
    else:
        if not options.only_steps:
            result.update(measured(calls(), options.calls, options.rounds, 1e6))
        result.update(measured(steps(), options.steps, options.rounds, 1e3))
    if hvd.rank() == 0:
        print(json.dumps(result), flush=True)
        if options.json:
            with open(options.json, "w", encoding="utf-8") as file:
                json.dump(result, file)
    hvd.barrier()
    if options.mirrored:
        sys.stdout.flush()
        os._exit(0)  # the strategy's servers do not end by themselves
    hvd.shutdown()


if __name__ == "__main__":
    main()
