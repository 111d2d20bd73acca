"""Runs checks of coordd.torch.distributed inside ranks that were started once.

    python3 tests/frameworks/torch/c10d_ranks.py 2,3 check_c10d_collectives ...

For each of the sizes so many ranks are forked, since torch takes seconds to import: init_process_group("coordd"), then every function of
the given modules whose name starts with ``check_``, in their order in the file, on all ranks in step. The first that fails anywhere
prints its traceback and ends the run. COORDD_TEST_ONLY: a part of the names of what is run;
COORDD_TEST_NAMES=1: says how long each has taken. COORDD_TEST_NODES=1: each rank is a node of its own, as for
check_c10d_nodes. COORDD_TEST_DEVICE=cuda: on GPUs, but for what is marked by on_host; ranks may share
one.
"""

import datetime
import faulthandler
import importlib
import os
import signal
import sys
import tempfile
import time
import traceback

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))
sys.path.insert(0, os.path.join(ROOT, "client", "python"))

DEVICE = os.environ.get("COORDD_TEST_DEVICE", "cpu")
PATIENCE_S = float(os.environ.get("COORDD_TEST_PATIENCE_S", "240"))  # a run that is stuck says where

try:
    import torch
    import torch.distributed as dist
except ModuleNotFoundError as missing:
    if missing.name != "torch":  # it is there, and lacks something
        raise
    print(f"SKIPPED: {missing}", file=sys.stderr)
    sys.exit(77)


def on_host(check):
    """A check that is for tensors in host memory."""
    check.on_host = True
    return check


def own_device(rank, size):
    """torch's, on which tensors are made from then on."""
    if DEVICE == "cpu":
        return
    if size > torch.cuda.device_count():  # else they are of one host, with NVLink between them where there is one
        os.environ.update(COORDD_ALLOW_SHARED_GPU="1", NCCL_HOSTID=f"rank{rank}")  # else NCCL refuses two ranks on one GPU
    torch.cuda.set_device(rank % torch.cuda.device_count())
    torch.set_default_device("cuda")


def left_out(why):
    """Says of a check that nothing was tried."""
    if dist.get_rank() == 0:
        print(f"  not tried: {sys._getframe(1).f_code.co_name}: {why}", flush=True)


def torch_version():
    return tuple(int(part) for part in torch.__version__.split("+")[0].split(".")[:2])


def run(name):
    module = importlib.import_module(name)
    checks = [value for key, value in vars(module).items()
              if key.startswith("check_") and callable(value) and os.environ.get("COORDD_TEST_ONLY", "") in key
              and (DEVICE == "cpu" or not hasattr(value, "on_host"))]
    began = time.monotonic()
    for check in checks:
        try:
            started = time.monotonic()
            check()
            dist.barrier()
            if os.environ.get("COORDD_TEST_NAMES") and dist.get_rank() == 0:
                print(f"  {check.__name__} {time.monotonic() - started:.2f} s", flush=True)
        except BaseException:
            print(f"FAILED: {name}.{check.__name__} on rank {dist.get_rank()} of {dist.get_world_size()}", file=sys.stderr)
            traceback.print_exc()
            sys.stderr.flush()
            os._exit(1)  # the others wait; coordrun ends them
    if dist.get_rank() == 0:
        print(f"{name}: {len(checks)} checks in {time.monotonic() - began:.1f} s", flush=True)


def main():
    if torch_version() < (2, 1):
        try:
            import coordd.torch.distributed
        except ImportError as refusal:
            assert f"torch {torch.__version__} " in str(refusal) and "expected 2.1 or later" in str(refusal), refusal
            print(f"SKIPPED: {refusal}", file=sys.stderr)
            sys.exit(77)
        raise AssertionError(f"{coordd.torch.distributed} serves torch {torch.__version__}")
    import coordd.torch.distributed  # noqa: F811
    faulthandler.enable()
    for size in map(int, sys.argv[1].split(",")):
        if not all_end_well(size):
            sys.exit(1)


def all_end_well(size):
    with tempfile.TemporaryDirectory(prefix="coordd-c10d-") as folder:
        ranks = {}
        for rank in range(size):
            pid = os.fork()
            if pid == 0:
                be_rank(rank, size, folder)
            ranks[pid] = rank
        well = True
        while ranks:
            pid, status = os.wait()
            rank = ranks.pop(pid)
            if status != 0:
                print(f"rank {rank} of {size} has ended with status {status}", file=sys.stderr, flush=True)
                for other in ranks if well else ():
                    os.kill(other, signal.SIGTERM)
                well = False
        return well


def be_rank(rank, size, folder):
    status = 1
    try:
        faulthandler.dump_traceback_later(PATIENCE_S, exit=True)
        torch.set_num_threads(1)
        own_device(rank, size)
        if sys.argv[2:] == ["check_c10d_nodes"] or os.environ.get("COORDD_TEST_NODES"):
            os.environ["COORDD_NODE_ID"] = f"node-{rank}"
        dist.init_process_group("coordd", init_method=f"file://{folder}/store", rank=rank, world_size=size,
                                timeout=datetime.timedelta(seconds=120))
        for name in sys.argv[2:]:
            run(name)
        dist.destroy_process_group()
        from coordd.torch.distributed import _channel
        _channel.leave_all()
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


if __name__ == "__main__":
    sys.modules["c10d_ranks"] = sys.modules["__main__"]
    main()
