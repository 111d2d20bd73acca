"""Our torch.distributed.Store: the cases of torch's own test_store that it can have. Run by c10d_ranks.py."""

import datetime
import threading

import torch
import torch.distributed as dist

from c10d_ranks import torch_version
from check_c10d_collectives import equal, ranks, refused


def store(seconds=60.0):
    """One of all ranks; each check has keys of its own."""
    from coordd.torch.distributed import Store
    from coordd.torch.distributed._group import _alive
    return Store(_alive[0]._channel.worker, datetime.timedelta(seconds=seconds))


def check_set_and_get():
    rank, size = ranks()
    own = store()
    own.set(f"key/{rank}", f"value {rank}")
    for one in range(size):
        assert own.get(f"key/{one}") == f"value {one}".encode()
    dist.barrier()
    own.set(f"key/{rank}", "another")
    assert own.get(f"key/{rank}") == b"another"
    own.set(f"empty/{rank}", "")
    assert own.get(f"empty/{rank}") == b""


def check_add_counts_what_was_set_too():
    rank, size = ranks()
    own = store()
    own.add("sum", rank + 1)
    dist.barrier()
    assert own.add("sum", 0) == sum(range(size + 1))
    assert own.get("sum") == str(sum(range(size + 1))).encode()
    own.set(f"number/{rank}", "41")
    assert own.add(f"number/{rank}", 1) == 42


def check_values_and_keys_of_any_size():
    rank, size = ranks()
    own = store()
    for count in (64 * 1024, 64 * 1024 + 1, 300000):
        own.set(f"big/{rank}/{count}", bytes([rank]) * count)
        assert own.get(f"big/{rank}/{count}") == bytes([rank]) * count
    if rank == 0:
        own.set("long" * 1000, "one")
        own.set("long" * 1000 + "r", "another")
    assert own.get("long" * 1000) == b"one" and own.get("long" * 1000 + "r") == b"another"
    disguised = b"\0coordd value in parts 0000 3"
    own.set(f"disguised/{rank}", disguised)
    assert own.get(f"disguised/{rank}") == disguised


def check_waits_end_with_a_sentence():
    rank, size = ranks()
    own = store(0.3)
    refused(RuntimeError, "nobody has set the key 'never'", lambda: own.get("never"))
    refused(RuntimeError, "wait timeout after 200ms", lambda: own.wait(["never"], datetime.timedelta(seconds=0.2)))
    own.set_timeout(datetime.timedelta(seconds=60))
    if rank == 0:
        thread = threading.Timer(0.3, lambda: store().set("late", "here"))
        thread.start()
    own.wait(["late"])
    own.wait(["late"], datetime.timedelta(seconds=60))
    assert own.check(["late"]) and not own.check(["late", "never"])


def check_prefixes_and_several_keys():
    rank, size = ranks()
    own = store()
    inner = dist.PrefixStore(f"outer/{rank}", own)
    inner.set("key", "value")
    assert inner.get("key") == b"value" and own.get(f"outer/{rank}/key") == b"value"
    assert inner.add("number", 2) == 2
    inner.wait(["key", "number"])
    own.multi_set([f"a/{rank}", f"b/{rank}"], ["1", "2"])
    assert own.multi_get([f"a/{rank}", f"b/{rank}"]) == [b"1", b"2"]
    if torch_version() >= (2, 14):
        assert inner.multi_get(["key"]) == [b"value"]
        assert not inner.delete_key("key") and inner.get("key") == b"value"


def check_what_coordd_has_not_is_said():
    own = store()
    refused(NotImplementedError, "coordd's store has no such call yet", lambda: own.compare_set("key", "a", "b"))
    refused(NotImplementedError, "does not count keys yet", own.num_keys)
    assert not own.delete_key("key")


def check_gloo_over_our_store():
    rank, size = ranks()
    if torch_version() < (2, 4):
        return
    from torch.distributed import ProcessGroupGloo
    group = ProcessGroupGloo(dist.PrefixStore("gloo", store()), rank, size, datetime.timedelta(seconds=60))
    tensor = torch.ones(2)
    group.allreduce([tensor]).wait()
    equal(tensor, torch.full((2,), float(size)))
    dist.barrier()
