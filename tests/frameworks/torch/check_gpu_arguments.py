"""Wrong arguments of what is called for GPUs are said in a sentence that names the function; no GPU is needed to be told so."""

from unittest import mock

import torch

import coordd.torch as hvd
from coordd import _running
from coordd.exceptions import CoorddError
from values import expect, expect_error


def check_what_is_no_memory_of_a_gpu_is_not_registered():
    for name in ("register_memory", "unregister_memory"):
        call = getattr(hvd, name)
        expect_error(TypeError, lambda: call(None), f"{name}: found NoneType, expected a contiguous torch tensor on a GPU")
        expect_error(TypeError, lambda: call([torch.ones(2)]), f"{name}: found list, expected a contiguous torch tensor on a GPU")
        expect_error(ValueError, lambda: call(torch.ones(2)), f"{name}: found a tensor on cpu, expected a contiguous one on a GPU")
        for tensor in (torch.ones(4, 4).t(), torch.ones(2).to_sparse()):
            expect_error(ValueError, lambda: call(tensor), f"{name}: found a tensor that is not contiguous on cpu")


def check_sets_and_timeouts_are_what_they_are_to_be():
    for name in ("prepare_graphs", "check_graphs"):
        call = getattr(hvd, name)
        for wrong in (None, 7):
            expect_error(TypeError, lambda: call(process_set=wrong), f"{name}: process_set is {wrong}, expected a ProcessSet")
        expect_error(ValueError, lambda: call(process_set=hvd.ProcessSet([0])), f"{name}: ", "is not registered, expected one that was given")
        for wrong in ("x", None, True):
            expect_error(TypeError, lambda: call(timeout=wrong), f"{name}: timeout is {wrong!r}, expected a number of seconds")
        for wrong in (-1, float("nan")):
            expect_error(ValueError, lambda: call(timeout=wrong), f"{name}: timeout is {wrong}, expected 0 or more seconds")


def check_devices_are_named_as_torch_names_them():
    given = []
    with mock.patch("coordd.torch._graphs.call", lambda _what, _function, _set, device, _timeout: given.append(device.value)):
        for device in (1, "cuda:1", torch.device("cuda", 1), torch.device("cuda:1")):
            hvd.prepare_graphs(device=device)
        with mock.patch("torch.cuda.is_available", lambda: True), mock.patch("torch.cuda.current_device", lambda: 1):
            for device in (None, "cuda", torch.device("cuda")):
                hvd.prepare_graphs(device=device)
        for device in (torch.device("cpu"), "cpu", "gpu one", -1, "cuda:-1"):
            expect_error(ValueError, lambda: hvd.prepare_graphs(device=device), f"prepare_graphs: device is {device!r}, expected this rank's GPU")
        for device in (1.5, [0], True):
            expect_error(TypeError, lambda: hvd.prepare_graphs(device=device), f"prepare_graphs: device is {device!r}, expected this rank's GPU")
    assert given == [1] * 7, given


def check_without_a_gpu_it_is_coordd_that_says_so():
    if torch.cuda.is_available():
        return
    error = expect_error(NotImplementedError, lambda: hvd.prepare_graphs(), "prepare_graphs: ")
    assert isinstance(error, CoorddError) and "NVIDIA driver on your system" not in str(error), error
    if hasattr(torch.cuda, "MemPool"):
        expect_error(NotImplementedError, hvd.mem_pool, "mem_pool: torch ", "finds no GPU, expected one on this rank")
    with mock.patch.object(_running.state, "worker", None):
        for call in (hvd.prepare_graphs, hvd.check_graphs):
            expect_error(hvd.HorovodInternalError, call, "coordd is not initialised: call init() first")
    expect_error(ValueError, hvd.check_graphs, "check_graphs: process set 0 has no communicator for CUDA graphs")
    expect(hvd.allreduce(torch.ones(2)), torch.ones(2))
