"""torch.distributed.all_reduce on CUDA tensors over a process group of coordd's beside torch's own NCCL group, in the same processes, in
turns: how long the call takes the program, and how long until the device is through.

    coordrun -np 2 -- bash -c 'NCCL_HOSTID=rank$COORDD_RANK exec python3 bench/gpu/c10d.py'    # two ranks on one GPU

Prints a row for each size and group, in microseconds, and behind "# " what coordd's takes over NCCL's.
"""

import argparse
import os
import statistics
import time

import torch
import torch.distributed as dist

import coordd.torch.distributed  # noqa: F401  (the backend)

COLUMNS = "group,ranks,bytes,calls,call_and_wait_p50_us,call_and_wait_p99_us,through_p50_us"


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", default="4,4096,262144,16777216,67108864", help="bytes")
    parser.add_argument("--rounds", type=int, default=20, help="turns of each group")
    parser.add_argument("--calls", type=int, default=8, help="of a turn: coordd has 16 batches on the device at most")
    return parser.parse_args()


def turn(group, tensor, calls, hosts, throughs):
    """`hosts`: microseconds of each call with the wait of the stream; `throughs`: of all of them until the device is through, by call."""
    torch.cuda.synchronize()
    dist.barrier()
    torch.cuda.synchronize()
    begun = time.perf_counter()
    for _ in range(calls):
        before = time.perf_counter()
        dist.all_reduce(tensor, group=group, async_op=True).wait()
        hosts.append(1e6 * (time.perf_counter() - before))
    torch.cuda.synchronize()
    throughs.append(1e6 * (time.perf_counter() - begun) / calls)


def measure(groups, size, options):
    tensor = torch.zeros(max(1, size // 4), device="cuda")
    hosts, throughs = {name: [] for name in groups}, {name: [] for name in groups}
    for name, group in groups.items():
        turn(group, tensor, options.calls, [], [])
    for _ in range(options.rounds):
        for name, group in groups.items():
            turn(group, tensor, options.calls, hosts[name], throughs[name])
    if dist.get_rank() != 0:
        return
    for name in groups:
        ordered = sorted(hosts[name])
        print(f"{name},{dist.get_world_size()},{size},{len(ordered)},{statistics.median(ordered):.1f},"
              f"{ordered[int(0.99 * len(ordered))]:.1f},{statistics.median(throughs[name]):.1f}", flush=True)
    call = statistics.median(hosts["coordd"]) / statistics.median(hosts["nccl"])
    through = statistics.median(throughs["coordd"]) / statistics.median(throughs["nccl"])
    print(f"# all_reduce of {size} bytes over coordd over that over NCCL: the call {call:.2f} times, until the device is through "
          f"{through:.2f} times", flush=True)


def main():
    options = arguments()
    torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")) % torch.cuda.device_count())
    dist.init_process_group("nccl")
    groups = {"nccl": dist.group.WORLD, "coordd": dist.new_group(backend="coordd")}
    if dist.get_rank() == 0:
        print(COLUMNS, flush=True)
    for size in map(int, options.sizes.split(",")):
        measure(groups, size, options)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
