"""Hosts that come and go: Horovod's elastic scenarios, with 127.0.0.x as hosts, which are this machine.

No scaling, hosts added, hosts removed, one rank that fails by an error or by SIGKILL, cooldown of its slot, the minimum of
hosts, all ranks fail, no host is left, the limit of resets.
"""

import os
import re
import signal
import sys

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))

from tests.support import processes
from tests.support.processes import Process, clean_environment, program, wait_for

WORKER = f"echo pid $$; exec {program('digits')} --elastic --report-every 5 --epochs"


class DiscoveryTest(processes.TestCase):
    def setUp(self):
        super().setUp()
        self.environment = clean_environment(TMPDIR=self.folder)
        self.environment.pop("XDG_RUNTIME_DIR", None)
        self.hosts, self.calls = (os.path.join(self.folder, name) for name in ("hosts", "calls"))
        self.script = f"echo x >> {self.calls}; cat {self.hosts}"

    def there_are(self, *hosts):
        with open(self.hosts + ".new", "w", encoding="ascii") as file:
            file.write("".join(host + "\n" for host in hosts))
        os.rename(self.hosts + ".new", self.hosts)

    def asked(self):
        return os.path.getsize(self.calls) // 2 if os.path.exists(self.calls) else 0

    def started(self, *arguments):
        return self.start(Process([program("coordrun"), *arguments], self.environment))

    def discovering(self, *arguments, worker):
        return self.started("--host-discovery-script", self.script, *arguments, "--", "bash", "-c", worker)

    def assert_says(self, run, pattern, count=1):
        self.assertTrue(wait_for(lambda: len(re.findall(pattern, run.text())) >= count or not run.running()), run.text())
        self.assertGreaterEqual(len(re.findall(pattern, run.text())), count, run.text())

    def pid_of(self, run, rank):
        return int(re.findall(rf"\[{rank}\] pid (\d+)", run.text())[-1])

    @staticmethod
    def changes_to(run, size):
        """How many generations of so many workers have followed another one so far."""
        return run.text().count(f": {size} workers go on")

    def test_workers_follow_the_hosts(self):
        self.there_are("localhost:1")
        run = self.discovering("--min-np", "2", "--max-np", "3", "--blacklist-cooldown-range", "0.1", "1",
                               worker=f"{WORKER} 100000")
        # Fewer than the minimum: it waits.
        self.assertTrue(wait_for(lambda: self.asked() >= 2), run.text())
        self.assertNotIn("pid", run.text())
        self.there_are("localhost:2")
        self.assert_says(run, r"\[0\] epoch +5 ")
        # Added.
        self.there_are("localhost:2", "127.0.0.2:1")
        self.assert_says(run, r"host 127\.0\.0\.2 is there: slot 2")
        self.assert_says(run, r"slot 2 is started \(host 127\.0\.0\.2\)")
        self.assert_says(run, r": 3 workers go on")
        # SIGKILL: the slot is used again, whether the others have gone on without it by then or not.
        victim, changes = self.pid_of(run, 2), self.changes_to(run, 3)
        os.kill(victim, signal.SIGKILL)
        self.assert_says(run, rf"rank 2 \(host 127\.0\.0\.2, pid {victim}\) was killed by SIGKILL")
        self.assert_says(run, r"slot 2 is started again \(host 127\.0\.0\.2\)")
        self.assert_says(run, r": 3 workers go on", changes + 1)
        # Removed, and no failure.
        changes = self.changes_to(run, 2)
        self.there_are("127.0.0.2:1", "localhost:1")
        self.assert_says(run, r"host localhost has fewer slots: slot 1 \(pid \d+\)")
        self.assert_says(run, r": 2 workers go on", changes + 1)
        self.assertEqual(run.text().count("; 2 workers go on"), 1, "rank 1 is none of those lost")
        # It comes back.
        changes = self.changes_to(run, 3)
        self.there_are("127.0.0.2:1", "localhost:2")
        self.assert_says(run, r"slot 1 is started again")
        self.assert_says(run, r": 3 workers go on", changes + 1)
        # A script that fails changes nothing.
        os.unlink(self.hosts)
        self.assert_says(run, r"--host-discovery-script exited with status 1: cat: .*; the hosts stay as they are")
        run.signal(signal.SIGINT)
        self.assertEqual(run.wait(), 130)
        self.assert_nothing_left()

    def test_a_rank_that_fails_by_an_error_is_started_again_and_the_job_completes(self):
        once = os.path.join(self.folder, "once")
        self.there_are("localhost:1", "127.0.0.1:1")
        run = self.discovering("--min-num-proc", "2", "--max-num-proc", "2", "--blacklist-cooldown-range", "0.1", "1",
                               worker=f'if [ "$COORDD_RANK" = 1 ] && mkdir {once}; then echo bad >&2; exit 3; fi; {WORKER} 3')
        self.assertEqual(run.wait(), 0, run.text())
        self.assertRegex(run.text(), r"rank 1 .*exited with status 3 after .* \(last on stderr: bad\); 1 worker goes on")
        self.assertIn("slot 1 is started again", run.text())
        self.assertIn("all workers exited with status 0; 1 was lost and started again", run.text())

    def test_it_ends_when_nobody_is_left(self):
        self.there_are("localhost:2")
        run = self.discovering("--max-np", "2", worker="exit 5")
        self.assertEqual(run.wait(), 5, run.text())
        self.assertIn("as well, and nobody is left", run.text())
        run = self.discovering("--max-np", "2", "--elastic-timeout", "1", worker="echo up; sleep 1000")
        self.assert_says(run, r"\] up", 2)
        self.there_are()
        self.assertEqual(run.wait(), 1, run.text())
        self.assertIn("no worker is left: their hosts are gone", run.text())
        status, text = self.run_command(program("coordrun"), "--host-discovery-script", "echo", "--elastic-timeout", "0.2",
                                        "true", environment=self.environment)
        self.assertEqual(status, 2)
        self.assertIn("no slots for 1 worker within 200ms (--elastic-timeout): it has found 0", text)
        self.assert_nothing_left()

    def test_the_limit_of_resets_is_the_end(self):
        run = self.started("-np", "3", "--min-np", "1", "--reset-limit", "1", "--", "bash", "-c", f"{WORKER} 100000")
        self.assert_says(run, r"\[0\] epoch +5 ")
        os.kill(self.pid_of(run, 1), signal.SIGKILL)
        self.assert_says(run, r"generation 2: 2 workers go on")
        os.kill(self.pid_of(run, 2), signal.SIGKILL)
        self.assertNotEqual(run.wait(), 0)
        self.assertNotIn("generation 3", run.text())
        self.assert_nothing_left()

    def test_an_answer_that_is_none_changes_nothing(self):
        self.there_are("localhost:2")
        run = self.discovering("--min-np", "2", "--max-np", "2", worker=f"{WORKER} 100000")
        self.assert_says(run, r"\[0\] epoch +5 ")
        for bad in ("WARNING: the queue is slow", "n[1-", "-oProxyCommand=x", "x" * 10000, "localhost:two"):
            asked = self.asked()
            self.there_are("localhost:2", bad)
            self.assertTrue(wait_for(lambda asked=asked: self.asked() >= asked + 3), run.text())
            self.there_are("# a comment", "localhost:2  # two")
            self.assertTrue(wait_for(lambda asked=asked: self.asked() >= asked + 5), run.text())
        # Nothing at all, for a moment.
        asked = self.asked()
        self.there_are()
        self.assert_says(run, r"names 0 slots, fewer than --min-np 2: the hosts stay as they are")
        self.assertTrue(wait_for(lambda: self.asked() >= asked + 2), run.text())
        self.there_are("localhost:2")
        self.assertTrue(wait_for(lambda: self.asked() >= asked + 5), run.text())
        self.assertEqual(run.text().count("--host-discovery-script printed the line"), 5, run.text())
        self.assertNotIn("is gone", run.text())
        self.assertTrue(run.running(), run.text())
        run.signal(signal.SIGINT)
        self.assertEqual(run.wait(), 130)
        self.assert_nothing_left()

    def test_an_answer_of_megabytes_is_refused_with_a_sentence(self):
        run = self.started("--host-discovery-script", "head -c 3000000 /dev/zero | tr '\\0' x", "--min-np", "1", "--max-np", "1",
                           "--elastic-timeout", "2", "--", "true")
        self.assertNotEqual(run.wait(), 0, run.text())
        self.assertIn("--host-discovery-script", run.text())
        self.assertRegex(run.text(), "more than 1 MiB, which begins .x+.: expected a host a line, and an end")
        self.assertLess(len(run.text()), 10_000)
        self.assert_nothing_left()

    def test_a_drained_slot_goes_before_one_with_a_worker(self):
        self.environment["XDG_RUNTIME_DIR"] = self.folder  # for coordctl: no other coordd is there
        self.there_are("localhost:3")
        run = self.discovering("--min-np", "2", "--max-np", "3", "--job", "shrinks", worker=f"{WORKER} 100000")
        self.assert_says(run, r"\[0\] epoch +5 ")
        status, text = self.run_command(program("coordctl"), "drain", "1", "--job", "shrinks", environment=self.environment)
        self.assertEqual(status, 0, text)
        self.assert_says(run, r"\(.*pid \d+\) was asked to leave and exited with status 0 after .*; 2 workers go on")
        asked = self.asked()
        self.there_are("localhost:2")
        self.assertTrue(wait_for(lambda: self.asked() >= asked + 4), run.text())
        self.assertNotIn("has fewer slots", run.text())
        self.assertNotIn("worker is left", run.text())
        # One more is one too few.
        os.kill(self.pid_of(run, 0), signal.SIGKILL)
        self.assert_says(run, r"1 worker is left, --min-np 2: waiting up to 600 s for another")
        self.assert_says(run, r"0 is started again")
        run.signal(signal.SIGINT)
        self.assertEqual(run.wait(), 130)
        self.assert_nothing_left()

    def test_other_hosts_are_waited_for_when_all_are_gone_and_what_is_lost_is_said(self):
        self.there_are("localhost:1")
        run = self.discovering("--max-np", "1", "--drain-grace", "1", worker=f"{WORKER} 100000")
        self.assert_says(run, r"\[0\] epoch +5 ")
        self.there_are()
        self.assert_says(run, r"host localhost is gone: slot 0 \(pid \d+\)")
        self.assert_says(run, r"nobody is left; hosts are waited for")
        self.there_are("127.0.0.2:1")
        self.assert_says(run, r"slot 1 is started \(host 127\.0\.0\.2\)")
        self.assert_says(run, r"no member with state is left: generation \d+ .* begins anew; the steps of \d+ batch")
        run.signal(signal.SIGINT)
        self.assertEqual(run.wait(), 130)
        self.assert_nothing_left()

    def assert_the_limit_is_the_end(self, run):
        self.assert_says(run, r"no generation of the job follows: --reset-limit 1 is reached")
        self.assertNotIn(run.wait(), (0, None), run.text())
        self.assertNotIn("generation 3", run.text())
        self.assertNotIn("all workers exited with status 0", run.text())
        self.assert_nothing_left()

    def test_nobody_is_started_again_behind_the_limit_of_resets(self):
        run = self.started("-np", "3", "--min-np", "1", "--max-restarts", "9", "--reset-limit", "1", "--", "bash", "-c",
                           f"{WORKER} 100000")
        self.assert_says(run, r"\[0\] epoch +5 ")
        os.kill(self.pid_of(run, 1), signal.SIGKILL)
        self.assert_says(run, r"generation 2: \d workers go on")
        os.kill(self.pid_of(run, 2), signal.SIGKILL)
        self.assert_the_limit_is_the_end(run)

    def test_a_host_that_goes_behind_the_limit_is_the_end(self):
        self.there_are("localhost:1", "127.0.0.2:1", "127.0.0.3:1")
        run = self.discovering("--min-np", "1", "--reset-limit", "1", "--drain-grace", "2", worker=f"{WORKER} 100000")
        self.assert_says(run, r"\[0\] epoch +5 ")
        self.there_are("localhost:1", "127.0.0.2:1")
        self.assert_says(run, r"generation 2: 2 workers go on")
        self.there_are("localhost:1")
        self.assert_says(run, r"cannot be asked to leave: .*--reset-limit 1 is reached.* --drain-grace 2s")
        self.assert_the_limit_is_the_end(run)

    def test_the_python_module_takes_horovodruns_flags(self):
        environment = {**self.environment, "PYTHONPATH": os.path.join(processes.ROOT, "client", "python"),
                       "COORDD_COORDRUN": program("coordrun")}
        status, text = self.run_command(sys.executable, "-m", "coordd.horovod", "-np", "2", "--dry-run", "python", "x.py",
                                        environment=environment)
        self.assertEqual(status, 0, text)
        self.assertIn("python -m coordd.horovod x.py", text)


if __name__ == "__main__":
    processes.main()
