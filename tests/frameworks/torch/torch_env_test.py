"""Programs for torchrun under coordrun: RANK, WORLD_SIZE, MASTER_ADDR and the like."""

import os
import re
import shlex
import shutil
import sys
import unittest

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))))

from tests.support import processes
from tests.support.processes import ROOT, clean_environment, program

try:
    import torch  # noqa: F401
except ImportError as missing:
    print(f"SKIPPED: {missing}; tools/install-deps --test installs torch for {sys.executable}", file=sys.stderr)
    sys.exit(processes.SKIPPED)

NAMES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "MASTER_ADDR", "MASTER_PORT")

# What every program of torch.distributed does, without coordd.
ENV_INIT = """
import torch, torch.distributed as dist
dist.init_process_group("gloo")
sum_of_ranks = torch.full((1,), float(dist.get_rank()))
dist.all_reduce(sum_of_ranks)
print("torch", dist.get_rank(), dist.get_world_size(), int(sum_of_ranks), flush=True)
dist.destroy_process_group()
"""

# A program that uses both: the two agree on who is who.
BOTH = """
import os
import coordd.torch as hvd
hvd.init()
import torch.distributed as dist
dist.init_process_group("gloo")
print("both", hvd.rank(), dist.get_rank(), hvd.size(), dist.get_world_size(), hvd.local_rank(), os.environ["LOCAL_RANK"],
      flush=True)
dist.barrier()
dist.destroy_process_group()
"""

# Each generation has a process group of its own.
ELASTIC = """
import os, signal, sys
import coordd.torch as hvd
import torch, torch.distributed as dist
hvd.init()
state = hvd.elastic.TorchState(step=0)


@hvd.elastic.run
def train(state):
    dist.init_process_group("gloo")
    print("group", hvd.rank(), dist.get_rank(), hvd.size(), dist.get_world_size(), os.environ["MASTER_PORT"], flush=True)
    dist.barrier()
    dist.destroy_process_group()
    while state.step < 40 or (hvd.size() < 3 and state.step < 4000):
        if state.step == 5 and os.environ["COORDD_RANK"] == "1" and not os.path.exists(sys.argv[1]):
            open(sys.argv[1], "w").close()
            os.kill(os.getpid(), signal.SIGKILL)
        hvd.allreduce(torch.ones(1), name="step")
        state.step += 1
        state.commit()

train(state)
"""


class TorchEnvTest(processes.TestCase):
    def setUp(self):
        super().setUp()
        self.environment = clean_environment(PYTHONPATH=os.path.join(ROOT, "client", "python"), TMPDIR=self.folder,
                                             COORDD_LIBRARY=os.environ.get("COORDD_LIBRARY"))
        for name in NAMES:
            self.environment.pop(name, None)

    def python(self, text, *options, arguments=(), environment=None):
        script = os.path.join(self.folder, "program.py")
        with open(script, "w", encoding="utf-8") as file:
            file.write(text)
        return self.run_command(program("coordrun"), *options, "--", sys.executable, script, *arguments,
                                environment=environment or self.environment)

    def shell(self, script, *options, environment=None):
        return self.run_command(program("coordrun"), *options, "--", "sh", "-c", script,
                                environment=environment or self.environment)

    def test_a_process_group_forms_from_the_environment(self):
        for size in (2, 4):
            status, text = self.python(ENV_INIT, "-np", str(size))
            self.assertEqual(status, 0, text)
            for rank in range(size):
                self.assertIn(f"[{rank}] torch {rank} {size} {size * (size - 1) // 2}\n", text)
        self.assert_nothing_left()

    def test_coordds_ranks_are_torchs(self):
        status, text = self.python(BOTH, "-np", "3")
        self.assertEqual(status, 0, text)
        for rank in range(3):
            self.assertIn(f"both {rank} {rank} 3 3 {rank} {rank}\n", text)

    def test_coordds_ranks_are_torchs_where_the_program_names_its_place_in_the_network(self):
        # coordd puts nodes in the order of their labels, here against that of coordrun.
        wrapper = ("export COORDD_NODE_ID=node$COORDD_RANK COORDD_TOPOLOGY=rack$((9 - COORDD_RANK)) COORDD_TRANSPORT=ucx; "
                   f"exec {sys.executable} -c '{BOTH}'")
        if not processes.has_ucx():
            self.skipTest("this build has no UCX, which ranks of several nodes need")
        status, text = self.shell(wrapper, "-np", "3")
        self.assertEqual(status, 0, text)
        for worker in range(3):
            self.assertIn(f"[{worker}] both {2 - worker} {2 - worker} 3 3 0 0\n", text)

    def test_a_second_coordrun_counts_on(self):
        echo = 'echo "$RANK/$WORLD_SIZE $LOCAL_RANK/$LOCAL_WORLD_SIZE $GROUP_RANK ${MASTER_ADDR:-no} ${MASTER_PORT:-no}"'
        nowhere = ("-np", "2", "--coordinator", "127.0.0.1:1", "--size", "4", "--first-rank", "2")
        status, text = self.shell(echo, *nowhere)
        self.assertEqual(status, 0, text)
        # Where rank 0 is it does not know; the user may.
        self.assertIn("[2] 2/4 0/2 1 no no\n", text)
        self.assertIn("[3] 3/4 1/2 1 no no\n", text)
        status, text = self.shell(echo, *nowhere, environment={**self.environment, "MASTER_ADDR": "node1", "MASTER_PORT": "29500"})
        self.assertIn("[2] 2/4 0/2 1 node1 29500\n", text)

    def test_two_coordruns_of_one_machine_agree_with_coordd(self):
        coordd = self.start(processes.Coordd())
        token = os.path.join(self.folder, "token")
        with open(token, "w", encoding="ascii") as file:
            file.write("secret")
        os.chmod(token, 0o600)
        script = "import os, coordd.torch as hvd; hvd.init(); print('at', os.environ['COORDD_RANK'], hvd.rank(), os.environ['RANK'])"
        runs = [self.start(processes.Process(
            [program("coordrun"), "-np", "2", "--coordinator", coordd.listen, "--size", "4", "--first-rank", str(first), "--job",
             "both", "--token-file", token, "--", sys.executable, "-c", script], self.environment)) for first in (2, 0)]
        for run in runs:
            self.assertEqual(run.wait(), 0, run.text())
        for first, run in zip((2, 0), runs):
            for rank in (first, first + 1):
                self.assertIn(f"at {rank} {rank} {rank}\n", run.text())

    def test_the_users_values_win_with_a_line(self):
        echo = 'echo "$MASTER_ADDR $MASTER_PORT $RANK"'
        status, text = self.shell(echo, "-np", "1", "--coordinator", "127.0.0.1:1", "-x", "MASTER_PORT=29500")
        self.assertEqual(status, 0, text)
        self.assertIn("coordrun: -x MASTER_PORT wins over what coordrun would set", text)
        self.assertIn("[0] 127.0.0.1 29500 0\n", text)

    def test_they_can_be_left_out(self):
        echo = "".join(f'echo "${{{name}:-none}}"; ' for name in (*NAMES, "COORDD_TORCH_ENV"))
        status, text = self.shell(echo, "-np", "1", "--coordinator", "127.0.0.1:1", "--no-torch-env")
        self.assertEqual(status, 0, text)
        self.assertEqual(text.count("[0] none\n"), len(NAMES) + 1, text)

    def test_the_port_is_one_of_the_range(self):
        status, text = self.shell("echo $MASTER_PORT", "-np", "1", "--coordinator", "127.0.0.1:1", "--port-range", "24300-24380")
        self.assertEqual(status, 0, text)
        self.assertTrue(24300 <= int(re.search(r"\[0\] (\d+)\n", text).group(1)) <= 24380, text)

    def test_workers_do_not_think_that_torchrun_started_them(self):
        status, text = self.run_command(program("coordrun"), "-np", "2", "--", program("coordctl"), "whoami",
                                        environment=self.environment)
        self.assertEqual(status, 0, text)
        self.assertIn("coordrun", text)
        self.assertNotIn("disagree", text)
        self.assertNotRegex(text, r"launcher +torchrun")

    def test_workers_of_a_host_share_its_cores(self):
        echo = 'echo "${OMP_NUM_THREADS-unset}"'
        share = max(1, len(os.sched_getaffinity(0)) // 2)
        environment = {name: value for name, value in self.environment.items() if name != "OMP_NUM_THREADS"}
        status, text = self.shell(echo, "-np", "2", "--coordinator", "127.0.0.1:1", environment=environment)
        self.assertEqual(status, 0, text)
        self.assertEqual(text.count(f"] {share}\n"), 2, text)
        self.assertEqual(text.count(f"coordrun: OMP_NUM_THREADS={share} for each worker"), 1, text)
        for options, more, expected in ((["--no-torch-env"], {}, "unset"), (["-x", "OMP_NUM_THREADS=5"], {}, "5"),
                                        ([], {"OMP_NUM_THREADS": "3"}, "3"), ([], {"OMP_NUM_THREADS": ""}, "")):
            status, text = self.shell(echo, "-np", "2", "--coordinator", "127.0.0.1:1", *options,
                                      environment={**environment, **more})
            self.assertEqual(status, 0, text)
            self.assertEqual(text.count(f"] {expected}\n"), 2, text)
            self.assertNotIn("for each worker", text)
        status, text = self.shell(echo, "-np", "1", "--coordinator", "127.0.0.1:1", environment=environment)
        self.assertIn("[0] unset\n", text)

    @unittest.skipUnless(shutil.which("mpirun"), "there is no mpirun")
    def test_a_process_group_forms_under_mpirun(self):
        environment = {**self.environment, "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
                       "OMPI_MCA_rmaps_base_oversubscribe": "1", "OMPI_MCA_btl": "self,tcp"}
        # Open MPI labels each piece of a line that is written in pieces, as an unbuffered Python does.
        environment["PYTHONUNBUFFERED"] = ""
        status, text = self.python(ENV_INIT, "-np", "3", "--launcher", "mpirun", environment=environment)
        self.assertEqual(status, 0, text)
        for rank in range(3):
            self.assertIn(f"[{rank}] torch {rank} 3 3\n", text)
        status, text = self.python(BOTH, "-np", "2", "--launcher", "mpirun", environment=environment)
        self.assertEqual(status, 0, text)
        for rank in range(2):
            self.assertIn(f"both {rank} {rank} 2 2 {rank} {rank}\n", text)
        self.assertNotIn("disagree", text)

    def torchrun(self, *arguments):
        """A command, which not every torch has working with every Python."""
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2"]
        probe = os.path.join(self.folder, "probe.py")
        with open(probe, "w", encoding="utf-8") as file:
            file.write("pass")
        status, text = self.run_command(*command, probe, environment=self.environment)
        if status != 0:
            self.skipTest(f"torchrun of this torch does not run: {text[-200:]}")
        return [*command, *arguments]

    def script(self, text):
        path = os.path.join(self.folder, "program.py")
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)
        return path

    def test_torchrun_inside_of_the_only_worker_is_one_job(self):
        command = self.torchrun(self.script(BOTH))
        status, text = self.run_command(program("coordrun"), "-np", "1", "--", *command, environment=self.environment)
        self.assertEqual(status, 0, text)
        for rank in range(2):
            self.assertIn(f"both {rank} {rank} 2 2 {rank} {rank}\n", text)
        self.assertNotIn("disagree", text)

    def test_torchrun_inside_of_each_worker_is_refused(self):
        command = self.torchrun(self.script("import coordd.torch as hvd\nhvd.init()\nprint('began')\n"))
        status, text = self.run_command(program("coordrun"), "-np", "2", "--", *command, environment=self.environment)
        self.assertEqual(status, 2, text)
        self.assertIn("each of 2 workers would start a job of its own", text)
        # And where coordrun cannot know it, by the program's init.
        status, text = self.shell(shlex.join(command), "-np", "2")
        self.assertNotEqual(status, 0, text)
        self.assertIn("torchrun runs in each of coordrun's 2 workers and knows of 1", text)
        self.assertNotIn("began", text)

    def test_coordrun_inside_of_torchrun_is_refused_or_a_job_of_its_own(self):
        inner = self.script(
            "import subprocess, sys\n"
            f"sys.exit(subprocess.run([{program('coordrun')!r}, '-np', '2', *sys.argv[1:], '--', {sys.executable!r}, "
            f"{os.path.join(self.folder, 'group.py')!r}]).returncode)\n")
        with open(os.path.join(self.folder, "group.py"), "w", encoding="utf-8") as file:
            file.write(ENV_INIT)
        command = self.torchrun(inner)
        status, text = self.run_command(*command, environment=self.environment)
        self.assertNotEqual(status, 0, text)
        self.assertIn("one of 2 tasks of torchrun", text)
        self.assertIn("--launcher local", text)
        status, text = self.run_command(*command, "--launcher", "local", environment=self.environment)
        self.assertEqual(status, 0, text)
        self.assertEqual(text.count("torch 1 2 1\n"), 2, text)

    def test_each_generation_has_a_master_of_its_own(self):
        died = os.path.join(self.folder, "died")
        status, text = self.python(ELASTIC, "-np", "3", "--min-np", "2", "--max-restarts", "1", arguments=[died])
        self.assertEqual(status, 0, text)
        groups = {}
        for rank, of_torch, size, world, port in re.findall(r"group (\d) (\d) (\d) (\d) (\d+)\n", text):
            self.assertEqual((rank, size), (of_torch, world), text)
            groups.setdefault((size, port), set()).add(rank)
        for (size, _), ranks in groups.items():
            self.assertEqual(len(ranks), int(size), text)
        # Three of them, or two where the newcomer was there as soon as the others had lost a member.
        self.assertGreaterEqual(len(groups), 2, text)


if __name__ == "__main__":
    processes.main()
