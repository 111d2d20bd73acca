"""torch.distributed over coordd on a GPU, two ranks, of which one is killed in training: the other is told who it was, and ends. A stage
of tests/gpu/run."""

import os
import signal
import sys
import tempfile
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import coordd.torch.distributed  # noqa: F401  (the backend)

STEPS, LAST = 30, 20  # rank 1 has made so many when it is killed


def train(rank, folder):
    os.environ.update(COORDD_ALLOW_SHARED_GPU="1", NCCL_HOSTID=f"rank{rank}")
    torch.cuda.set_device(rank % torch.cuda.device_count())
    dist.init_process_group("coordd", init_method=f"file://{folder}/store", rank=rank, world_size=2)
    model = DistributedDataParallel(torch.nn.Sequential(torch.nn.Linear(512, 2048), torch.nn.ReLU(), torch.nn.Linear(2048, 512)).cuda())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    begun = time.monotonic()
    for step in range(STEPS):
        if rank == 1 and step == LAST:
            os.kill(os.getpid(), signal.SIGKILL)
        begun = time.monotonic()
        try:
            optimizer.zero_grad()
            model(torch.randn(64, 512, device="cuda")).square().mean().backward()
            optimizer.step()
            torch.cuda.synchronize()
        except Exception as error:
            return f"{type(error).__name__} after {1e3 * (time.monotonic() - begun):.0f} ms: {error}"
    return "no error"


def main():
    with tempfile.TemporaryDirectory(prefix="coordd-c10d-") as folder:
        reading, writing = os.pipe()
        ranks = []
        for rank in range(2):
            ranks.append(os.fork())
            if ranks[-1] == 0:
                os.write(writing, f"{train(rank, folder)}\n".encode())
                os._exit(3)
        os.close(writing)
        statuses = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in ranks]
        said = os.fdopen(reading).read()
    print(f"exit statuses {statuses}; rank 0: {said}", flush=True)
    named = "rank 1" in said and "was lost" in said
    print(f"# the other rank is told who was lost: {'yes' if named else 'no'} (bar: yes) {'met' if named else 'MISSED'}")
    return 0 if named and statuses == [3, -signal.SIGKILL] else 1


if __name__ == "__main__":
    sys.exit(main())
