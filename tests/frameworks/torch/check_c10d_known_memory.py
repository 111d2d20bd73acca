"""What is in the way of memory that NCCL is to know: all ranks are told of it, nothing stays registered, and models are copied as
before. With the stand-ins of check_c10d_buckets; run by c10d_ranks.py."""

import copy
import io
import os
import pickle
from unittest import mock

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from c10d_ranks import on_host, torch_version
from check_c10d_buckets import Pools, full, halves, has_pools, sharded_model
from check_c10d_collectives import Pool, backend, ranks, refused
from check_c10d_training import close, group_of, model, train


def step(wrapped):
    return wrapped(torch.zeros(1, 6, dtype=torch.float64))


def has_all_gathers():
    return has_pools() and torch_version() >= (2, 14) and dist.get_world_size() > 1


def refused_by(one, kind, words, call):
    """On all ranks, which are told which one it was; a rank that is alone need not be."""
    refused(kind, words if dist.get_world_size() == 1 else f"{words} (rank {one} of the group)", call)


@on_host
def check_the_backend_of_a_group_is_found():
    from coordd.torch.distributed import backend_of
    assert backend_of() is backend() and backend_of(dist.group.WORLD) is backend()
    for name in ("coordd", "gloo"):
        group = group_of(name)
        if name == "coordd":
            assert backend_of(group) is halves(group)
        else:
            refused(ValueError, "backend_of: expected a group whose backend for GPUs is coordd, found ", lambda: backend_of(group))  # noqa: B023
        dist.destroy_process_group(group)
    refused(ValueError, "found int without one", lambda: backend_of(7))
    with mock.patch("coordd.torch.distributed._known_memory.dist", mock.Mock(group=mock.Mock(WORLD=None))):
        refused(ValueError, "found no default group, expected init_process_group", backend_of)


@on_host
def check_a_call_in_a_cuda_graph_is_refused_with_what_can_be_captured():
    from coordd.torch.distributed import _gpu
    gpu = _gpu.GpuCalls(backend()._channel)
    for said, words in (("its stream is being captured into a CUDA graph, and process set 0 has no communicator for CUDA graphs",
                         "expected calls of coordd.torch, such as allreduce_() behind prepare_graphs()"), ("it is over", "it is over")):
        failing = mock.Mock(side_effect=dist.DistBackendError(f"coordd: {said}"))
        with mock.patch.object(backend()._channel, "submit_prepared", failing), mock.patch.object(_gpu, "raw_stream", lambda _: 0):
            refused(dist.DistBackendError, words, lambda: gpu.allreduce_one(torch.ones(2), 1, 1, None))


@on_host
def check_a_model_is_registered_once():
    from coordd.torch.distributed import register_buckets
    if not has_pools():
        return
    pools = Pools()
    with pools.in_place(backend()):
        wrapped = DistributedDataParallel(model(), bucket_cap_mb=0.2)
        first = register_buckets(wrapped)
        refused(ValueError, "registered already, or will be", lambda: register_buckets(wrapped))
        first.deregister()
        assert not wrapped._forward_pre_hooks
        second = register_buckets(wrapped)
        train(wrapped)
        assert second.registered and not first.registered
        refused(ValueError, "registered already, or will be", lambda: register_buckets(wrapped))
        second.deregister()


@on_host
def check_join_is_refused_as_long_as_buckets_are_registered():
    from coordd.torch.distributed import register_buckets
    if not has_pools():
        return
    with Pools().in_place(backend()):
        wrapped = DistributedDataParallel(model(), bucket_cap_mb=0.2)

        def joined():
            with wrapped.join(throw_on_early_termination=False):
                step(wrapped).sum().backward()

        buckets = register_buckets(wrapped)
        refused(ValueError, "expected no join()", joined)
        with wrapped.join(enable=False):
            train(wrapped)
        assert buckets.registered
        refused(ValueError, "expected no join()", joined)
        with wrapped.join(enable=False):
            step(wrapped).sum().backward()
        buckets.deregister()
        joined()


@on_host
def check_what_was_registered_is_taken_back_when_a_region_is_refused():
    from coordd.torch.distributed import register_buckets
    if not has_pools():
        return
    pools = Pools(sizes=(1 << 21, 1 << 22, 1 << 21))
    with pools.in_place(backend()):
        wrapped = DistributedDataParallel(model(), bucket_cap_mb=0.2)
        buckets = register_buckets(wrapped)
        step(wrapped).sum().backward()
        pools.calls.clear()
        call = backend()._call_memory

        def failing(name, *arguments):
            if pools.calls == ["register"]:
                pools.calls.append("refused")
                raise dist.DistBackendError("coordd: too many")
            call(name, *arguments)

        with mock.patch.object(backend(), "_call_memory", failing):
            refused(dist.DistBackendError, "too many (register_buckets: segment 2 of 3; none of them is registered", lambda: step(wrapped))
        assert pools.calls == ["register", "refused", "unregister"], pools.calls
        assert not buckets.registered and not backend()._registered_pools() and not wrapped._forward_pre_hooks
        buckets.deregister()
        assert len(pools.calls) == 3, pools.calls
        step(wrapped).sum().backward()  # goes on


@on_host
def check_regions_are_counted_in_the_group():
    if not has_pools():
        return
    calls = []
    with mock.patch.object(backend(), "_call_memory", lambda name, *_: calls.append(name)):
        first, second = (Pools((4096,) * 40).make(None) for _ in range(2))
        backend().register_mem_pool(first)
        refused(ValueError, "40 segments, beside 40 regions that the group has registered, expected at most 64",
                lambda: backend().register_mem_pool(second))
        refused(ValueError, "beside 40 regions", lambda: backend().register_mem_pool(first))
        assert len(calls) == 40
        backend().deregister_mem_pool(first)
        backend().register_mem_pool(second)
        backend().deregister_mem_pool(second)
        few = Pools((4096,)).make(None)
        backend().register_mem_pool(few)
        refused(ValueError, "has registered memory of this pool", lambda: backend().register_mem_pool(few))
        backend().deregister_mem_pool(few)


@on_host
def check_what_one_rank_refuses_all_are_told():
    from coordd.torch.distributed import register_buckets
    rank, size = ranks()
    last = size - 1
    refused(TypeError, "expected a torch.cuda.MemPool, found NoneType", lambda: backend().register_mem_pool(None))
    refused(TypeError, "deregister_mem_pool: expected a torch.cuda.MemPool, found NoneType", lambda: backend().deregister_mem_pool(None))
    refused_by(last, TypeError, "found NoneType", lambda: backend().register_mem_pool(None if rank == last else Pool(1)))
    if not has_pools():
        return
    pools = Pools()
    with pools.in_place(backend()):
        wrapped = DistributedDataParallel(model(), find_unused_parameters=rank == last)
        refused_by(last, ValueError, "expected find_unused_parameters=False, or static_graph=True", lambda: register_buckets(wrapped))
        assert not pools.calls, pools.calls
    refused(ValueError, "found one on cpu", lambda: register_buckets(DistributedDataParallel(model())))


@on_host
def check_symmetric_windows_are_wanted_by_all_or_none():
    rank, size = ranks()
    calls = []
    with mock.patch.object(backend(), "_call_memory", lambda name, *_: calls.append(name)), \
            mock.patch.dict(os.environ, COORDD_GPU_REGISTER="symmetric" if rank < size - 1 else "1"):
        refused_by(size - 1, ValueError, "COORDD_GPU_REGISTER is '1', expected COORDD_GPU_REGISTER=symmetric in the environment of all ranks, "
                   "or symm=False", lambda: backend().register_mem_pool(Pool(1), symm=True))
    with mock.patch.object(backend(), "_call_memory", lambda name, *_: calls.append(name)), \
            mock.patch.dict(os.environ, COORDD_GPU_REGISTER="symmetric"):
        if size > 1:
            refused(ValueError, "symm: ", lambda: backend().register_mem_pool(Pool(1), symm=rank == 0))
        assert not calls
        pool = Pool(1)
        backend().register_mem_pool(pool, symm=True)
        backend().deregister_mem_pool(pool)
        assert len(calls) == 2, calls


@on_host
def check_a_group_that_has_ended_is_named():
    from coordd.torch.distributed import register_buckets
    if not has_pools():
        return
    group = group_of("coordd")
    own = halves(group)
    with Pools().in_place(own):
        early, late = (DistributedDataParallel(model(), process_group=group, bucket_cap_mb=0.2) for _ in range(2))
        buckets = register_buckets(early)
        step(early).sum().backward()
        dist.destroy_process_group(group)
        refused(ValueError, "register_buckets: its process group has ended", lambda: register_buckets(late))
        refused(ValueError, "register_buckets: its process group has ended", lambda: step(early))
        refused(ValueError, "register_mem_pool: its process group has ended (destroy_process_group(), recover()), expected one that is in "
                "use: a pool is registered anew in that", lambda: own.register_mem_pool(Pool(1)))
        buckets.deregister()


@on_host
def check_models_are_copied_and_pickled_as_before():
    from coordd.torch.distributed import register_buckets
    if not has_pools():
        return
    pools = Pools()
    with pools.in_place(backend()):
        wrapped = DistributedDataParallel(model(), bucket_cap_mb=0.2)
        plain = step(wrapped)
        buckets = register_buckets(wrapped)
        for _ in range(3):
            saved = io.BytesIO()
            torch.save(wrapped, saved)
            assert b"coordd" not in saved.getvalue(), "what is saved needs coordd to be loaded"
            saved.seek(0)
            options = {} if torch_version() < (2, 4) else {"weights_only": False}
            with torch.no_grad():
                for one in (copy.deepcopy(wrapped), pickle.loads(pickle.dumps(wrapped)), torch.load(saved, **options)):
                    close(step(one.module), step(wrapped.module))
                    assert isinstance(one, DistributedDataParallel)
                    inputs = torch.ones(1, 6)
                    assert all(hook(one, (inputs,)) == (inputs,) for hook in one._forward_pre_hooks.values())
            step(wrapped).sum().backward()
            wrapped.zero_grad()
        assert buckets.registered
        close(step(wrapped), plain)
        buckets.deregister()


@on_host
def check_buckets_of_a_compiled_model_are_registered():
    from coordd.torch.distributed import register_buckets
    if not has_pools():
        return
    with Pools().in_place(backend()):
        wrapped = DistributedDataParallel(model())
        buckets = register_buckets(wrapped)
        compiled = torch.compile(wrapped, backend="eager")
        for _ in range(3):
            step(compiled).sum().backward()
        assert buckets.registered
        buckets.deregister()
        step(compiled).sum().backward()


@on_host
def check_all_gathers_of_torch_are_back_and_what_is_no_number_of_buffers_is_refused():
    from coordd.torch.distributed import register_all_gathers
    if not has_all_gathers():
        return
    from torch.distributed.device_mesh import init_device_mesh
    rank, size = ranks()
    mesh = init_device_mesh("cpu", (size,))
    pools = Pools()
    with pools.in_place(halves(mesh.get_group())):
        sharded = sharded_model(mesh)
        for wrong, words in (("3", "buffers is '3'"), (None, "buffers is None"), (2.5, "buffers is 2.5"), (True, "buffers is True")):
            refused(TypeError, f"{words}, expected a whole number, 2 to 64",
                    lambda: register_all_gathers(sharded, buffers=wrong))  # noqa: B023
        refused(ValueError, "buffers is 65, expected 2 to 64", lambda: register_all_gathers(sharded, buffers=65))
        refused_by(0, ValueError, "buffers is 65, expected 2 to 64", lambda: register_all_gathers(sharded, buffers=65 if rank == 0 else 3))
        refused(ValueError, "expected one number on all ranks", lambda: register_all_gathers(sharded, buffers=2 + rank))
        pools.calls.clear()
        gathers = register_all_gathers(sharded)
        gathers.deregister()
        comms = {type(one._all_gather_comm).__name__ for one in gathers._owners}
        assert comms == {"DefaultAllGather"}, comms
        plain = full(sharded_model(mesh))
        for _ in range(2):
            again = sharded_model(mesh)
            with register_all_gathers(again) as gathers:
                close(full(again), plain)
                assert gathers.registered
            with register_all_gathers(again) as gathers:
                full(again)
                assert gathers.registered
        assert pools.calls.count("register") == pools.calls.count("unregister"), pools.calls
        own = sharded_model(mesh)
        gathers = register_all_gathers(own)
        theirs = object.__new__(type("Own", (type(gathers._torchs[0]),), {}))
        for owner in gathers._owners:
            owner._all_gather_comm = theirs
        gathers.deregister()
        assert all(owner._all_gather_comm is theirs for owner in gathers._owners)


@on_host
def check_a_model_without_gpus_or_over_another_backend_is_refused_at_once():
    from coordd.torch.distributed import register_all_gathers
    if not has_all_gathers():
        return
    from torch.distributed.device_mesh import init_device_mesh
    refused(ValueError, "expected a model of fully_shard", lambda: register_all_gathers(nn.Linear(1, 1), buffers="3"))
    refused(ValueError, "expected a model on GPUs, found one on cpu",
            lambda: register_all_gathers(sharded_model(init_device_mesh("cpu", (dist.get_world_size(),)))))
