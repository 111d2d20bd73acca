"""coordrun over real ssh servers on 127.0.0.1 to 127.0.0.3."""

import json
import os
import signal
import subprocess
import sys
import time
import unittest

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))

from tests.launchers import ssh_hosts
from tests.launchers.launcher_case import LauncherCase, lines_of
from tests.support import processes
from tests.support.processes import program, wait_for

THREE = "127.0.0.1:2,127.0.0.2:1,127.0.0.3:1"


@unittest.skipIf(ssh_hosts.missing(), f"not installed: {', '.join(ssh_hosts.missing())}")
class SshTest(LauncherCase):
    @classmethod
    def setUpClass(cls):
        cls.hosts = ssh_hosts.SshHosts()
        cls.addClassCleanup(cls.hosts.end)

    def over_ssh(self, hosts, *arguments):
        return self.coordrun("-H", hosts, *self.hosts.arguments, *arguments)

    def test_workers_of_three_hosts_reduce(self):
        status, text = self.over_ssh(THREE, "--", program("coordd-worker"), "allreduce", "--iterations", "5", "--tensors", "3")
        self.assertEqual(status, 0, text)
        self.assertEqual(text.count('"wrong":0'), 4, text)
        self.assertRegex(text, r"4 workers, .* reduced per rank in \d+ batch.*all workers exited with status 0")
        self.assert_clean()

    def test_a_worker_knows_its_place_and_has_its_environment(self):
        self.environment["MY_SETTING"] = "a b\"c'"
        self.environment["SSH_AUTH_SOCK"] = "/nowhere"
        status, text = self.over_ssh(
            THREE, "-x", "GIVEN=1", "--", "bash", "-c",
            'echo "$COORDD_RANK/$COORDD_SIZE $COORDD_LOCAL_RANK/$COORDD_LOCAL_SIZE $MY_SETTING $GIVEN ${SSH_AUTH_SOCK:-no}"; '
            'stat -c %a "$COORDD_TOKEN_FILE" "$COORDD_TLS_KEY" "$(dirname "$COORDD_TOKEN_FILE")" | tr "\\n" " "; pwd; '
            'tr "\\0" "\\n" < /proc/$PPID/cmdline | grep -c "$(cat "$COORDD_TOKEN_FILE")"')
        places = ("0/4 0/2", "1/4 1/2", "2/4 0/1", "3/4 0/1")
        for rank, place in enumerate(places):
            lines = lines_of(text, rank)
            self.assertEqual(lines[0], f"{place} a b\"c' 1 no", text)
            self.assertEqual(lines[1], f"600 600 700 {os.getcwd()}")
            self.assertEqual(lines[2], "0", "a secret on a command line")
        self.assert_clean()

    def test_workers_have_what_torchs_programs_read(self):
        script = ('echo "$RANK/$WORLD_SIZE $LOCAL_RANK/$LOCAL_WORLD_SIZE $GROUP_RANK $COORDD_RANK"; '
                  'echo "$MASTER_ADDR:$MASTER_PORT"; echo "${COORDD_ADDR%:*}"')
        status, text = self.over_ssh(THREE, "--", "bash", "-c", script)
        self.assertEqual(status, 0, text)
        masters = set()
        for rank in range(4):  # one machine, so one node, whatever its names
            place, master, coordinator = lines_of(text, rank)
            self.assertEqual(place, f"{rank}/4 {rank}/4 0 {rank}", text)
            self.assertEqual(master.rpartition(":")[0], coordinator, "rank 0 is on coordd's machine")
            masters.add(master.rpartition(":")[2])
        self.assertEqual(len(masters), 1, text)
        self.assertGreater(int(masters.pop()), 0)
        status, text = self.over_ssh(THREE, "--no-torch-env", "--", "bash", "-c", 'echo "${RANK:-no} ${MASTER_ADDR:-no}"')
        self.assertEqual([lines_of(text, rank) for rank in range(4)], [["no no"]] * 4, text)
        self.assert_clean()

    def test_nodes_are_in_the_order_of_their_labels(self):
        # Each host is a node of its own, and the last one is first in the network.
        places = 'echo "$RANK $GROUP_RANK $COORDD_RANK"'
        wrapper = self.file("coordrun-with-labels")
        with open(wrapper, "w", encoding="ascii") as file:
            file.write("#!/bin/bash\n" "number=$(cut -d' ' -f3 <<< \"$SSH_CONNECTION\" | cut -d. -f4)\n"
                       "export COORDD_NODE_ID=node$number COORDD_TOPOLOGY=rack$((9 - number))\n"
                       f"exec {program('coordrun')} \"$@\"\n")
        os.chmod(wrapper, 0o755)
        status, text = self.over_ssh(THREE, "--remote-coordrun", wrapper, "--", "bash", "-c", places)
        self.assertEqual(status, 0, text)
        self.assertEqual([lines_of(text, worker) for worker in range(4)], [["2 2 2"], ["3 2 3"], ["1 1 1"], ["0 0 0"]], text)

    def test_a_process_group_of_torch_forms_over_the_hosts(self):
        python = next((one for one in (sys.executable, "/usr/bin/python3")
                       if subprocess.run([one, "-c", "import torch"], capture_output=True, check=False).returncode == 0), None)
        if python is None:
            self.skipTest("no Python with torch here")
        program_of_torch = ("import torch, torch.distributed as dist; dist.init_process_group('gloo'); x = torch.ones(1); "
                            "dist.all_reduce(x); print('torch', dist.get_rank(), dist.get_world_size(), int(x), flush=True)")
        status, text = self.over_ssh(THREE, "--", python, "-c", program_of_torch)
        self.assertEqual(status, 0, text)
        for rank in range(4):
            self.assertIn(f"[{rank}] torch {rank} 4 4\n", text)
        self.assert_clean()

    def test_the_hosts_of_a_job_of_pbs_are_its_own(self):
        with open(self.file("nodes"), "w", encoding="ascii") as nodes:
            nodes.write("127.0.0.2\n127.0.0.2\n127.0.0.3\n")
        self.environment.update(PBS_JOBID="4711.server", PBS_NODEFILE=self.file("nodes"))
        status, text = self.coordrun(*self.hosts.arguments, "--", "bash", "-c", 'echo "$COORDD_LOCAL_RANK of $COORDD_LOCAL_SIZE"')
        self.assertEqual(status, 0, text)
        self.assertEqual([lines_of(text, rank) for rank in range(3)], [["0 of 2"], ["1 of 2"], ["0 of 1"]])
        self.assert_clean()

    def test_output_is_whole_on_both_streams(self):
        script = 'for i in $(seq 300); do echo "$i $(printf "%0600d" $i)"; done; echo last >&2; printf "\\xff\\x00end"'
        status, text = self.over_ssh("127.0.0.1:1,127.0.0.2:1", "--output-filename", self.file("out"), "--", "bash", "-c", script)
        self.assertEqual(status, 0, text[-2000:])
        for rank in range(2):
            with open(self.file(f"out/rank.{rank}/stdout"), "rb") as file:
                lines = file.read().split(b"\n")
            self.assertEqual(lines[:-1], [b"%d %0600d" % (i, i) for i in range(1, 301)])
            self.assertEqual(lines[-1], b"\xff\x00end")
            with open(self.file(f"out/rank.{rank}/stderr"), encoding="utf-8") as file:
                self.assertEqual(file.read(), "last\n")

    def test_the_first_failure_is_named_with_its_host(self):
        status, text = self.over_ssh(THREE, "--linger", "0.2", "--", "bash", "-c",
                                     '[ $COORDD_RANK = 2 ] && exit 7; sleep 1000 & sleep 1000')
        self.assertEqual(status, 7, text)
        self.assertRegex(text, r"rank 2 \(host 127\.0\.0\.2, pid \d+\) failed first: it exited with status 7")
        self.assertIn("ranks 0, 1, 3 were killed by SIGTERM", text)
        self.assert_clean()

    def test_a_worker_that_fails_is_started_again_on_its_host(self):
        # Nobody trains before rank 2 is there again: else they might be through first.
        died, back = self.file("died"), self.file("back")
        script = (f'if [ $COORDD_RANK = 2 ]; then [ -e {died} ] || {{ touch {died}; kill -9 $$; }}; touch {back}; fi; '
                  f'until [ -e {back} ]; do sleep 0.05; done; exec {program("digits")} --elastic --epochs 2 --json')
        status, text = self.over_ssh(THREE, "--min-np", "1", "--max-restarts", "1", "--", "bash", "-c", script)
        self.assertEqual(status, 0, text)
        self.assertRegex(text, r"rank 2 \(host 127\.0\.0\.2, pid \d+\) was killed by SIGKILL after .*; 3 workers go on")
        self.assertIn("rank 2 is started again (host 127.0.0.2)", text)
        self.assertIn('"job":"digits-elastic","workers":4,', text)
        self.assert_clean()

    def test_signals_reach_every_host(self):
        run = self.started("-H", THREE, *self.hosts.arguments, "--", "bash", "-c",
                           'trap "echo tidy; exit 0" TERM; echo up; while :; do sleep 0.05; done')
        self.assertTrue(wait_for(lambda: run.text().count("up\n") == 4), run.text())
        run.signal(signal.SIGTERM)
        self.assertEqual(run.wait(), 128 + signal.SIGTERM)
        self.assertEqual(run.text().count("tidy"), 4, run.text())
        self.assert_clean()

    def test_nothing_is_left_when_coordrun_is_killed(self):
        script = "setsid sleep 1000 & (trap '' TERM HUP; sleep 1000) & echo up; sleep 1000"
        for whom in ("coordrun", "both"):
            with self.subTest(whom):
                run = self.started("-H", THREE, *self.hosts.arguments, "--", "bash", "-c", script)
                self.assertTrue(wait_for(lambda run=run: run.text().count("up\n") == 4), run.text())
                victims = [run.pid]
                if whom == "both":  # and the process below it, which does the work
                    with open(f"/proc/{run.pid}/task/{run.pid}/children", encoding="ascii") as children:
                        victims += [int(pid) for pid in children.read().split()]
                for pid in victims:
                    os.kill(pid, signal.SIGKILL)
                begin = time.monotonic()
                self.assert_nothing_left()
                self.assertLess(time.monotonic() - begin, 5)
                if whom == "coordrun":
                    self.assert_clean()

    def test_nothing_is_left_when_an_agent_is_killed(self):
        run = self.started("-H", "127.0.0.1:1,127.0.0.2:1", *self.hosts.arguments, "--linger", "0.2", "--", "bash", "-c",
                           "setsid sleep 1000 & echo up; sleep 1000")
        self.assertTrue(wait_for(lambda: run.text().count("up\n") == 2), run.text())
        agents = [pid for pid in processes.processes_with("COORDD_TEST_ID", self.test_id) if "--agent" in command_of(pid)]
        os.kill(max(agents), signal.SIGKILL)
        self.assertNotEqual(run.wait(), 0)
        self.assert_clean()

    def test_a_host_that_does_not_let_us_in_is_one_sentence(self):
        hosts = self.hosts
        hosts.write("nobody_known", "")
        cases = (
            (["-p", str(hosts.port), "-i", hosts.file("user"), *hosts.known("nobody_known")], "its key is not known here"),
            (["-p", str(hosts.port), "-i", "/dev/null", *hosts.ssh_option("IdentityAgent=none"),
              *hosts.ssh_option("IdentitiesOnly=yes"), *hosts.known("known_hosts")], "it refuses the login"),
            (["-p", "1"], "no ssh server listens there"),
            ([*hosts.arguments, "--remote-coordrun", "/nowhere/coordrun"], "coordrun is not there"))
        for arguments, sentence in cases:
            status, text = self.coordrun("-H", "127.0.0.1:1,127.0.0.2:1", *arguments, "--", "true")
            self.assertEqual(status, 1, text)
            for host in ("127.0.0.1", "127.0.0.2"):
                self.assertIn(f"coordrun: host {host}: {sentence}", text)
        self.assert_clean()

    def test_hosts_are_looked_at_before_workers_start(self):
        status, text = self.over_ssh(THREE, "--check", "--json", "--", "true")
        self.assertEqual(status, 0, text)
        found = json.loads(next(line for line in text.splitlines() if line.startswith("{")))
        self.assertEqual([(host["host"], host["ranks"]) for host in found["hosts"]],
                         [("127.0.0.1", 2), ("127.0.0.2", 1), ("127.0.0.3", 1)])
        self.assertTrue(all(host["same_folder"] and host["coordinator"] for host in found["hosts"]))
        many = os.cpu_count() + 1
        status, text = self.over_ssh(f"127.0.0.1:{many}", "--check", "--", "true")
        self.assertIn(f"warning: host 127.0.0.1: {many} ranks share", text)
        # In a folder of its own: others that run now may have a file of theirs in the one where this test does.
        self.over_ssh("127.0.0.2:1", "--chdir", self.folder, "--check", "--", "true")
        self.assertEqual([name for name in os.listdir(self.folder) if name.startswith(".coordrun")], [])
        self.assert_clean()

    def test_a_folder_that_a_host_does_not_have_is_named(self):
        status, text = self.over_ssh("127.0.0.2:1", "--chdir", "/nowhere/else", "--", "true")
        self.assertEqual(status, 1, text)
        self.assertIn("host 127.0.0.2: the working directory /nowhere/else cannot be used there", text)

    def test_a_host_that_does_not_answer_is_named(self):
        hosts = self.hosts
        hosts.write("silent", "#!/bin/sh\nexec sleep 1000\n")
        os.chmod(hosts.file("silent"), 0o755)
        status, text = self.over_ssh("127.0.0.1:1,127.0.0.3:1", "--start-timeout", "2", "--remote-coordrun",
                                     hosts.file("silent"), "--", "true")
        self.assertEqual(status, 1, text)
        self.assertIn("no answer within 2 s (--start-timeout) from host 127.0.0.1, host 127.0.0.3", text)

    def test_dry_run_starts_nothing(self):
        status, text = self.over_ssh(THREE, "--dry-run", "--", "python", "train me.py")
        self.assertEqual(status, 0, text)
        self.assertRegex(text, r"(?m)^ssh -T .* -p \d+ .*127\.0\.0\.3 'exec sh -c ")
        self.assertRegex(text, r"(?m)^#   env .*COORDD_LOCAL_RANK=1 .*COORDD_RANK=1 .*python 'train me.py'$")
        self.assert_clean()


def command_of(pid):
    try:
        with open(f"/proc/{pid}/cmdline", encoding="utf-8", errors="replace") as file:
            return file.read().replace("\0", " ")
    except OSError:
        return ""


if __name__ == "__main__":
    processes.main()
