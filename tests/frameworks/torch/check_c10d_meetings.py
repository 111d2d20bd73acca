"""Ranks that leave out a call that registers memory, or make another one: they are named, and their group goes on. With the stand-ins of
check_c10d_collectives and check_c10d_buckets; run by c10d_ranks.py."""

import contextlib
import datetime
from unittest import mock

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from c10d_ranks import on_host
from check_c10d_buckets import Pools, halves, has_pools
from check_c10d_collectives import Pool, equal, ranks, refused
from check_c10d_training import group_of, model


@contextlib.contextmanager
def own_half_of_a_group():
    group = group_of("coordd")
    own = halves(group)
    with mock.patch.object(own, "_call_memory", lambda *_: None):
        yield group, own
    dist.destroy_process_group(group)


@contextlib.contextmanager
def own_half_and_model():
    """With a model over the group, whose buckets lie in the stand-in of pools."""
    with own_half_of_a_group() as (group, own):
        with Pools().in_place(own):
            yield group, own, DistributedDataParallel(model(), process_group=group)


@contextlib.contextmanager
def short_patience(own):
    """Of what has a timeout of its own, not of collectives."""
    before = own._channel.timeout_s
    own._set_default_timeout(datetime.timedelta(seconds=1))
    yield
    own._set_default_timeout(datetime.timedelta(seconds=before))


def registered_by_all(group, own):
    """They are in step."""
    pool = Pool(2)
    own.register_mem_pool(pool)
    own.deregister_mem_pool(pool)
    ones = torch.ones(4)
    dist.all_reduce(ones, group=group)
    equal(ones, torch.full((4,), float(dist.get_world_size())))


@on_host
def check_a_rank_that_leaves_a_registration_out_is_named_and_the_group_goes_on():
    rank, size = ranks()
    if size < 2:
        return
    with own_half_of_a_group() as (group, own):
        for missing in (size - 1, 0):
            with short_patience(own):
                dist.barrier()
                if rank != missing:  # another one that was late, on a machine with much to do, is named too
                    refused(dist.DistBackendError, f"{missing}{',' if missing == 0 and size > 3 else ' of the group ha'}",
                            lambda: own.register_mem_pool(Pool(1)))
                    refused(dist.DistBackendError, " within 0.75 s, three quarters of the group's timeout: expected all ranks of the group to call it",
                            lambda: own.register_mem_pool(Pool(1)))
                dist.barrier()
            registered_by_all(group, own)
        with short_patience(own):
            if rank == 0:
                others = "1 of the group has" if size == 2 else f"{size - 1} of the group have"
                refused(dist.DistBackendError, f"coordd: register_mem_pool: rank{'' if size == 2 else 's 1,'} {others} not come to it within 0.75 s",
                        lambda: own.register_mem_pool(Pool(1)))
            dist.barrier()
        registered_by_all(group, own)


@on_host
def check_a_rank_that_calls_a_collective_instead_meets_the_others_there():
    rank, size = ranks()
    if size < 2:
        return
    with own_half_of_a_group() as (group, own):
        ones = torch.ones(4)
        with short_patience(own):
            if rank != size - 1:
                refused(dist.DistBackendError, f"{size - 1} of the group ha", lambda: own.register_mem_pool(Pool(1)))
        dist.all_reduce(ones, group=group)
        equal(ones, torch.full((4,), float(size)))
        registered_by_all(group, own)


@on_host
def check_ranks_that_make_different_calls_are_told_so():
    from coordd.torch.distributed import register_buckets
    rank, size = ranks()
    if not has_pools() or size < 2:
        return
    with own_half_and_model() as (group, own, wrapped):
        words = f"rank {size - 1} of the group has called register_buckets, rank 0 register_mem_pool: expected one call on all ranks"
        refused(ValueError, words, lambda: register_buckets(wrapped) if rank == size - 1 else own.register_mem_pool(Pool(1)))
        registered_by_all(group, own)


@on_host
def check_a_rank_that_leaves_buckets_out_is_named():
    from coordd.torch.distributed import register_buckets
    rank, size = ranks()
    if not has_pools() or size < 2:
        return
    with own_half_and_model() as (group, own, wrapped):
        with short_patience(own):
            if rank != size - 1:
                refused(dist.DistBackendError, "coordd: register_buckets: rank", lambda: register_buckets(wrapped))
            dist.barrier()
        register_buckets(wrapped).deregister()
        registered_by_all(group, own)


class Channel:
    """A group's, whose store is a dict that tests write; what nobody has put does not come."""

    def __init__(self, store, rank, size):
        self.store, self.rank, self.size, self.timeout_s = store, rank, size, 0.0
        self.job = mock.Mock(generation=1)

    def put(self, key, value):
        self.store[key] = value

    def get(self, key, _timeout_s, _most_bytes):
        return self.store.get(key)

    def are_there(self, keys):
        return all(key in self.store for key in keys)

    def delete(self, key):
        self.store.pop(key, None)


def met(meetings, word, answer=None):
    return meetings.meet("this call", word, lambda words: b"+".join(words) if answer is None else answer)


@on_host
def check_who_has_given_up_goes_on_where_the_others_are():
    from coordd.torch.distributed._meetings import Meetings
    store = {}
    first, second = (Meetings(Channel(store, rank, 2)) for rank in range(2))
    refused(dist.DistBackendError, "rank 0 of the group has not come to it", lambda: met(second, b"second"))
    refused(dist.DistBackendError, "the ranks of the group have come to it, but not at one time", lambda: met(first, b"first"))
    assert not [key for key in store if "/word/" in key], store  # which would be taken for a rank that waits
    store["torch.meeting/1/1/word/1"] = b"second"
    assert met(first, b"first") == b"first+second"
    store.pop("torch.meeting/1/1/word/1")
    # The answer came behind its last look; the others have met without it, and so it goes where they come next.
    refused(dist.DistBackendError, "rank 0 of the group has not come to it", lambda: met(second, b"again"))
    assert set(store) == {"torch.meeting/1/1/answer", "torch.meeting/1/2/given-up/1"}, store
    store["torch.meeting/1/2/word/1"] = b"again"
    assert met(first, b"first") == b"first+again"
    assert "torch.meeting/1/1/answer" not in store and store["torch.meeting/1/2/answer"] == b"first+again", store


@on_host
def check_an_answer_that_comes_with_the_end_of_the_time_counts():
    from coordd.torch.distributed._meetings import Meetings
    store = {}
    late = Channel(store, 1, 2)
    late.delete = lambda key: store.update({"torch.meeting/1/1/answer": b"both"}) if "/word/" in key else store.pop(key, None)
    assert met(Meetings(late), b"late") == b"both"
    assert not [key for key in store if "given-up" in key], store


@on_host
def check_answers_stay_small_with_many_ranks():
    from coordd.torch.distributed import _agreement
    words = [_agreement._bytes({"what": "this", "kind": 0, "text": "", "numbers": [1, *[1 << 40] * 64, rank]}) for rank in range(1000)]
    assert len(_agreement._answer(words)) < 65536
    text = "\u00e4" * 2000
    assert len(_agreement._bytes({"what": "this", "kind": 1, "text": text, "numbers": []})) < 16384
