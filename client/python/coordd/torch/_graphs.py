"""Collectives in CUDA graphs (torch.cuda.graph).

    hvd.prepare_graphs()                               # all ranks, before the capture
    with torch.cuda.graph(graph):
        hvd.allreduce_(gradient)
    hvd.check_graphs()                                 # all ranks: that they have captured the same
    graph.replay()
"""

from ctypes import c_double, c_int32
from typing import Optional, Union

import torch

from coordd import _basics
from coordd.process_sets import ProcessSet, global_process_set
from coordd.torch._arguments import gpu_of, seconds_of, set_of
from coordd.torch._gpu_memory import call


def capturing() -> bool:
    """Whether torch's current stream is captured."""
    return torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing()


def is_captured(tensor: torch.Tensor) -> bool:
    """Whether what is enqueued for it now becomes a part of a graph."""
    if not isinstance(tensor, torch.Tensor) or not tensor.is_cuda:
        return False
    with torch.cuda.device(tensor.device):
        return capturing()


def prepare_graphs(process_set: ProcessSet = global_process_set, device: Union[None, int, str, torch.device] = None,
                   timeout: float = 0.0) -> None:
    """Makes a communicator for collectives that are captured into CUDA graphs; every rank of the set calls it, once in each
    generation. Captured can be allreduce, reducescatter, allgather and broadcast in all their forms, if they are of equal
    shapes on all ranks; what they return is there, in the stream's order, with each replay. All ranks capture the same calls
    in the same order, and replay their graphs in the same order.

    device: this rank's GPU, as 0, "cuda:0" or torch.device("cuda", 0); None: torch's current one. timeout: seconds for the others
    to come; 0: COORDD_TIMEOUT.
    When a rank is lost, what was captured leaves NaN: prepare again, and capture again, in the next generation.
    HorovodInternalError: a rank was lost or did not come. NotImplementedError or ValueError: not all ranks have NCCL, or the
    device is another one than that of this rank's tensors. TypeError, ValueError, on this rank alone: a wrong argument.
    """
    what = "prepare_graphs"
    seconds, number = seconds_of(what, timeout), set_of(what, process_set)
    _basics.worker()  # before init() that is what is said, and nothing of a GPU
    call(what, "coordd_graphs_prepare", c_int32(number), c_int32(gpu_of(what, device)), c_double(seconds))


def check_graphs(process_set: ProcessSet = global_process_set, timeout: float = 0.0) -> None:
    """Compares what the ranks of the set have captured; every one of them calls it, before the first replay. ValueError, on
    all of them: the first call that differs, and whose it is: a replay would hang, or leave what is no result."""
    what = "check_graphs"
    seconds, number = seconds_of(what, timeout), set_of(what, process_set)
    call(what, "coordd_graphs_check", c_int32(number), c_double(seconds))
