"""What goes wrong, and what the program is told."""

import threading
import time

import torch

import coordd.torch as hvd
from coordd.exceptions import CoorddError, InvalidArgumentError
from ranks import on_sizes
from values import expect, expect_error


def check_wrong_arguments_are_value_errors_at_the_call():
    good = torch.ones(4, 4)
    quantized = torch.quantize_per_tensor(good, 0.1, 0, torch.quint8)
    for call in (hvd.allreduce, hvd.allreduce_, hvd.allreduce_async, hvd.allgather, hvd.reducescatter, hvd.alltoall,
                 lambda tensor: hvd.broadcast(tensor, 0), lambda tensor: hvd.grouped_allreduce([good, tensor]),
                 lambda tensor: hvd.grouped_allgather([good, tensor])):
        error = expect_error(ValueError, lambda: call(torch.ones(4, 4, device="meta")), "meta", "expected cpu or cuda")
        assert isinstance(error, CoorddError) and error.code == "INVALID_ARGUMENT"
        expect_error(ValueError, lambda: call(quantized), "quint8", "float32")
    expect_error(ValueError, lambda: hvd.allreduce(good, average=True, op=hvd.Sum), "average")
    expect_error(ValueError, lambda: hvd.allreduce(good, op=17), "17")
    expect_error(ValueError, lambda: hvd.allreduce(good, op=hvd.Sum, prescale_factor=0.0), "factor")
    expect_error(ValueError, lambda: hvd.allreduce(torch.ones(2, dtype=torch.bool)), "bool", "average")
    expect_error(ValueError, lambda: hvd.broadcast(good, hvd.size()), str(hvd.size()))
    expect_error(ValueError, lambda: hvd.broadcast(good, -1))
    expect_error(ValueError, lambda: hvd.allgather(torch.tensor(1.0)), "dimension")
    expect_error(ValueError, lambda: hvd.reducescatter(torch.tensor(1.0)), "dimension")
    expect_error(ValueError, lambda: hvd.grouped_allreduce([]), "at least one")
    expect_error(ValueError, lambda: hvd.allreduce(good, name="a\0b"), "zero")
    expect_error(ValueError, lambda: hvd.allreduce(good.to_sparse()), "sparse")
    expect_error(ValueError, lambda: hvd.sparse_allreduce_async(good, name="d", op=hvd.Sum), "dense")
    expect_error(ValueError, lambda: hvd.sparse_allreduce_async(good.to_sparse(), name="d", op=hvd.Max), "Average or Sum")
    expect_error(ValueError, lambda: hvd.allreduce(good, process_set=hvd.ProcessSet([0])), "not registered")
    expect_error(ValueError, lambda: hvd.allreduce(torch.empty(3, device="meta")), "meta")
    expect(hvd.allreduce(good), good)  # none of it has put the ranks out of step


def check_adasum_is_refused_with_a_sentence():
    error = expect_error(NotImplementedError, lambda: hvd.allreduce(torch.ones(2), op=hvd.Adasum), "Adasum", "Average")
    assert isinstance(error, CoorddError)


def check_a_handle_is_used_once():
    handle = hvd.allreduce_async(torch.ones(2))
    assert isinstance(handle, int)
    expect(hvd.synchronize(handle), torch.ones(2))
    assert hvd.synchronize(handle) is None
    expect_error(ValueError, lambda: hvd.poll(handle), str(handle))
    expect_error(ValueError, lambda: hvd.poll(-1), "-1")


def check_poll_becomes_true():
    handle = hvd.allreduce_async(torch.ones(2))
    while not hvd.poll(handle):  # no barrier in here: ranks may see it become true in different rounds
        time.sleep(0.001)
    expect(hvd.synchronize(handle), torch.ones(2))


@on_sizes(2, 3, 4)
def check_a_name_that_is_pending_is_refused():
    hvd.barrier()
    if hvd.rank() == 0:  # pending for sure: the others submit after the barrier
        handle = hvd.allreduce_async(torch.ones(2), name="twice")
        error = expect_error(ValueError, lambda: hvd.allreduce_async(torch.ones(2), name="twice"), "allreduce.twice")
        assert error.code == "ALREADY_EXISTS" and error.tensor == "allreduce.twice"
        hvd.barrier()
    else:
        hvd.barrier()
        handle = hvd.allreduce_async(torch.ones(2), name="twice")
    expect(hvd.synchronize(handle), torch.ones(2))
    expect(hvd.allreduce(torch.ones(2), name="twice"), torch.ones(2))


@on_sizes(2, 3, 4)
def check_ranks_that_disagree_are_told_so():
    first = hvd.rank() == 0
    disagreements = [
        ("shape", lambda name: hvd.allreduce(torch.ones(3 if first else 4), name=name)),
        ("dimensions", lambda name: hvd.allreduce(torch.ones((2, 2) if first else (4,)), name=name)),
        ("dtype", lambda name: hvd.allreduce(torch.ones(2, dtype=torch.float64 if first else torch.float32), name=name)),
        ("op", lambda name: hvd.allreduce(torch.ones(2), op=hvd.Sum if first else hvd.Max, name=name)),
        ("factor", lambda name: hvd.allreduce(torch.ones(2), prescale_factor=2.0 if first else 3.0, name=name)),
        ("root", lambda name: hvd.broadcast(torch.ones(2), 0 if first else 1, name=name)),
        ("tail", lambda name: hvd.allgather(torch.ones(2, 3 if first else 4), name=name)),
        ("rows", lambda name: hvd.reducescatter(torch.ones(4 if first else 5), name=name)),
    ]
    for what, call in disagreements:
        error = expect_error(hvd.HorovodInternalError, lambda: call(what), what, "rank 0")
        assert error.code == "INVALID_ARGUMENT" and error.rank is not None, error
        assert error.tensor.endswith(what), error.tensor
        assert not isinstance(error, ValueError)
        expect(hvd.allreduce(torch.ones(2), name=what + ".after"), torch.ones(2))


@on_sizes(2, 3, 4)
def check_one_bad_tensor_fails_its_group_and_nothing_else():
    shapes = [(2,), (3,) if hvd.rank() == 0 else (4,), (5,)]
    beside = hvd.allreduce_async(torch.ones(2), name="beside")
    expect_error(hvd.HorovodInternalError, lambda: hvd.grouped_allreduce([torch.ones(shape) for shape in shapes]),
                 "grouped_allreduce")
    expect(hvd.synchronize(beside), torch.ones(2))


def check_gradient_of_a_failure_is_no_result():
    if hvd.size() == 1:
        return
    tensor = torch.ones(2 + hvd.rank(), requires_grad=True)
    expect_error(hvd.HorovodInternalError, lambda: hvd.allreduce(tensor), "allreduce.noname.0")


def check_ranks_may_submit_in_different_orders():
    names = [f"tensor.{index}" for index in range(40)]
    order = torch.randperm(len(names), generator=torch.Generator().manual_seed(hvd.rank())).tolist()
    handles = {index: hvd.allreduce_async(torch.full((index + 1,), float(index)), name=names[index], op=hvd.Sum)
               for index in order}
    for index in reversed(order):
        expect(hvd.synchronize(handles[index]), torch.full((index + 1,), float(index * hvd.size())))


def check_threads_may_submit_and_wait():
    failures = []

    def work(number):
        try:
            for step in range(20):
                expect(hvd.allreduce(torch.full((3,), float(step)), name=f"thread.{number}", op=hvd.Sum),
                       torch.full((3,), float(step * hvd.size())))
        except BaseException as error:  # reported by the thread that checks
            failures.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures, failures


def check_unnamed_operations_may_be_synchronized_in_any_order():
    for _ in range(3):
        handles = [hvd.allreduce_async(torch.full((2,), float(index)), op=hvd.Sum) for index in range(6)]
        order = torch.randperm(6, generator=torch.Generator().manual_seed(hvd.rank())).tolist()
        for index in order[:3]:
            expect(hvd.synchronize(handles[index]), torch.full((2,), float(index * hvd.size())))
        expect(hvd.allreduce(torch.full((2,), 7.0)), torch.full((2,), 7.0))  # between: all ranks must meet here
        for index in order[3:]:
            expect(hvd.synchronize(handles[index]), torch.full((2,), float(index * hvd.size())))


def check_inputs_live_until_the_result_is_there():
    handles = [hvd.allreduce_async(torch.full((1000,), float(index)), op=hvd.Sum) for index in range(50)]
    trash = [torch.full((1000,), -1.0) for _ in range(50)]  # where freed inputs would have been
    for index, handle in enumerate(handles):
        expect(hvd.synchronize(handle), torch.full((1000,), float(index * hvd.size())))
    del trash


def check_the_builds_answers_have_horovods_types():
    for answer in (hvd.mpi_built, hvd.mpi_enabled, hvd.ddl_built, hvd.ccl_built, hvd.rocm_built, hvd.mpi_threads_supported):
        assert answer() is False
    assert hvd.gloo_built() is True and hvd.gloo_enabled() is True  # programs ask whether one of the two is there
    assert hvd.check_extension("horovod.torch", "HOROVOD_WITH_PYTORCH", __file__, "mpi_lib_v2") is None
    assert type(hvd.cuda_built()) is bool and type(hvd.nccl_built()) is int  # what they are: package_test.py
    assert hvd.is_homogeneous() is True
    assert (hvd.Average, hvd.Sum, hvd.Adasum, hvd.Min, hvd.Max, hvd.Product) == (0, 1, 2, 3, 4, 5)
    assert hvd.local_size() == hvd.size() and hvd.local_rank() == hvd.rank()
    assert (hvd.cross_rank(), hvd.cross_size()) == (0, 1)
    assert issubclass(InvalidArgumentError, ValueError) and issubclass(hvd.HorovodInternalError, RuntimeError)
