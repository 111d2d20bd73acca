"""coordd.launch: jobs whose processes a program has started itself. This file is also the program of those processes."""

import contextlib
import json
import os
import pickle
import signal
import subprocess
import sys
import tempfile
import time
import unittest
import urllib.request

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path[:0] = [ROOT, os.path.join(ROOT, "client", "python")]

import numpy  # noqa: E402

from coordd import HorovodInternalError, _arrays, _basics, launch  # noqa: E402

PATIENCE_S = float(os.environ.get("COORDD_TEST_PATIENCE_S", "60"))
ELSEWHERE = "127.0.0.2"  # an address of this machine that is not taken for loopback, so that there is TLS


# --- what the processes do: each function is called in a process of its own, with the job and a rank ------------------


def add_ranks(job, rank):
    with job.member(rank):
        _basics.init()
        total = _arrays.allreduce("sum", numpy.array([float(_basics.rank())]), _basics.Sum)
        said = {"rank": _basics.rank(), "size": _basics.size(), "total": total.item()}
    return {**said, "left": {name: os.environ.get(name) for name in ("COORDD_ADDR", "COORDD_RANK", "COORDD_SIZE")}}


def join_by_arguments(job, rank):
    with tempfile.TemporaryDirectory() as folder:
        variables = job.environment(rank, folder)
        _basics.init(coordinator=job.variables["COORDD_ADDR"], job=job.name, token=job.token, launcher="none",
                     tls_ca=variables["COORDD_TLS_CA"], tls_cert=variables["COORDD_TLS_CERT"], tls_key=variables["COORDD_TLS_KEY"])
        size = _basics.size()
        _basics.shutdown()
    return {"size": size}


def raise_and_go_on(job, rank):
    """Rank 1's function raises; its process is a member of another job afterwards."""
    outcome = []
    try:
        with job.member(rank):
            _basics.init()
            if rank == 1:
                raise ValueError("bad batch")
            _arrays.allreduce("sum", numpy.ones(1), _basics.Sum)
    except (ValueError, HorovodInternalError) as error:
        outcome.append(str(error))
    with job.named(job.name + "-2").member(rank):
        _basics.init()
        outcome.append(_arrays.allreduce("sum", numpy.ones(1), _basics.Sum).item())
    return {"outcome": outcome}


def be_killed(job, rank):
    with job.member(rank, launch=f"{job.name}.{rank}"):
        _basics.init()
        _arrays.allreduce("sum", numpy.ones(1), _basics.Sum)
        if rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        try:
            _arrays.allreduce("again", numpy.ones(1), _basics.Sum)
        except HorovodInternalError as error:
            return {"error": str(error)}
    return {}


def tell_the_size(job, rank):
    with job.member(rank):
        _basics.init()
        return {"size": _basics.size()}


def own_a_coordinator():
    coordinator = launch.Coordinator(ELSEWHERE)
    print(json.dumps({"pid": coordinator._process.pid, "folder": coordinator._folder}), flush=True)
    time.sleep(PATIENCE_S)


# --- the test ---------------------------------------------------------------------------------------------------------


def start(function, job, rank, **variables):
    """A process that was never told of the job but by its stdin."""
    process = subprocess.Popen([sys.executable, os.path.abspath(__file__), "call", function.__name__], stdin=subprocess.PIPE,
                               stdout=subprocess.PIPE, env={**os.environ, **variables})
    process.stdin.write(pickle.dumps((job, rank)))
    process.stdin.close()
    return process


def result(process):
    output = process.stdout.read()
    process.stdout.close()
    process.wait(PATIENCE_S)
    return json.loads(output) if output else None


class Launch(unittest.TestCase):
    def on_ranks(self, function, job, ranks, **variables):
        return [result(one) for one in [start(function, job, rank, **variables) for rank in range(ranks)]]

    def test_processes_with_a_job_are_its_workers_and_are_as_before_afterwards(self):
        with launch.Coordinator(ELSEWHERE) as coordinator:
            job = coordinator.job("train", size=3)
            # What an outer launcher has said is of no account, and is there again behind the block.
            results = self.on_ranks(add_ranks, job, 3, COORDD_ADDR="127.0.0.1:1", COORDD_RANK="7", RANK="5", WORLD_SIZE="9",
                                    MASTER_ADDR="nowhere")
        self.assertEqual([one["rank"] for one in results], [0, 1, 2])
        self.assertEqual([(one["size"], one["total"]) for one in results], [(3, 3.0)] * 3)
        self.assertEqual([one["left"] for one in results],
                         [{"COORDD_ADDR": "127.0.0.1:1", "COORDD_RANK": "7", "COORDD_SIZE": None}] * 3)

    def test_one_coordinator_serves_jobs_side_by_side(self):
        with launch.Coordinator() as coordinator:
            jobs = [coordinator.job(size=2), coordinator.job(size=1)]
            self.assertNotEqual(jobs[0].name, jobs[1].name)
            self.assertNotEqual(jobs[0].token, jobs[1].token)
            started = [start(add_ranks, jobs[0], 0), start(add_ranks, jobs[1], 0), start(add_ranks, jobs[0], 1)]
            self.assertEqual([result(one)["size"] for one in started], [2, 1, 2])

    def test_init_takes_all_that_it_needs_as_arguments(self):
        with launch.Coordinator(ELSEWHERE) as coordinator:
            job = coordinator.job("by-arguments", size=1)
            self.assertEqual(self.on_ranks(join_by_arguments, job, 1), [{"size": 1}])
            joined = start(tell_the_size, coordinator.job("held", size=2, token="right"), 0)
            self.addCleanup(joined.stdout.close)
            self.await_state(coordinator, "held", 1)
            wrong = start(join_by_arguments, coordinator.job("held", size=2, token="wrong"), 1)
            self.assertIsNone(result(wrong))
            self.assertNotEqual(wrong.returncode, 0)
            joined.kill()
            joined.wait()

    def test_an_error_in_a_process_that_lives_on_is_told_to_the_others(self):
        with launch.Coordinator() as coordinator:
            results = self.on_ranks(raise_and_go_on, coordinator.job("raises", size=2), 2)
        self.assertRegex(results[0]["outcome"][0], r"rank 1 .*failed: ValueError: bad batch \(launch_test.py, line \d+, in raise_and_go_on\)")
        self.assertEqual(results[1]["outcome"][0], "bad batch")
        self.assertEqual([one["outcome"][1] for one in results], [2.0, 2.0])

    def test_how_a_process_has_ended_is_in_the_errors_of_the_others(self):
        with launch.Coordinator(ELSEWHERE) as coordinator:
            job = coordinator.job("killed", size=2)
            survivor, killed = start(be_killed, job, 0), start(be_killed, job, 1)
            self.assertIsNone(result(killed))
            told = coordinator.report_end(job, "killed.1", signal=-killed.returncode, reason="out of memory", last_words=["loading"])
            self.assertTrue(told)
            self.assertRegex(result(survivor)["error"], r"rank 1 .*was lost: it was killed by SIGKILL \(out of memory\).*loading")
        self.assertFalse(coordinator.report_end(job, "killed.1", status=1))  # there is no coordd any more

    def test_a_job_has_its_own_settling_window(self):
        with launch.Coordinator() as coordinator:
            job = coordinator.job("settles", size=3, min_workers=2, settling_window_s=PATIENCE_S)
            started = [start(tell_the_size, job, rank) for rank in (0, 1)]
            self.await_state(coordinator, "settles", 2)
            time.sleep(1.5)  # coordd's own window is 1 s
            started.append(start(tell_the_size, job, 2))
            self.assertEqual([result(one)["size"] for one in started], [3, 3, 3])
            for count in (0, -1, 1.5, "2", True):
                with self.assertRaisesRegex(ValueError, f"size is {count!r}: expected a number of workers"):
                    coordinator.job(size=count)
                with self.assertRaisesRegex(ValueError, f"min_workers is {count!r}: expected a number of workers"):
                    coordinator.job(size=2, min_workers=count)
            with self.assertRaisesRegex(ValueError, "on_failure is 'nonsense': expected end, raise or continue"):
                coordinator.job(size=2, min_workers=1, on_failure="nonsense")
            with self.assertRaisesRegex(ValueError, "at least 3: expected"):
                coordinator.job(size=2, min_workers=3)

    def test_coordd_ends_with_its_process(self):
        owner = subprocess.Popen([sys.executable, os.path.abspath(__file__), "own"], stdout=subprocess.PIPE)
        said = json.loads(owner.stdout.readline())
        self.assertTrue(os.path.isdir(said["folder"]))
        owner.kill()
        owner.wait()
        owner.stdout.close()
        self.await_that(lambda: not os.path.exists(f"/proc/{said['pid']}"))
        self.assertFalse(os.path.exists(said["folder"]))

    def test_a_coordd_that_does_not_start_says_why(self):
        with self.assertRaisesRegex(HorovodInternalError, "did not start: .*--no-such-flag"):
            launch.Coordinator(arguments=["--no-such-flag"])

    def await_that(self, holds):
        end = time.monotonic() + PATIENCE_S
        while not holds():
            self.assertLess(time.monotonic(), end)
            time.sleep(0.02)

    def await_state(self, coordinator, job, workers):
        """Until so many have joined."""
        def there():
            with urllib.request.urlopen(f"http://{coordinator.reach.http}/v1/events", timeout=10) as answer:
                events = json.load(answer)["events"]
            return sum(one["kind"] == "worker_joined" and one.get("job", one.get("job_name")) == job for one in events) >= workers
        self.await_that(there)


def main():
    if sys.argv[1:2] == ["call"]:
        job, rank = pickle.load(sys.stdin.buffer)
        with contextlib.redirect_stdout(sys.stderr):
            said = globals()[sys.argv[2]](job, rank)
        print(json.dumps(said))
    elif sys.argv[1:2] == ["own"]:
        own_a_coordinator()
    else:
        unittest.main()


if __name__ == "__main__":
    main()
