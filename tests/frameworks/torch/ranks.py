"""Runs checks of coordd.torch inside ranks that were started once.

    coordrun -np 4 -- python3 tests/frameworks/torch/ranks.py --sizes 1,2,3,4 check_reductions check_exchanges ...

For each size the first so many ranks form a job of their own with init(comm=...), run every function of the given modules
whose name starts with ``check_``, in their order in the file, and leave; the other ranks wait for the next size. A check
takes no argument, asserts, and may ask hvd.rank() and hvd.size(). Checks run on all ranks in step: the first that fails
anywhere prints its traceback and ends the run.

A function marked @on_sizes(...) runs on these only.
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

try:
    import torch  # noqa: E402
except ModuleNotFoundError as missing:
    if missing.name != "torch":  # it is there, and lacks something
        raise
    print(f"SKIPPED: {missing}; tools/install-deps --test installs torch for {sys.executable}", file=sys.stderr)
    sys.exit(77)

import coordd.torch as hvd  # noqa: E402

# A run that is stuck says where, before ctest ends it; or tools/test-frameworks, which waits for longer.
PATIENCE_S = float(os.environ.get("COORDD_TEST_PATIENCE_S", "240"))


def on_sizes(*sizes):
    """Marks a check that needs certain numbers of ranks."""

    def mark(check):
        check.sizes = sizes
        return check

    return mark


def checks_of(module, size):
    found = [value for name, value in vars(module).items() if name.startswith("check_") and callable(value)]
    return [check for check in found if size in getattr(check, "sizes", (size,))]


def run(modules, size):
    """Runs all checks in the job that this process is in; how many."""
    count = 0
    for module in modules:
        for check in checks_of(module, size):
            try:
                check()
            except BaseException:
                print(f"FAILED: {module.__name__}.{check.__name__} on rank {hvd.rank()} of {size}", file=sys.stderr)
                traceback.print_exc()
                sys.stderr.flush()
                os._exit(1)  # the others wait in the collective; coordrun ends them
            count += 1
    return count


def main():
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--sizes", default="", help="numbers of ranks, each a job of its own; default: all ranks")
    arguments.add_argument("modules", nargs="+")
    options = arguments.parse_args()

    faulthandler.dump_traceback_later(PATIENCE_S, exit=True)
    torch.set_num_threads(1)
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
