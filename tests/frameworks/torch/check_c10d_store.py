"""Our torch.distributed.Store: the cases of torch's own test_store that it can have. Run by c10d_ranks.py."""

import ctypes
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


def parts_of_values(own):
    count = ctypes.c_int64()
    assert own._count(own._worker.pointer, b"torch-part/", ctypes.byref(count), 60) == 0
    return count.value


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
    for length in range(240, 260):
        own.set(f"{rank}" * length, str(length))
        assert own.get(f"{rank}" * length) == str(length).encode()
    own.set(f"with\0nul/{rank}", "1")
    assert own.get(f"with\0nul/{rank}") == b"1" and not own.check([f"with\0another/{rank}"]) and not own.check(["with"])
    refused(TypeError, "found the number 5", lambda: own.set("number", 5))
    refused(OverflowError, "does not fit 64 bits", lambda: own.add("number", 2**63))
    refused(ValueError, "found 1 values", lambda: own.multi_set(["one", "two"], ["1"]))
    disguised = b"\0coordd value in parts 0000 3"
    own.set(f"disguised/{rank}", disguised)
    assert own.get(f"disguised/{rank}") == disguised


def check_waits_end_with_a_sentence():
    rank, size = ranks()
    own = store(0.3)
    refused(RuntimeError, "nobody has set the key 'never'", lambda: own.get("never"))
    refused(RuntimeError, "wait timeout after 200ms", lambda: own.wait(["never"], datetime.timedelta(seconds=0.2)))
    own.set_timeout(datetime.timedelta(seconds=60))
    around = dist.PrefixStore("prefix", own)  # torch's C++, which tells nobody but torch's half of our store
    around.set_timeout(datetime.timedelta(seconds=0.2))
    assert own.timeout == around.timeout == datetime.timedelta(seconds=0.2)
    refused(RuntimeError, "wait timeout after 200ms", lambda: around.get("never"))
    around.set_timeout(datetime.timedelta(seconds=60))
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
        assert inner.delete_key("key") and not inner.delete_key("key") and not own.check([f"outer/{rank}/key"])


def check_one_step_of_compare_set():
    rank, size = ranks()
    own = store()
    key = f"compared/{rank}"
    assert own.compare_set(key, "wrong", "first") == b"wrong" and not own.check([key])  # as torch's stores say it
    assert own.compare_set(key, "", "first") == b"first"
    assert own.compare_set(key, "", "second") == b"first"
    assert own.compare_set(key, "first", "") == b""
    assert own.compare_set(key, "", "third") == b"third"
    large = bytes(200000)
    assert own.compare_set(key, "third", large) == large and own.get(key) == large
    dist.barrier()
    if rank == 0:  # what was not set leaves nothing behind
        before = parts_of_values(own)
        assert own.compare_set(key, "not this", bytes(300000)) == large and parts_of_values(own) == before
    dist.barrier()
    assert own.compare_set(key, large[:-1], "x") == large and own.compare_set(f"no {key}", large, "x") == large
    assert own.compare_set(key, large, "x") == b"x" and own.compare_set(key, large, "y") == b"x"
    dist.barrier()
    winners = [None] * size
    dist.all_gather_object(winners, own.compare_set("owner", "", f"rank {rank}") == f"rank {rank}".encode())
    assert winners.count(True) == 1
    if torch_version() >= (2, 14):
        inner = dist.PrefixStore(f"inner/{rank}", own)
        assert inner.compare_set("key", "", "value") == b"value" and own.get(f"inner/{rank}/key") == b"value"


def check_appending_and_deleting():
    rank, size = ranks()
    own = store()
    key = f"appended/{rank}"
    own.append(key, "ab")
    own.append(key, "cd")
    assert own.get(key) == b"abcd"
    dist.barrier()
    parts = parts_of_values(own)
    dist.barrier()
    for grown in (64 * 1024 - 4, 1, 200000):
        own.append(key, bytes(grown))
    assert own.get(key) == b"abcd" + bytes(64 * 1024 - 3 + 200000)
    own.append(f"large/{rank}", bytes(200000))
    assert own.get(f"large/{rank}") == bytes(200000) and own.delete_key(f"large/{rank}")
    for _ in range(20):  # all at once, from below 64 KiB to far above
        own.append("of all", bytes([rank]) * 5000)
    dist.barrier()
    whole = own.get("of all")
    assert [whole.count(bytes([one])) for one in range(size)] == [100000] * size
    assert all(len(set(whole[at:at + 5000])) == 1 for at in range(0, len(whole), 5000))
    dist.barrier()
    if rank == 0:
        own.delete_key("of all")
    assert own.delete_key(key) and not own.delete_key(key) and not own.check([key])
    dist.barrier()
    assert parts_of_values(own) == parts
    before = own.num_keys()
    dist.barrier()
    own.set(f"counted/{rank}", bytes(200000))  # whose parts are no keys of their own
    dist.barrier()
    assert own.num_keys() == before + size
    dist.barrier()
    assert own.delete_key(f"counted/{rank}")
    dist.barrier()
    assert own.num_keys() == before


def check_a_large_append_among_many_small_ones():
    rank, size = ranks()
    own, key = store(30), "among small ones"
    own.append(key, bytes(200000))
    dist.barrier()
    appended = 0
    while rank > 0 and not own.check(["appended"]) and appended < 100000:
        own.append(key, "x")
        appended += 1
    if rank == 0:
        own.append(key, b"y" * 70000)
        own.set("appended", "")
    counts = [None] * size
    dist.all_gather_object(counts, appended)
    whole = own.get(key)
    assert whole.count(b"y" * 70000) == 1 and whole.count(b"y") == 70000 and whole.count(b"x") == sum(counts), counts
    assert len(whole) == 200000 * size + 70000 + sum(counts)
    dist.barrier()
    if rank == 0:
        own.delete_key("appended")
        own.delete_key(key)
    dist.barrier()


def check_a_value_that_is_deleted_while_it_is_read_is_waited_for():
    rank, size = ranks()
    own = store(60)
    for turn in range(20):
        if rank == 0:
            own.set("deleted", bytes([turn]) * 300000)
            own.delete_key("deleted")
            own.set("deleted", bytes([100 + turn]) * 300000)
        else:
            assert own.get("deleted") in {bytes([one]) * 300000 for one in [turn, 100 + turn, 99 + turn]}
        dist.barrier()
    if rank == 0:
        own.delete_key("deleted")
    dist.barrier()


def check_setting_leaves_no_parts_behind():
    rank, size = ranks()
    own = store()
    dist.barrier()
    before = parts_of_values(own)
    dist.barrier()
    for value in (bytes(200000), b"small", bytes(300000), b"", bytes([rank]) * 100000):
        own.set("of all", value)  # all ranks at once
        own.set(f"overwritten/{rank}", value)
    assert own.get(f"overwritten/{rank}") == bytes([rank]) * 100000
    dist.barrier()
    assert parts_of_values(own) == before + 2 * (size + 1)
    dist.barrier()
    assert own.delete_key(f"overwritten/{rank}")


def check_many_keys_at_once():
    rank, size = ranks()
    own = store()
    keys = [f"many/{rank}/{index}" for index in range(2000)]
    own.multi_set(keys[:20], [bytes([index]) * 60000 for index in range(20)])
    for key in keys[20:]:
        own.set(key, key)
    assert own.check(keys)
    found = own.multi_get(keys)
    assert found[:20] == [bytes([index]) * 60000 for index in range(20)] and found[20:] == [key.encode() for key in keys[20:]]
    own.set_timeout(datetime.timedelta(seconds=0.3))
    refused(RuntimeError, "nobody has set 'never/there'", lambda: own.multi_get(["many/0/0", "never/there"]))


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
