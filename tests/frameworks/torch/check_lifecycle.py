"""Joining and leaving again and again, forks, data loaders, and a rank that leaves while others work."""

import json
import multiprocessing
import os
import sys
import tempfile
import time

import torch
from torch.utils.data import DataLoader, Dataset

import coordd.torch as hvd
from ranks import on_sizes
from values import expect, expect_error

CYCLES = 100


class Squares(Dataset):
    """What a data loader's workers read; they may ask for their rank where they were forked from a member."""

    def __init__(self, ask_rank):
        self.ask_rank = ask_rank

    def __len__(self):
        return 24

    def __getitem__(self, index):
        return torch.tensor([index * index, hvd.rank() if self.ask_rank else -1])


def check_a_second_init_does_nothing():
    place = (hvd.rank(), hvd.size())
    hvd.init()
    assert (hvd.rank(), hvd.size()) == place


def check_everything_says_that_init_is_missing():
    comm = list(range(hvd.size()))
    pending = hvd.allreduce_async(torch.ones(2))
    expect(hvd.synchronize(pending), torch.ones(2))
    hvd.shutdown()
    hvd.shutdown()
    assert not hvd.is_initialized()
    for ask in (hvd.rank, hvd.size, hvd.local_rank, hvd.local_size, hvd.cross_rank, hvd.cross_size, hvd.is_homogeneous):
        expect_error(ValueError, ask, "init()")
    tensor = torch.ones(2)
    for call in (lambda: hvd.allreduce(tensor), lambda: hvd.allgather(tensor), lambda: hvd.broadcast(tensor, 0),
                 lambda: hvd.alltoall(tensor), lambda: hvd.reducescatter(tensor), lambda: hvd.grouped_allreduce([tensor]),
                 lambda: hvd.reduce_scatter_tensor(tensor, tensor), lambda: hvd.reduce(tensor, 0), hvd.barrier, hvd.join,
                 lambda: hvd.add_process_set([0])):
        expect_error(hvd.HorovodInternalError, call, "init()")
    hvd.init(comm=comm)
    assert hvd.is_initialized()


@on_sizes(2)
def check_a_hundred_cycles_of_init_and_shutdown():
    comm = list(range(hvd.size()))
    for cycle in range(CYCLES):
        expect(hvd.allreduce(torch.full((4,), float(cycle + hvd.rank()))), torch.full((4,), cycle + (hvd.size() - 1) / 2))
        hvd.shutdown()
        hvd.init(comm=comm)
    assert len(os.listdir("/proc/self/fd")) < 200, "file descriptors are left behind"


@on_sizes(2, 4)
def check_a_rank_that_leaves_is_named():
    comm = list(range(hvd.size()))
    hvd.barrier()
    leaver = hvd.size() - 1
    if hvd.rank() != leaver:
        error = expect_error(hvd.HorovodInternalError, lambda: hvd.allreduce(torch.ones(2), name="late"),
                             f"rank {leaver}", "left")
        assert error.rank == leaver and error.generation >= 1, (error.rank, error.generation)
        expect_error(hvd.HorovodInternalError, lambda: hvd.allreduce(torch.ones(2)), f"rank {leaver}")
    hvd.shutdown()
    hvd.init(comm=comm)
    expect(hvd.allreduce(torch.ones(2)), torch.ones(2))


@on_sizes(3)
def check_a_job_of_some_ranks_in_an_order_of_their_own():
    comm = list(range(hvd.size()))
    old_rank = hvd.rank()
    hvd.shutdown()
    if old_rank == 1:
        expect_error(ValueError, lambda: hvd.init(comm=[2, 0]), "rank 1", "[2, 0]")
    else:
        hvd.init(comm=[2, 0])
        assert hvd.size() == 2 and hvd.rank() == [2, 0].index(old_rank), hvd.rank()
        expect(hvd.allgather(torch.tensor([old_rank])), torch.tensor([2, 0]))
        hvd.shutdown()
    expect_error(ValueError, lambda: hvd.init(comm=[0, 0]), "once")
    hvd.init(comm=comm)


class Communicator:
    """What init uses of mpi4py's."""

    def __init__(self, rank, size, share):
        self._rank, self._size, self._share = rank, size, share

    def Get_rank(self):
        return self._rank

    def Get_size(self):
        return self._size

    def bcast(self, value, root):
        assert (value is not None) == (self._rank == root)
        return self._share


@on_sizes(2)
def check_a_job_of_a_communicator():
    comm = list(range(hvd.size()))
    rank = hvd.rank()
    hvd.shutdown()
    hvd.init(comm=Communicator(1 - rank, 2, "of.a.communicator"))
    assert (hvd.rank(), hvd.size()) == (1 - rank, 2)
    hvd.shutdown()
    hvd.init(comm=comm)


def check_a_forked_child_is_told_once_and_clearly():
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        said = []
        for call in (lambda: hvd.allreduce(torch.ones(2)), hvd.barrier, lambda: hvd.init()):
            try:
                call()
            except hvd.HorovodInternalError as error:
                said.append(str(error))
        answer = f"{hvd.rank()} {hvd.size()} {hvd.is_initialized()} {len(set(said))} {said[0]}"
        hvd.shutdown()  # nothing to do, and nothing that hangs
        os.write(writing, answer.encode())
        sys.stdout.flush()
        os._exit(0)
    os.close(writing)
    with open(reading, "rb") as answer:
        text = answer.read().decode()
    assert os.waitpid(child, 0)[1] == 0
    assert text.startswith(f"{hvd.rank()} {hvd.size()} False 1 "), text
    assert "forked" in text and "forkserver" in text and str(os.getpid()) in text, text
    expect(hvd.allreduce(torch.ones(2)), torch.ones(2))


@on_sizes(2)
def check_data_loaders_that_fork():
    for _ in range(2):
        read = []
        for batch in DataLoader(Squares(ask_rank=True), batch_size=4, num_workers=2):
            read += batch[:, 0].tolist()
            assert batch[:, 1].tolist() == [hvd.rank()] * 4
            expect(hvd.allreduce(batch.float(), op=hvd.Sum)[:, 0], batch[:, 0].float() * hvd.size())
        assert sorted(read) == [index * index for index in range(24)]


@on_sizes(2)
def check_data_loaders_by_forkserver():
    multiprocessing.set_forkserver_preload(["torch"])
    loader = DataLoader(Squares(ask_rank=False), batch_size=4, num_workers=2, multiprocessing_context="forkserver")
    read = []
    for batch in loader:
        read += batch[:, 0].tolist()
        expect(hvd.allreduce(batch.float(), op=hvd.Sum)[:, 0], batch[:, 0].float() * hvd.size())
    assert sorted(read) == [index * index for index in range(24)]


def wait_for_text(path, text, patience_s=30):
    """Whether the file has the text, or gets it in time."""
    end = time.monotonic() + patience_s
    while time.monotonic() < end:
        with open(path, encoding="utf-8") as file:
            if text in file.read():
                return True
        time.sleep(0.01)
    return False


def check_timelines_that_start_and_stop():
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "timeline.json")
        hvd.start_timeline(path, mark_cycles=True)
        hvd.allreduce(torch.ones(7), name="in the timeline")
        if hvd.rank() == 0:  # it is in the file while the timeline goes on and nothing else happens
            assert wait_for_text(path, "in the timeline"), open(path, encoding="utf-8").read()
        hvd.stop_timeline()
        hvd.allreduce(torch.ones(7), name="behind it")
        assert os.path.exists(path) == (hvd.rank() == 0)
        every = os.path.join(folder, "{rank}.json")
        hvd.start_timeline(every)
        try:
            hvd.start_timeline(every)
            raise AssertionError("two at a time")
        except hvd.HorovodInternalError as error:
            assert "already" in str(error), error
        hvd.allreduce(torch.ones(7), name="of every rank")
        hvd.stop_timeline()
        hvd.stop_timeline()
        assert os.path.exists(os.path.join(folder, f"{hvd.rank()}.json"))
        if hvd.rank() == 0:
            with open(path, encoding="utf-8") as file:
                events = json.load(file)
            names = {event["name"] for event in events if event["ph"] == "X"}
            assert any("in the timeline" in name for name in names) and not any("behind it" in name for name in names), names
            assert "NEGOTIATE_ALLREDUCE" in names, names
            assert any(event["name"] == "CYCLE_START" for event in events), events
            began, = [event["args"] for event in events if event["name"] == "start_time_since_epoch_in_micros"]
            assert abs(began["start_time_since_epoch_in_micros"] / 1e6 - time.time()) < 300, began
            try:
                hvd.start_timeline(os.path.join(folder, "missing", "timeline.json"))
                raise AssertionError("in a folder that is not there")
            except ValueError as error:
                assert "missing" in str(error), error
        hvd.barrier()
