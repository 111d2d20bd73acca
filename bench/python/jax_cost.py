"""What an allreduce of 4 bytes of coordd.jax costs in a compiled function, beside the same function without it.

    coordrun -np 2 -- python3 bench/python/jax_cost.py [--rounds N] [--calls N]

Rank 0 prints one JSON object: microseconds of a call, medians over the rounds.
"""

import argparse
import json
import statistics
import time

import jax
import jax.numpy as jnp

import coordd.jax as hvd


def main():
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--rounds", type=int, default=9)
    arguments.add_argument("--calls", type=int, default=300)
    options = arguments.parse_args()
    hvd.init()
    x = jnp.ones(1)
    functions = {"jit": jax.jit(lambda x: hvd.allreduce(x + 1, name="bench", op=hvd.Sum)), "jit_alone": jax.jit(lambda x: x + 1)}
    times = {name: [] for name in functions}
    for number in range(options.rounds + 1):
        for name, function in functions.items():
            hvd.allreduce(x, name="bench.together")
            began = time.perf_counter()
            for _ in range(options.calls):
                jax.block_until_ready(function(x))
            if number > 0:  # the first one compiles
                times[name].append((time.perf_counter() - began) / options.calls * 1e6)
    if hvd.rank() == 0:
        print(json.dumps({"jax": jax.__version__, "ranks": hvd.size(),
                          **{name: round(statistics.median(all_of_it), 2) for name, all_of_it in times.items()}}), flush=True)
    hvd.shutdown()


if __name__ == "__main__":
    main()
