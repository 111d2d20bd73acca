"""A real Slurm with four simulated nodes: coordrun inside allocations, and workers that srun starts by themselves."""

import json
import os
import signal
import sys
import time
import unittest

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, ROOT)

from tests.launchers import slurm_cluster
from tests.launchers.launcher_case import LauncherCase, lines_of, workers_find_themselves
from tests.support import processes
from tests.support.processes import program, wait_for

SMALL_RUN = ("allreduce", "--iterations", "5", "--tensors", "3", "--elements", "1000")
PLACE = 'echo "$COORDD_RANK/$COORDD_SIZE $COORDD_LOCAL_RANK/$COORDD_LOCAL_SIZE $SLURMD_NODENAME"'


@unittest.skipIf(slurm_cluster.missing(), f"not installed: {', '.join(slurm_cluster.missing())}")
class SlurmCase(LauncherCase):
    fake_gpus = 0

    @classmethod
    def setUpClass(cls):
        cls.cluster = slurm_cluster.Cluster(cls.fake_gpus)
        cls.addClassCleanup(cls.cluster.end)

    def setUp(self):
        super().setUp()
        self.environment.update(self.cluster.environment)
        # A job that a failed test has left behind must not keep the next one waiting.
        self.addCleanup(self.cluster.ask, "scancel", "--signal=KILL", "--full", "-u", str(os.getuid()))
        self.addCleanup(self.cluster.ask, "scancel", "-u", str(os.getuid()))

    def slurm(self, *command):
        return self.run_command(*command, environment=self.environment)

    def batch(self, script, *options, wait=True):
        """Submits it; (job id, path of its output)."""
        output = self.file("batch.out")
        path = self.file("job.sbatch")
        with open(path, "w", encoding="utf-8") as file:
            file.write("#!/bin/bash\n" + script)
        waiting = ["--wait"] if wait else []
        status, text = self.slurm("sbatch", "--parsable", "-o", output, *waiting, *options, path)
        self.assertTrue(text.strip(), f"sbatch said nothing ({status})")
        return text.strip().splitlines()[0], output


class CoordrunTest(SlurmCase):
    fake_gpus = 2 if os.getuid() == 0 else 0

    def test_in_a_batch_job_workers_start_on_all_nodes(self):
        coordrun, worker = program("coordrun"), program("coordd-worker")
        _, output = self.batch(f"{coordrun} -- bash -c '{PLACE}'\n"
                               f"{coordrun} --json {worker} {' '.join(SMALL_RUN)}\necho status $?\n", "-w", "n[0-1]", "-n4", "-m", "plane=3")
        text = read(output)
        places = ["0/4 0/3 n0", "1/4 1/3 n0", "2/4 2/3 n0", "3/4 0/1 n1"]
        self.assertEqual([lines_of(text, rank)[0] for rank in range(4)], places, text)
        self.assertEqual(text.count('"wrong":0'), 4, text)
        self.assertRegex(text, r"4 workers, .* reduced per rank in \d+ batch")
        self.assertIn("status 0", text)
        summary = json.loads(next(line for line in text.splitlines() if line.startswith('{"job"')))
        self.assertEqual([rank["host"] for rank in summary["ranks"]], ["n0", "n0", "n0", "n1"])
        self.assert_clean()

    def test_inside_salloc_and_with_fewer_workers_than_tasks(self):
        status, text = self.slurm("salloc", "-Q", "-N2", "-n4", program("coordrun"), "-np", "3", "--launcher-arg=-N2", "--",
                                  "bash", "-c", PLACE)
        self.assertEqual(status, 0, text)
        self.assertEqual(sum(f"/3 {local}" in text for local in ("0/2 n0", "1/2 n0", "0/1 n1")), 3, text)

    def test_a_function_of_a_program_runs_on_all_nodes_of_its_allocation(self):
        if os.environ.get("COORDD_SANITIZE"):
            self.skipTest("no libcoordd.so that Python can load")
        path = self.file("program.py")
        with open(path, "w", encoding="utf-8") as file:
            file.write("""
import os, coordd

def place(word):
    return word + os.environ["COORDD_RANK"] + " of " + os.environ["COORDD_SIZE"] + " on " + os.environ["SLURMD_NODENAME"]

if __name__ == "__main__":
    print("result:", coordd.run(place, ["rank "]))
""")
        self.environment.update(COORDD_COORDRUN=program("coordrun"), PYTHONPATH=os.path.join(ROOT, "client", "python"))
        _, output = self.batch(f"cd {self.folder}\n{sys.executable} {path}\n", "-w", "n[0-1]", "-n3", "-m", "plane=2")
        text = read(output)
        self.assertIn("result: ['rank 0 of 3 on n0', 'rank 1 of 3 on n0', 'rank 2 of 3 on n1']", text)
        self.assertRegex(text, r"ssh -N -L 29651:127.0.0.1:\d+ \S+@\S+")
        self.assertEqual([name for name in os.listdir(self.folder) if name.startswith(".coordd-run-")], [])
        self.assert_clean()

    def test_the_first_failure_ends_the_step(self):
        status, text = self.slurm("salloc", "-Q", "-N2", "-n4", program("coordrun"), "--linger", "0.2", "--", "bash", "-c",
                                  'setsid sleep 1000 & [ $COORDD_RANK = 3 ] && exit 9; sleep 1000')
        self.assertEqual(status, 9, text)
        self.assertRegex(text, r"rank 3 \(host n\d, pid \d+\) failed first: it exited with status 9")
        self.assertIn("ranks 0, 1, 2 were killed by SIGTERM", text)
        self.assert_clean()

    def test_coordrun_killed_leaves_nothing_in_the_step(self):
        script = f"{program('coordrun')} -- bash -c 'setsid sleep 1000 & echo up; sleep 1000' &\necho $! > {self.file('pid')}\nwait\n"
        _, output = self.batch(script, "-N2", "-n3", wait=False)
        self.assertTrue(wait_for(lambda: read(output).count("up\n") == 3), read(output))
        os.kill(int(read(self.file("pid"))), signal.SIGKILL)
        begin = time.monotonic()
        self.assert_nothing_left()
        self.assertLess(time.monotonic() - begin, 5)
        # Slurm may have killed the agents too, with their secrets left in files; the next run removes those.
        self.coordrun("--launcher", "local", "--", "true")
        self.assert_clean()

    def test_scancel_lets_workers_tidy_up_and_leaves_nothing(self):
        job, output = self.batch(f"exec {program('coordrun')} -- bash -c "
                                 "'trap \"echo tidy; exit 0\" TERM; echo up; while :; do sleep 0.05; done'\n",
                                 "-N2", "-n3", wait=False)
        self.assertTrue(wait_for(lambda: read(output).count("up\n") == 3), read(output))
        self.slurm("scancel", "--signal=TERM", "--batch", job)
        self.assertTrue(wait_for(lambda: "3 workers, " in read(output)), read(output))
        self.assertIn("ended by SIGTERM", read(output))
        self.assertEqual(read(output).count("tidy"), 3, read(output))
        self.assert_clean()

    def test_a_node_that_goes_down_ends_the_run_everywhere(self):
        _, output = self.batch(f"exec {program('coordrun')} -- bash -c 'echo up; sleep 1000'\n", "-N2", "-n4", "--no-requeue",
                               wait=False)
        self.assertTrue(wait_for(lambda: read(output).count("up\n") == 4), read(output))
        self.addCleanup(self.cluster.ask, "scontrol", "update", "nodename=n1", "state=resume")
        self.slurm("scontrol", "update", "nodename=n1", "state=down", "reason=test")
        self.assert_clean()

    def test_a_worker_that_fails_is_started_again_on_its_node(self):
        # Nobody trains before rank 2 is there again: else they might be through first.
        died, back = self.file("died"), self.file("back")
        script = (f'if [ $COORDD_RANK = 2 ]; then [ -e {died} ] || {{ touch {died}; kill -9 $$; }}; touch {back}; fi; '
                  f'until [ -e {back} ]; do sleep 0.05; done; exec {program("digits")} --elastic --epochs 1 --json')
        status, text = self.slurm("salloc", "-Q", "-N2", "-n4", program("coordrun"), "--min-np", "1", "--max-restarts", "1", "--",
                                  "bash", "-c", script)
        self.assertEqual(status, 0, text)
        self.assertRegex(text, r"rank 2 \(host n\d, pid \d+\) was killed by SIGKILL after .*; 3 workers go on")
        self.assertRegex(text, r"rank 2 is started again \(host n\d\)")
        self.assertIn('"job":"digits-elastic","workers":4,', text)
        self.assert_clean()

    def test_an_elastic_run_goes_on_without_a_node_that_goes_down(self):
        self.addCleanup(self.cluster.ask, "scontrol", "update", "nodename=n1", "state=resume")
        _, output = self.batch(f"exec {program('coordrun')} --min-np 1 -- {program('digits')} --elastic --epochs 40 --json\n", "-N2", "-n4",
                               "--no-requeue", "--no-kill", "-w", "n[0-1]", wait=False)
        self.assertTrue(wait_for(lambda: "epoch  2" in read(output)), read(output))
        self.slurm("scontrol", "update", "nodename=n1", "state=down", "reason=test")
        self.assertTrue(wait_for(lambda: '"job":"digits-elastic","workers":3,"generation":2,"steps_lost":0' in read(output)), read(output))

    def test_a_command_that_cannot_be_run_is_named(self):
        status, text = self.slurm("salloc", "-Q", "-n1", "-c2", program("coordrun"), "--", "/nowhere/train")
        self.assertEqual(status, 127, text)
        self.assertRegex(text, r"coordrun: host n\d: /nowhere/train cannot be run: No such file or directory")
        status, text = self.slurm("salloc", "-Q", "-n1", "-c2", program("coordrun"), "--dry-run", "--", "train")
        self.assertIn("srun --ntasks=1", text)
        self.assertIn("--cpus-per-task=2", text)

    def test_too_many_tasks_are_one_sentence(self):
        status, text = self.slurm("salloc", "-Q", "-N1", "-n2", program("coordrun"), "-np", "9", "--start-timeout", "10", "--", "true")
        self.assertEqual(status, 1, text)
        self.assertIn("the allocation has no room for so many tasks", text)

    def test_the_batch_scripts_of_deploy_differ_in_one_line_and_requeue(self):
        scripts = [os.path.join(processes.ROOT, "deploy", "slurm", f"train-{nodes}.sbatch") for nodes in ("1-node", "4-nodes")]
        ours = [read(script).splitlines() for script in scripts]
        self.assertEqual([pair for pair in zip(*ours) if pair[0] != pair[1]], [("#SBATCH --nodes=1", "#SBATCH --nodes=4")])
        self.environment["PATH"] = os.path.dirname(program("coordrun")) + ":" + self.environment["PATH"]
        output = self.file("train.log")
        small = ("--ntasks-per-node=1", "--cpus-per-task=1", "-o", output)
        # The first start runs until its time is nearly over; the second one is through at once.
        worker = '[ $SLURM_RESTART_COUNT ] && exit; trap "echo saved; exit" TERM; echo up; while :; do sleep 0.05; done'
        status, text = self.slurm("sbatch", "--parsable", *small, scripts[1], "--skip-checks", "bash", "-c", worker)
        self.assertEqual(status, 0, text)
        self.assertTrue(wait_for(lambda: read(output).count("up\n") == 4), read(output))
        self.slurm("scancel", "--batch", "--signal=TERM", text.strip())
        self.assertTrue(wait_for(lambda: "back into the queue" in read(output)), read(output))
        self.assertEqual(read(output).count("saved"), 4, read(output))
        def job():
            return self.cluster.ask("scontrol", "show", "job", text.strip())

        self.assertTrue(wait_for(lambda: "Restarts=1" in job()), job())
        self.slurm("scontrol", "release", text.strip())

    def test_the_number_of_gpus_a_task_sees_is_checked(self):
        for bound, warned in (("--gpus-per-task=1", True), ("--gpus-per-node=2", False)):
            status, text = self.slurm("salloc", "-Q", "-N1", "-n2", "--gres=gpu:2", program("coordrun"),
                                      f"--launcher-arg={bound}", "--check", "--", "true")
            self.assertEqual(status, 0, text)
            self.assertEqual("2 ranks, each of which sees 1 GPU: set_device(local_rank()) fails" in text, warned, text)

    def test_under_srun_coordrun_says_what_to_do_instead(self):
        status, text = self.slurm("srun", "-n2", program("coordrun"), "python", "train.py")
        self.assertEqual(status, 2, text)
        self.assertIn("expected 'srun -n 2 python ...' without coordrun", text)


@unittest.skipUnless(workers_find_themselves(), "this coordd-worker has no --launcher")
class WorkersAloneTest(SlurmCase):
    """srun -n 4 python train.py: nothing of ours but the workers."""

    def setUp(self):
        super().setUp()
        self.environment["HOME"] = self.folder  # where they meet

    def test_a_step_finds_itself(self):
        for options in (("-N2", "-n4"), ("-N2", "-n4", "-m", "plane=3")):
            status, text = self.slurm("srun", *options, program("coordd-worker"), *SMALL_RUN)
            self.assertEqual(status, 0, text)
            self.assertEqual(text.count('"wrong":0'), 4, text)
            self.assertEqual(text.count('"size":4'), 4, text)
        self.assert_nothing_left()

    def test_python_makes_jobs_of_some_of_the_tasks(self):
        library = os.path.join(processes.BUILD, "lib", "libcoordd.so.0")
        if not os.path.exists(library) or os.environ.get("COORDD_SANITIZE"):
            self.skipTest("no libcoordd.so that Python can load")
        self.environment.update(COORDD_LIBRARY=library, PYTHONPATH=os.path.join(ROOT, "client", "python"))
        # coordd is task 0's and ends with it, so that this one waits until the others have come.
        status, text = self.slurm("srun", "-N2", "-n4", sys.executable, "-c", f"""
import os
import time
from coordd import _basics
own = int(os.environ["SLURM_PROCID"])
_basics.init(comm=[0, 2] if own % 2 == 0 else [3, 1])
print(f"task {{own}} is {{_basics.rank()}} of {{_basics.size()}}")
here = [f"{self.folder}/here-{{task}}" for task in range(4)]
open(here[own], "w").close()
while not all(map(os.path.exists, here)):
    time.sleep(0.05)
""")
        self.assertEqual(status, 0, text)
        for line in ("task 0 is 0 of 2", "task 2 is 1 of 2", "task 3 is 0 of 2", "task 1 is 1 of 2"):
            self.assertIn(line, text)
        self.assert_nothing_left()

    def test_salloc_without_srun_is_a_sentence_and_no_hang(self):
        status, text = self.slurm("salloc", "-Q", "-N2", "-n4", program("coordd-worker"), *SMALL_RUN)
        self.assertNotEqual(status, 0)
        self.assertIn("srun", text)
        self.assert_nothing_left()


def read(path):
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read()
    except FileNotFoundError:
        return ""


if __name__ == "__main__":
    processes.main()
