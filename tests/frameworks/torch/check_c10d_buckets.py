"""Buckets of DistributedDataParallel, and what FSDP2 gathers into, in memory that NCCL is told of: in which order what is called, with
stand-ins of torch.cuda's pools and of coordd's calls for GPUs. Run by c10d_ranks.py; on a GPU check_c10d_gpu does it in earnest."""

import contextlib
import itertools
from unittest import mock

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from c10d_ranks import on_host, torch_version
from check_c10d_collectives import backend, ranks, refused
from check_c10d_training import STEPS, close, group_of, inputs, model, train


class Pools:
    """Stands in for torch's, whose segments are what a test says; notes what is called."""

    _numbers = itertools.count(1)

    def __init__(self, sizes=(1 << 21,), fails=False):
        self.calls, self.sizes, self.fails, self._used = [], sizes, fails, []

    def make(self, _allocator):
        pool = mock.Mock(id=(0, next(self._numbers)))
        pool.snapshot = lambda: [{"device": 0, "address": (pool.id[1] << 40) + (one << 30), "total_size": size}
                                 for one, size in enumerate(self.sizes)]
        return pool

    @contextlib.contextmanager
    def use(self, pool, _device):
        if self.fails:
            raise RuntimeError("out of memory")
        self._used.append(pool.id)
        yield
        self._used.pop()

    def call(self, name, *_arguments):
        assert not self._used, "registered while torch allocates from a pool"
        self.calls.append(name.replace("coordd_", "").replace("_device", ""))

    @contextlib.contextmanager
    def in_place(self, group):
        from coordd.torch.distributed import _buckets
        check = _buckets._check

        def of_host(wrapped):
            with mock.patch.object(wrapped, "device_type", "cuda"):
                check(wrapped)

        a_type = type("MemPool", (), {"__new__": lambda _, allocator: self.make(allocator), "snapshot": None})
        with mock.patch.object(torch.cuda, "MemPool", a_type), \
                mock.patch.object(torch.cuda, "use_mem_pool", self.use), mock.patch.object(_buckets, "_check", of_host), \
                mock.patch.object(group, "_call_memory", self.call):
            try:
                from coordd.torch.distributed import _all_gathers, _reduce_scatters
            except ImportError:  # torch has no FSDP2, or no communication of others in it
                yield
                return
            with mock.patch.object(_all_gathers, "_device_type_of", lambda _: "cuda"), \
                    mock.patch.object(_reduce_scatters, "_device_type_of", lambda _: "cuda"):
                yield


def has_pools():
    return hasattr(torch.cuda, "MemPool")


def halves(group):
    """coordd's half of a group."""
    return group if type(group).__module__.startswith("coordd") else group._get_backend(torch.device("cpu"))


@on_host
def check_buckets_are_registered_once_torch_has_made_them_anew():
    from coordd.torch.distributed import register_buckets
    if not has_pools():
        return
    plain = train(DistributedDataParallel(model(), bucket_cap_mb=0.2))
    for options in ({}, {"gradient_as_bucket_view": True}, {"static_graph": True}):
        pools = Pools(sizes=(1 << 21, 20 << 20))
        with pools.in_place(backend()):
            wrapped = DistributedDataParallel(model(), bucket_cap_mb=0.2, **options)
            buckets = register_buckets(wrapped)
            assert pools.calls == ["register"] * 2 + ["unregister"] * 2, pools.calls  # it was tried
            pools.calls.clear()
            with torch.no_grad():
                wrapped(torch.zeros(1, 6, dtype=torch.float64))
            for _ in range(2 if "static_graph" in options else 1):
                wrapped(torch.zeros(1, 6, dtype=torch.float64)).sum().backward()
                assert not buckets.registered and not pools.calls, pools.calls
                wrapped.zero_grad()
            wrapped(torch.zeros(1, 6, dtype=torch.float64))
            assert buckets.registered and wrapped._has_rebuilt_buckets, (buckets.registered, wrapped._has_rebuilt_buckets, options)
            assert pools.calls == ["register"] * 2, pools.calls
            refused(ValueError, "are registered already", lambda: register_buckets(wrapped))
            close(train(wrapped), plain)
            assert pools.calls == ["register"] * 2, pools.calls
            buckets.deregister()
            buckets.deregister()
            assert pools.calls == ["register"] * 2 + ["unregister"] * 2, pools.calls
            assert not backend()._registered_pools() and not wrapped._forward_pre_hooks
            refused(ValueError, "before torch makes the buckets anew", lambda: register_buckets(wrapped))


@on_host
def check_buckets_go_with_their_group():
    from coordd.torch.distributed import register_buckets
    if not has_pools():
        return
    group = group_of("coordd")
    pools = Pools()
    with pools.in_place(halves(group)):
        with register_buckets(DistributedDataParallel(model(), process_group=group)) as buckets:
            pools.calls.clear()
            train(DistributedDataParallel(model(), process_group=group))  # another one
            assert not buckets.registered
        assert not pools.calls  # torch has made none anew
        wrapped = DistributedDataParallel(model(), process_group=group)
        buckets = register_buckets(wrapped)
        train(wrapped)
        assert buckets.registered
        pools.calls.clear()
        dist.destroy_process_group(group)
        buckets.deregister()
        assert not pools.calls, pools.calls


@on_host
def check_ranks_whose_buckets_differ_are_told_so():
    from coordd.torch.distributed import register_buckets
    rank, size = ranks()
    if not has_pools() or size < 2:
        return
    last = size - 1
    for sizes, words in (((1 << 21, 1 << 22), "segments, expected one number on all ranks"),
                         ((1 << 22,), "rank 0's of 2097152, expected equal sizes on all ranks")):
        pools = Pools()
        with pools.in_place(backend()):
            wrapped = DistributedDataParallel(model(), bucket_cap_mb=0.2)
            register_buckets(wrapped)
            pools.calls.clear()
            wrapped(torch.zeros(1, 6, dtype=torch.float64)).sum().backward()
            pools.sizes = sizes if rank == last else pools.sizes
            refused(ValueError, f"register_buckets: {'the pools' if len(sizes) > 1 else f'rank {last}'}",
                    lambda: wrapped(torch.zeros(1, 6, dtype=torch.float64)))  # noqa: B023
            assert not pools.calls, words
    pools = Pools((1 << 21,) * 65)
    with pools.in_place(backend()):
        refused(ValueError, "65 segments, expected at most 64", lambda: register_buckets(DistributedDataParallel(model())))
    pools = Pools(fails=rank == last)
    with pools.in_place(backend()):
        refused(ValueError, f"rank {last} gets no memory of NCCL's",
                lambda: register_buckets(DistributedDataParallel(model())))
    assert not pools.calls


@on_host
def check_what_cannot_be_registered_is_refused():
    from coordd.torch.distributed import register_buckets
    refused(ValueError, "expected a DistributedDataParallel, found Linear", lambda: register_buckets(nn.Linear(1, 1)))
    refused(ValueError, "expected a model on GPUs, found one on cpu", lambda: register_buckets(DistributedDataParallel(model())))
    if not has_pools():
        return
    with Pools().in_place(backend()):
        refused(ValueError, "expected find_unused_parameters=False, or static_graph=True",
                lambda: register_buckets(DistributedDataParallel(model(), find_unused_parameters=True)))
        gloo = group_of("gloo")
        refused(ValueError, "over coordd, found one over gloo",
                lambda: register_buckets(DistributedDataParallel(model(), process_group=gloo)))
        dist.destroy_process_group(gloo)


def sharded_model(mesh):
    from torch.distributed.fsdp import fully_shard
    sharded = model()
    for layer in sharded:
        if isinstance(layer, nn.Linear):
            fully_shard(layer, mesh=mesh)
    fully_shard(sharded, mesh=mesh)
    return sharded


@on_host
def check_fsdp2_gathers_into_buffers_that_are_registered_in_the_second_step():
    from coordd.torch.distributed import register_all_gathers
    rank, size = ranks()
    try:
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import FSDPModule
        known = has_pools() and hasattr(FSDPModule, "set_custom_all_gather")
    except ImportError:
        known = False
    if not known:
        return refused(NotImplementedError, "has no set_custom_all_gather", lambda: register_all_gathers(model()))
    refused(ValueError, "expected a model of fully_shard(), found Sequential", lambda: register_all_gathers(model()))
    if size == 1 or torch_version() < (2, 14):
        return  # torch gathers nothing, or not on hosts
    mesh = init_device_mesh("cpu", (size,))
    plain = full(sharded_model(mesh))
    pools = Pools()
    with pools.in_place(halves(mesh.get_group())):
        wrapped = sharded_model(mesh)
        refused(ValueError, "buffers is 1, expected 2 to 64", lambda: register_all_gathers(wrapped, buffers=1))
        gathers = register_all_gathers(wrapped)
        assert pools.calls == ["register", "unregister"], pools.calls
        refused(ValueError, "all-gathers are registered already", lambda: register_all_gathers(wrapped))
        taken, take = [], gathers._take

        def noting(size_bytes, owner):
            found = take(size_bytes, owner)
            taken.append(None if found is None else found.data_ptr())
            return found

        gathers._take = noting
        close(full(wrapped), plain)
        assert gathers.registered and pools.calls == ["register", "unregister", "register"], pools.calls
        each = len(taken) // STEPS
        assert taken[:each] == [None] * each and None not in taken[each:] and 2 <= len(set(taken[each:])) <= 3, taken
        assert all(gathers.is_free(buffer) for buffer in gathers._buffers)
        gathers.deregister()
        gathers.deregister()
        assert pools.calls == ["register", "unregister"] * 2, pools.calls
        full(wrapped)  # goes on
        assert pools.calls == ["register", "unregister"] * 2, pools.calls
    other = Pools(sizes=(1 << 21,))
    with other.in_place(halves(mesh.get_group())):
        wrapped = sharded_model(mesh)
        register_all_gathers(wrapped)
        wrapped(torch.zeros(1, 6, dtype=torch.float64)).sum().backward()
        other.sizes = (1 << 22,) if rank == size - 1 else other.sizes
        refused(ValueError, f"register_all_gathers: rank {size - 1}'s pool has segments of 4194304 bytes",
                lambda: wrapped(torch.zeros(1, 6, dtype=torch.float64)))


@on_host
def check_fsdp2_reduces_gradients_in_buffers_that_are_registered_in_the_second_step():
    from coordd.torch.distributed import register_all_gathers, register_reduce_scatters
    rank, size = ranks()
    try:
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import FSDPModule
        known = has_pools() and hasattr(FSDPModule, "set_custom_reduce_scatter")
    except ImportError:
        known = False
    if not known:
        return refused(NotImplementedError, "has no set_custom_reduce_scatter", lambda: register_reduce_scatters(model()))
    refused(ValueError, "expected a model of fully_shard(), found Sequential", lambda: register_reduce_scatters(model()))
    if size == 1 or torch_version() < (2, 14):
        return
    mesh = init_device_mesh("cpu", (size,))
    refused(ValueError, "expected a model on GPUs, found one on cpu", lambda: register_reduce_scatters(sharded_model(mesh)))
    plain = full(sharded_model(mesh))
    for buffers, cap in ((1, 1), (2, 1), (2, 2), (1, 2)):  # cap: how many torch holds
        pools = Pools()
        with pools.in_place(halves(mesh.get_group())):
            wrapped = sharded_model(mesh)
            if cap > 1:
                if not hasattr(wrapped, "set_reduce_scatter_max_input_buffers"):
                    continue
                wrapped.set_reduce_scatter_max_input_buffers(cap)
            refused(ValueError, "buffers is 0, expected 1 to 64", lambda: register_reduce_scatters(wrapped, buffers=0))  # noqa: B023
            gathers = register_all_gathers(wrapped)
            scatters = register_reduce_scatters(wrapped, buffers=buffers)
            assert pools.calls == ["register", "unregister"] * 2, pools.calls
            refused(ValueError, "reduce-scatters are registered already", lambda: register_reduce_scatters(wrapped))  # noqa: B023
            taken, reduced = [], []
            take, reduce = scatters._take, dist.reduce_scatter_tensor

            def noting(size_bytes, owner, take=take, taken=taken):
                found = take(size_bytes, owner)
                taken.append(None if found is None else found.data_ptr())
                return found

            def reducing(output, given, *arguments, scatters=scatters, reduce=reduce, reduced=reduced, **named):
                ends = [(buffer.memory.data_ptr(), buffer.memory.data_ptr() + buffer.memory.numel()) for buffer in scatters._buffers]
                reduced.append({next((at for at, (begin, end) in enumerate(ends) if begin <= one.data_ptr() < end), None)
                                for one in (output, given)})
                return reduce(output, given, *arguments, **named)

            scatters._take = noting
            with mock.patch.object(dist, "reduce_scatter_tensor", reducing):
                close(full(wrapped), plain)
            assert scatters.registered and gathers.registered
            assert pools.calls == ["register", "unregister"] * 2 + ["register"] * 2, pools.calls
            each = len(taken) // STEPS
            assert taken[:each] == [None] * each and (None in taken[each:]) == (buffers < cap), (buffers, cap, taken)
            # NCCL is given registered memory for input and output, or for neither.
            assert len(reduced) == len(taken) and all(len(one) == 1 for one in reduced), reduced
            assert [one == {None} for one in reduced] == [one is None for one in taken], (reduced, taken)
            assert all(scatters.is_free(buffer) for buffer in scatters._buffers)
            scatters.deregister()
            gathers.deregister()
            comms = {type(one._reduce_scatter_comm).__name__ for one in scatters._owners}
            assert comms == {"DefaultReduceScatter"}, comms
            full(wrapped)  # goes on
            assert pools.calls.count("register") == pools.calls.count("unregister"), pools.calls


def full(sharded):
    """Trained, its parameters."""
    optimizer = torch.optim.SGD(sharded.parameters(), lr=0.1)
    for step in range(STEPS):
        optimizer.zero_grad()
        sharded(inputs(step)).pow(2).mean().backward()
        optimizer.step()
    return torch.cat([one.full_tensor().detach().flatten() for one in sharded.parameters()])
