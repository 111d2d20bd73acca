"""Asynchronous calls, sends and receives, and monitored_barrier. Run by c10d_ranks.py."""

import datetime
import gc
import time

import torch
import torch.distributed as dist

from c10d_ranks import DEVICE, on_host, torch_version
from check_c10d_collectives import equal, ranks, refused


def until(condition):
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end, "does not happen"
        time.sleep(0.001)


def check_a_work_completes_without_a_wait_and_holds_its_result():
    rank, size = ranks()
    tensor = torch.ones(3)
    work = dist.all_reduce(tensor, async_op=True)
    until(work.is_completed)
    assert work.is_success()
    equal(tensor, torch.full((3,), float(size)))
    equal(work.result()[0], tensor)
    assert work.exception() is None


def check_futures():
    rank, size = ranks()
    doubled = dist.all_reduce(torch.ones(3), async_op=True).get_future().then(lambda done: done.value()[0] * 2)
    equal(doubled.wait(), torch.full((3,), 2.0 * size))
    work = dist.all_gather([torch.empty(1) for _ in range(size)], torch.tensor([float(rank)]), async_op=True)
    work.wait()
    equal(work.get_future().wait()[0][size - 1], [size - 1.0])


def check_a_future_outlives_its_work():
    """DistributedDataParallel keeps the future alone, also while Python collects what nobody refers to any more."""
    rank, size = dist.get_rank(), dist.get_world_size()
    for attempt in range(3):
        if rank == attempt % size:
            time.sleep(0.3)  # so that the others' are under way
        future = dist.all_reduce(torch.ones(1000), async_op=True).get_future()
        gc.collect()
        end = time.monotonic() + 20
        while not future.done() and time.monotonic() < end:
            time.sleep(0.01)
        assert future.done(), "the future is never completed"
        equal(future.value()[0][0], float(size))


def check_a_callback_may_call_and_wait():
    rank, size = ranks()

    def again(done):
        """As hooks of DistributedDataParallel do it, PowerSGD's for one."""
        return dist.all_reduce(done.value()[0] * 3, async_op=True).get_future().wait()[0]

    works = [dist.all_reduce(torch.ones(2), async_op=True) for _ in range(4)]
    chained = works[-1].get_future().then(again)
    for work in works:
        work.wait()
    equal(chained.wait(), torch.full((2,), 3.0 * size * size))


def check_blocking_and_asynchronous_calls_meet():
    rank, size = ranks()
    for turn in range(20):
        tensor = torch.full((1000,), float(turn))
        if (rank + turn) % 2:
            dist.all_reduce(tensor)
        else:
            dist.all_reduce(tensor, async_op=True).wait()
        equal(tensor[-1], float(turn * size))


def check_calls_of_the_library_and_of_python_keep_their_order():
    rank, size = ranks()
    for turn in range(10):
        tensor = torch.ones(4, 6)
        works = [dist.all_reduce(tensor, async_op=True),
                 dist.all_reduce(tensor[:, ::2], async_op=True),  # has to be copied
                 dist.all_reduce(tensor, op=dist.ReduceOp.MAX, async_op=True),
                 dist.broadcast(tensor[:, 1::2], size - 1, async_op=True)]
        if turn % 2:
            works.append(dist.barrier(async_op=True))
        for work in works if turn % 3 else works[::-1]:
            work.wait()
        equal(tensor[:, ::2], torch.full((4, 3), float(size * size)))
        equal(tensor[:, 1::2], torch.full((4, 3), float(size)))


def check_started_collectives_of_one_tensor():
    rank, size = ranks()
    own, everyone = torch.full((5,), float(rank)), torch.empty(5 * size)
    scattered, root = torch.empty(5), torch.full((3,), float(rank))
    works = [dist.all_gather_into_tensor(everyone, own, async_op=True),
             dist.reduce_scatter_tensor(scattered, torch.ones(5 * size), async_op=True),
             dist.broadcast(root, size - 1, async_op=True)]
    for work in works:
        work.wait()
    equal(everyone, torch.arange(float(size)).repeat_interleave(5))
    equal(scattered, torch.full((5,), float(size)))
    equal(root, torch.full((3,), size - 1.0))


def check_a_signal_interrupts_a_call_that_then_goes_on():
    rank, size = ranks()
    if size == 1:
        return
    import signal

    def interrupt(_number, _frame):
        raise KeyboardInterrupt

    tensor = torch.ones(3)
    if rank == 0:
        for other in range(1, size):
            dist.recv(torch.empty(1), other, tag=55)  # it has been interrupted
        dist.all_reduce(tensor)
    else:
        before = signal.signal(signal.SIGALRM, interrupt)
        signal.setitimer(signal.ITIMER_REAL, 0.05)
        refused(KeyboardInterrupt, "", lambda: dist.all_reduce(tensor))
        signal.signal(signal.SIGALRM, before)
        dist.send(torch.empty(1), 0, tag=55)
    dist.barrier()  # behind it
    equal(tensor, torch.full((3,), float(size)))


def check_ten_thousand_outstanding_works():
    rank, size = ranks()
    count = 10000 if DEVICE == "cpu" else 500  # ranks that share a GPU take turns of milliseconds
    tensors = [torch.full((2,), float(number)) for number in range(count)]
    works = [dist.all_reduce(tensor, async_op=True) for tensor in tensors]
    for work in works:
        work.wait()
    equal(torch.stack(tensors)[:, 0], torch.arange(float(count)) * size)


def check_works_that_nobody_keeps():
    rank, size = ranks()
    tensors = [torch.ones(1000) for _ in range(100)]
    for tensor in tensors:
        dist.all_reduce(tensor, async_op=True)
        if size > 1:
            dist.isend(torch.full((5000,), float(rank)), (rank + 1) % size, tag=9)
    dist.barrier()
    equal(torch.stack(tensors), torch.full((100, 1000), float(size)))
    for _ in range(100 if size > 1 else 0):
        received = torch.empty(5000)
        dist.recv(received, (rank - 1) % size, tag=9)
        equal(received, torch.full((5000,), float((rank - 1) % size)))


def check_sends_and_receives():
    rank, size = ranks()
    if size == 1:
        return
    right, left = (rank + 1) % size, (rank - 1) % size
    for tag in (2, 1):  # received in another order than sent
        dist.isend(torch.full((3,), float(10 * rank + tag)), right, tag=tag)
    for tag in (1, 2):
        received = torch.empty(6)[::2]
        work = dist.irecv(received, left, tag=tag)
        until(work.is_completed)
        equal(received, torch.full((3,), float(10 * left + tag)))
    sent, received = torch.full((2,), float(rank)), torch.empty(2)
    for work in dist.batch_isend_irecv([dist.P2POp(dist.isend, sent, right), dist.P2POp(dist.irecv, received, left)]):
        work.wait()
    equal(received, torch.full((2,), float(left)))
    nothing = torch.empty(0)
    work = dist.isend(nothing, right)
    dist.recv(nothing, left)
    work.wait()


@on_host
def check_large_messages_cross_and_do_not_wait_for_each_other():
    rank, size = ranks()
    if size == 1:
        return
    right, left = (rank + 1) % size, (rank - 1) % size
    counts = (50, 20_000, 1_000_003)
    works = [dist.isend(torch.arange(float(count)) + rank, right, tag=count) for count in counts]
    for count in counts[::-1]:
        received = torch.empty(count)
        dist.recv(received, left, tag=count)
        equal(received, torch.arange(float(count)) + left)
    for work in works:
        work.wait()
    works = [dist.isend(torch.full((count % 300,), float(count)), right, tag=3) for count in range(1, 600)]
    for count in range(1, 600):  # one tag: in the order in which they were sent
        received = torch.empty(count % 300)
        dist.recv(received, left, tag=3)
        equal(received, torch.full((count % 300,), float(count)))
    for work in works:
        work.wait()


@on_host
def check_a_message_of_another_size_is_an_error_that_names_the_sender():
    rank, size = ranks()
    if size == 1:
        return
    for count in (4, 4000):
        if rank == 0:
            refused(RuntimeError, f"rank 1 has sent {count} elements of float32, expected {count - 1} elements of float64",
                    lambda: dist.recv(torch.empty(count - 1, dtype=torch.float64), 1, tag=5))
        elif rank == 1:
            work = dist.isend(torch.ones(count), 0, tag=5)
            if count > 1000:  # a small one may have ended before
                refused(RuntimeError, f"rank 0 expected {count - 1} elements of float64", work.wait)
        dist.barrier()


@on_host
def check_receives_from_any_source():
    rank, size = ranks()
    if size == 1:
        return
    for turn in range(2):
        if rank == 0:
            seen = []
            for _ in range(size - 1):
                received = torch.empty(4)
                work = dist.irecv(received, tag=7) if turn else None
                source = dist.recv(received, tag=7) if work is None else (work.wait(), work._source_rank())[1]
                equal(received, torch.full((4,), float(source)))
                seen.append(source)
            assert sorted(seen) == list(range(1, size)), seen
        else:
            dist.send(torch.full((4,), float(rank)), 0, tag=7)
        dist.barrier()  # the next turn's messages may overtake


def check_several_receives_from_any_source():
    """Of one sender, all of them begun before the first message has come."""
    rank, size = ranks()
    if size == 1:
        return
    if rank == 0:
        received = [torch.empty(2) for _ in range(3)]
        works = [dist.irecv(one, tag=8) for one in received]
        for work in works:
            work.wait()
        assert sorted(one[0].item() for one in received) == [1, 2, 3], received
    elif rank == 1:
        for number in range(1, 4):
            dist.send(torch.full((2,), float(number)), 0, tag=8)
    dist.barrier()


def check_objects_are_sent():
    rank, size = ranks()
    if size == 1 or not hasattr(dist, "send_object_list"):
        return
    if rank == 0:
        dist.send_object_list(["text", {"a": 1}], 1)
    elif rank == 1:
        values = [None, None]
        dist.recv_object_list(values, 0)
        assert values == ["text", {"a": 1}]


def check_monitored_barrier_names_who_is_missing():
    rank, size = ranks()
    if size < 2 or torch_version() < (2, 14):
        return
    group = dist.distributed_c10d._get_default_group()
    group.monitored_barrier(datetime.timedelta(seconds=60))
    if rank == 0:
        words = "Rank 1 failed to pass monitoredBarrier" if size == 2 else \
            f"Ranks {', '.join(map(str, range(1, size)))} failed to pass monitoredBarrier"
        refused(RuntimeError, words, lambda: group.monitored_barrier(datetime.timedelta(seconds=0.3), wait_all_ranks=True))
    dist.barrier()
    if rank != 0:  # finds what rank 0 has said
        refused(RuntimeError, "failed to pass", lambda: group.monitored_barrier(datetime.timedelta(seconds=60)))


def check_a_timeout_says_who_was_missing_and_that_it_is_one():
    rank, size = ranks()
    if size == 1:
        return
    group = dist.new_group(list(range(size)), timeout=datetime.timedelta(seconds=1))
    dist.barrier(group=group)
    if rank == 0:
        refused(dist.DistBackendError, "the timeout of 1 s is over", lambda: dist.all_reduce(torch.ones(1), group=group))
    dist.barrier()


@on_host
def check_a_message_that_does_not_come_is_named_by_tag_and_rank():
    rank, size = ranks()
    if size == 1:
        return
    group = dist.new_group(list(range(size)), timeout=datetime.timedelta(seconds=1))
    dist.barrier(group=group)
    if rank == 0:
        large = torch.ones(1 << 20)  # which is not sent before it is received
        for said, call in (("receive of tag 9 from rank 1 of the group", lambda: dist.recv(torch.ones(1), 1, group=group, tag=9)),
                           ("receive of tag 8 from any rank", lambda: dist.recv(torch.ones(1), None, group=group, tag=8)),
                           ("send of tag 7 to rank 1 of the group", lambda: dist.send(large, 1, group=group, tag=7))):
            refused(dist.DistBackendError, f"the timeout of 1 s is over: {said}", call)
    dist.barrier()


def check_what_was_given_up_takes_no_later_message():
    """Small and large ones, and those of a large scatter. What was sent comes, late or not."""
    rank, size = ranks()
    if size == 1:
        return
    for count in (1, 100_000):
        group = dist.new_group(list(range(size)), timeout=datetime.timedelta(seconds=1))
        if rank == 0:
            late = torch.zeros(count)
            refused(dist.DistBackendError, "the timeout of 1 s is over", lambda: dist.recv(late, 1, group=group, tag=9))
            refused(dist.DistBackendError, "the timeout of 1 s is over",
                    lambda: dist.scatter(torch.zeros(count * 1000), None, 1, group=group))
            refused(dist.DistBackendError, "the timeout of 1 s is over", lambda: dist.send(torch.full((100_000,), 1.0), 1, group=group))
        dist.barrier()
        if rank == 0:
            wanted = torch.zeros(count)
            dist.recv(wanted, 1, tag=9, group=group)
            equal(wanted, torch.full((count,), 7.0))
            equal(late, torch.zeros(count))
        elif rank == 1:
            dist.send(torch.full((count,), 7.0), 0, tag=9, group=group)
            sent = torch.zeros(100_000)
            dist.recv(sent, 0, group=group)
            equal(sent, torch.full((100_000,), 1.0))


def check_what_is_under_way_when_the_timeout_is_over_is_received_or_comes_next():
    """Whenever it comes: it is the result of the receive, or of the one after that, and nobody else's."""
    rank, size = ranks()
    if size == 1:
        return
    for turn, before in enumerate((0.3, 0.1, 0.05, 0.02, 0.0)):
        group = dist.new_group(list(range(size)), timeout=datetime.timedelta(seconds=0.5))
        dist.barrier()
        begin = time.monotonic()
        if rank == 0:
            first, second = torch.full((20_000_000,), -1.0), torch.zeros(20_000_000)
            try:
                dist.recv(first, 1, group=group, tag=turn)
                received = True
            except dist.DistBackendError as error:
                assert "the timeout of 0.5 s is over" in str(error), error
                received = False
                equal(first[[0, -1]], torch.full((2,), -1.0))
            dist.recv(second, 1, tag=turn, group=group)
            equal(second[[0, -1]], torch.full((2,), 2.0 if received else 1.0))
            equal(first[[0, -1]], torch.full((2,), 1.0 if received else -1.0))
            if not received:
                dist.recv(second, 1, tag=turn, group=group)
        elif rank == 1:
            time.sleep(max(0.5 - before - (time.monotonic() - begin), 0))
            works = [dist.isend(torch.full((20_000_000,), float(one)), 0, group=group, tag=turn) for one in (1, 2)]
            until(lambda: all(work.is_completed() for work in works))
        dist.barrier()


def check_a_gather_or_scatter_whose_time_is_over_leaves_nothing_to_the_next():
    rank, size = ranks()
    if size == 1:
        return
    late = 1
    for is_gather in (True, False):
        group = dist.new_group(list(range(size)), timeout=datetime.timedelta(seconds=1))
        results = []
        for call in (1, 2, 3):
            if call == 1 and rank == (late if is_gather else 0):
                time.sleep(1.6)
            parts = [torch.zeros(100_000) for _ in range(size)]
            try:
                if is_gather:
                    dist.gather(torch.full((100_000,), 10.0 * call + rank), parts if rank == 0 else None, 0, group=group)
                    got = [10.0 * call + one for one in range(size)] == [part[0].item() for part in parts] if rank == 0 else True
                else:
                    given = [torch.full((100_000,), 10.0 * call + one) for one in range(size)]
                    dist.scatter(parts[0], given if rank == 0 else None, 0, group=group)
                    got = parts[0][0].item() == 10.0 * call + rank
                assert got, f"call {call} got {[part[0].item() for part in parts]}"
                results.append("ok")
            except dist.DistBackendError as error:
                assert f"{'gather' if is_gather else 'scatter'}: rank " in str(error), error
                results.append("late")
        if rank == (0 if is_gather else late):
            assert results[0] == "late", results
        dist.barrier()


def check_the_future_of_a_receive_knows_its_timeout():
    rank, size = ranks()
    group = dist.new_group(list(range(size)), timeout=datetime.timedelta(seconds=0.5))
    if rank == 0 and size > 1:
        work = dist.irecv(torch.zeros(1), 1, group=group, tag=9)
        refused(RuntimeError, "the timeout of 0.5 s is over: receive of tag 9 from rank 1", lambda: work.get_future().wait())
        until(work.is_completed)
    dist.barrier()


def check_who_comes_as_the_timeout_ends_is_late_by_name_or_in_time():
    rank, size = ranks()
    if size == 1:
        return
    for turn in range(8):
        dist.barrier()
        group = dist.new_group(list(range(size)), timeout=datetime.timedelta(seconds=1))
        dist.barrier()
        if rank == size - 1:
            time.sleep(0.998 + turn * 0.0008)
        try:
            dist.all_reduce(torch.ones(1), group=group)
        except dist.DistBackendError as error:
            assert "had not come as far" not in str(error) or f"rank {size - 1} had not" in str(error), error
    dist.barrier()


def check_a_wait_with_a_timeout_ends():
    rank, size = ranks()
    if size == 1:
        return
    tensor = torch.ones(1)
    if rank == 0:
        work = dist.all_reduce(tensor, async_op=True)
        refused(RuntimeError, "timeout", lambda: work.wait(datetime.timedelta(seconds=0.2)))
        dist.distributed_c10d._get_default_group().send([torch.ones(1)], 1, 77).wait()
        work.wait()
    else:
        if rank == 1:
            dist.recv(torch.ones(1), 0, tag=77)
        dist.all_reduce(tensor)
    equal(tensor, [float(size)])


def check_the_profiler_sees_our_events():
    rank, size = ranks()
    with torch.autograd.profiler.profile() as profile:
        dist.all_reduce(torch.ones(1))
        dist.barrier()
        if size > 1:
            work = dist.isend(torch.ones(1), (rank + 1) % size)
            dist.recv(torch.ones(1), (rank - 1) % size)
            work.wait()
    names = {event.name for event in profile.function_events}
    assert {"coordd:all_reduce", "coordd:barrier"} <= names, names
    assert size == 1 or {"coordd:send", "coordd:recv"} <= names, names


def check_two_threads_with_a_group_each():
    import threading
    rank, size = ranks()
    groups = [dist.new_group(list(range(size))) for _ in range(2)]
    failures = []

    def work(group, order):
        try:
            for turn in range(100):
                tensor = torch.full((10,), float(turn))
                dist.all_reduce(tensor, group=group)
                equal(tensor[0], float(turn * size))
        except BaseException as error:
            failures.append(error)

    pairs = list(zip(groups, range(2)))
    threads = [threading.Thread(target=work, args=pair) for pair in (pairs if rank % 2 else pairs[::-1])]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures, failures
    for group in groups:
        dist.destroy_process_group(group)
