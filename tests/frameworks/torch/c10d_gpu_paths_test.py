"""The calls of coordd.torch.distributed for GPUs, where there is none: tensors in host memory are taken for a GPU's, and what torch's
streams do is left out. What order streams give is for a GPU to show (check_c10d_gpu).

    python3 tests/frameworks/torch/c10d_gpu_paths_test.py 2,3
"""

import contextlib
import sys

import c10d_ranks
import torch


def replace(name, value, *modules):
    for module in modules:
        assert hasattr(module, name), f"{module.__name__} has no {name} any more"
        setattr(module, name, value)


def take_host_for_gpu():
    from coordd.torch.distributed import _calls, _exchanges, _gpu, _gpu_works, _point_to_point, _reductions

    kept = []

    def on_gpu(what, *lists):
        tensors = [tensor for tensors in lists for tensor in tensors]
        # On GPUs there are no sparse ones here.
        return not _calls.on_gpu(what, *lists) and bool(tensors) and not any(tensor.is_sparse for tensor in tensors)

    replace("raw_stream", lambda _: 0, _gpu, _gpu_works)
    replace("_Waiting", lambda *arguments: kept.append(arguments), _gpu_works)  # None: a work in host memory
    replace("capturing", lambda: True, _gpu_works)  # so that no event is recorded
    replace("device", lambda _: contextlib.nullcontext(), torch.cuda)
    replace("on_gpu", on_gpu, _reductions, _exchanges, _point_to_point)
    replace("plain", lambda _: False, _reductions, _exchanges)  # which goes past on_gpu
    plain = _calls.plain
    replace("plain_on_gpu", lambda one, other=None: plain(one) and (other is None or plain(other)), _reductions, _exchanges)


if __name__ == "__main__":
    if c10d_ranks.torch_version() >= (2, 1):
        take_host_for_gpu()
    sys.modules["c10d_ranks"] = c10d_ranks
    sys.argv[2:] = ["check_c10d_collectives"]
    c10d_ranks.main()
