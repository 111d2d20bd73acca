"""Runs checks of coordd.tensorflow and coordd.keras inside ranks that were started once.

    coordrun -np 4 -- python3 tests/frameworks/tensorflow/ranks.py --sizes 1,2,3,4 check_operations check_graphs ...

As tests/frameworks/torch/ranks.py: for each size the first so many ranks form a job of their own and run every function of the modules
whose name starts with ``check_``. TensorFlow has one thread for ops that run beside each other, so that one that waits would show.
"""

import argparse
import faulthandler
import importlib
import os
import sys
import time
import traceback

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))
sys.path.insert(0, os.path.join(ROOT, "client", "python"))
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("COORDD_TIMEOUT", "60")

try:
    import tensorflow as tf  # noqa: E402
except ModuleNotFoundError as missing:
    if missing.name != "tensorflow":  # it is there, and lacks something
        raise
    print(f"SKIPPED: {missing}; tools/test-frameworks --tensorflow makes an environment that has it", file=sys.stderr)
    sys.exit(77)

import coordd.tensorflow as hvd  # noqa: E402

PATIENCE_S = float(os.environ.get("COORDD_TEST_PATIENCE_S", "840"))


def on_sizes(*sizes):
    """Marks a check that needs certain numbers of ranks."""

    def mark(check):
        check.sizes = sizes
        return check

    return mark


def run(modules, size):
    count = 0
    for module in modules:
        for name, check in list(vars(module).items()):
            if not name.startswith("check_") or not callable(check) or size not in getattr(check, "sizes", (size,)):
                continue
            try:
                check()
            except BaseException:
                print(f"FAILED: {module.__name__}.{name} on rank {hvd.rank()} of {size}", file=sys.stderr)
                traceback.print_exc()
                sys.stderr.flush()
                os._exit(1)  # the others wait in the collective; coordrun ends them
            count += 1
    return count


def of_keras_3(modules):
    """Those whose checks are written for it; programs_test.py has programs of Keras 2."""
    return [name for name in modules if name in ("check_training", "check_fit", "check_elastic", "check_arguments")]


def main():
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--sizes", default="", help="numbers of ranks, each a job of its own; default: all ranks")
    arguments.add_argument("modules", nargs="+")
    options = arguments.parse_args()
    if of_keras_3(options.modules) and int(importlib.import_module("keras").__version__.split(".")[0]) < 3:
        print(f"SKIPPED: {', '.join(of_keras_3(options.modules))}: with Keras 3 only", file=sys.stderr)
        sys.exit(77)
    faulthandler.dump_traceback_later(PATIENCE_S, exit=True)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    started, own = int(os.environ["COORDD_SIZE"]), int(os.environ["COORDD_RANK"])
    modules = [importlib.import_module(name) for name in options.modules]
    for size in [int(size) for size in options.sizes.split(",") if size] or [started]:
        if own < size:
            began = time.monotonic()
            hvd.init(comm=list(range(size)))
            count = run(modules, size)
            if own == 0:
                print(f"{count} checks on {size} ranks in {time.monotonic() - began:.1f} s", flush=True)
            hvd.shutdown()
    hvd.init()  # all ranks again, so that none ends while others work
    hvd.barrier()
    hvd.shutdown()


if __name__ == "__main__":
    sys.modules["ranks"] = sys.modules["__main__"]
    main()
