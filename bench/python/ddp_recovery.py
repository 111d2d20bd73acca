#!/usr/bin/env python3
"""How long a DistributedDataParallel program takes to go on without a rank that is killed (coordd.torch.distributed.recover).

    coordrun -np 4 --min-np 1 -- python bench/python/ddp_recovery.py

One rank after the other kills itself in a step, until two are left. For each: milliseconds from the kill until rank 0 has the error,
has recovered, and has done its next step with DistributedDataParallel made anew. With --parameters N (1,000,000) floats.
"""

import argparse
import os
import signal
import sys
import tempfile
import time

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, os.path.join(ROOT, "client", "python"))
os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from torch.nn.parallel import DistributedDataParallel  # noqa: E402

import coordd.torch.distributed as coordd  # noqa: E402

_STEPS_BETWEEN = 20


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parameters", type=int, default=1_000_000)
    options = parser.parse_args()
    dist.init_process_group("coordd")
    names = [tempfile.mktemp(prefix="coordd-kill-") if dist.get_rank() == 0 else None]
    dist.broadcast_object_list(names, 0)
    first_size, me = dist.get_world_size(), dist.get_rank()
    model = torch.nn.Linear(1000, options.parameters // 1000, bias=False)
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    parallel, step, seen = DistributedDataParallel(model), 0, {}
    while step < _STEPS_BETWEEN * (first_size - 1):
        try:
            optimizer.zero_grad()
            loss = parallel(torch.ones(1, 1000)).square().mean()
            if step > 0 and step % _STEPS_BETWEEN == 0 and me == first_size - step // _STEPS_BETWEEN:
                with open(names[0], "w", encoding="ascii") as file:
                    file.write(str(time.monotonic()))
                os.kill(os.getpid(), signal.SIGKILL)
            loss.backward()
        except RuntimeError as error:
            seen["error"] = time.monotonic()
            coordd.recover(error)
            seen["recovered"] = time.monotonic()
            step = coordd.share_newest(step, lambda: step)
            parallel = DistributedDataParallel(model)
            continue
        optimizer.step()
        step += 1
        if seen and dist.get_rank() == 0:
            with open(names[0], encoding="ascii") as file:
                killed = float(file.read())
            done = {**seen, "next step": time.monotonic()}
            print(f"{dist.get_world_size()} of {first_size} ranks:", ", ".join(f"{what} after {(at - killed) * 1e3:.0f} ms"
                                                                                for what, at in done.items()), flush=True)
        seen.clear()
    if dist.get_rank() == 0:
        os.remove(names[0])
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
