"""coordrun with shell scripts and with the digits example as workers."""

import http.client
import json
import os
import re
import signal
import ssl
import sys
import unittest

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))

from tests.support import processes
from tests.support.processes import Process, clean_environment, program, wait_for

NOWHERE = ("--coordinator", "127.0.0.1:1")  # for workers that need no coordd


def lines_of(text, rank):
    return [line[len(f"[{rank}] "):] for line in text.splitlines() if line.startswith(f"[{rank}] ")]


def find(folder, name):
    return next(os.path.join(at, name) for at, _, names in os.walk(folder) if name in names)


class CoordrunCase(processes.TestCase):
    def setUp(self):
        super().setUp()
        self.runtime = os.path.join(self.folder, "run")
        os.mkdir(self.runtime, 0o700)
        self.environment = clean_environment(XDG_RUNTIME_DIR=self.runtime)

    def coordrun(self, *arguments, environment=None):
        return self.run_command(program("coordrun"), *arguments, environment=environment or self.environment)

    def started(self, *arguments):
        return self.start(Process([program("coordrun"), *arguments], self.environment))

    def script(self, script, *arguments, count=2):
        return self.coordrun("-np", str(count), *arguments, "--", "bash", "-c", script)

    def assert_clean(self):
        self.assert_nothing_left()
        left = [name for name in os.listdir(self.runtime) if name != "coordd"]
        self.assertEqual(left, [])


class OutputTest(CoordrunCase):
    def test_every_line_is_whole_and_carries_its_rank(self):
        status, text = self.script('for i in $(seq 500); do printf "a$i "; echo "b$i"; done; printf "end $COORDD_RANK"',
                                   *NOWHERE, count=4)
        self.assertEqual(status, 0, text)
        for rank in range(4):
            expected = [f"a{i} b{i}" for i in range(1, 501)] + [f"end {rank}"]
            self.assertEqual(lines_of(text, rank), expected)
        self.assert_clean()

    def test_prefixes_can_be_left_out(self):
        status, text = self.script("echo plain", *NOWHERE, "--no-prefix", count=1)
        self.assertEqual(status, 0)
        self.assertIn("plain\n", text)
        self.assertNotIn("[0]", text)

    def test_output_goes_to_files_besides(self):
        files = os.path.join(self.folder, "out")
        status, text = self.script('echo "out $COORDD_RANK"; echo "err $COORDD_RANK" >&2', *NOWHERE, "--output-dir", files)
        self.assertEqual(status, 0, text)
        for rank in range(2):
            for kind in ("out", "err"):
                with open(os.path.join(files, f"rank-{rank}.{kind}"), encoding="utf-8") as file:
                    self.assertEqual(file.read(), f"{kind} {rank}\n")
                self.assertIn(f"[{rank}] {kind} {rank}\n", text)

    def test_a_worker_has_its_variables(self):
        secret = os.path.join(self.folder, "secret")
        with open(os.open(secret, os.O_CREAT | os.O_WRONLY, 0o600), "w", encoding="utf-8") as file:
            file.write("secret")
        status, text = self.script('echo "$COORDD_RANK/$COORDD_SIZE $COORDD_LOCAL_RANK/$COORDD_LOCAL_SIZE $COORDD_JOB_ID '
                                   '$A $COORDD_METRICS $COORDD_TOKEN_FILE"',
                                   *NOWHERE, "-x", "A=b", "--job", "named", "--size", "5", "--first-rank", "3",
                                   "--token-file", secret)
        self.assertEqual(status, 0, text)
        self.assertTrue(lines_of(text, 4)[0].startswith("4/5 1/2 named b auto "), text)

    def test_a_secret_that_others_can_read_is_refused_at_once(self):
        secret = os.path.join(self.folder, "secret")
        with open(os.open(secret, os.O_CREAT | os.O_WRONLY, 0o600), "w", encoding="utf-8") as file:
            file.write("secret")
        os.chmod(secret, 0o644)
        for arguments, variables, named in ((["--token-file", secret], {}, "--token-file"),
                                            (NOWHERE, {"COORDD_TOKEN_FILE": secret}, "COORDD_TOKEN_FILE")):
            process = self.start(Process([program("coordrun"), "-np", "1", *arguments, "--", "true"],
                                         {**self.environment, **variables}))
            self.assertEqual(process.wait(), 2, process.text())
            self.assertIn(f"{named} names {secret}, which has mode 0644", process.text())
            self.assertEqual(process.text().count("\n"), 1, process.text())

    @unittest.skipIf(processes.SANITIZED, "a sanitizer's shadow memory is terabytes of address space, so that none can be taken away")
    def test_a_coordd_without_room_for_its_threads_says_so(self):
        for kib, begins in ((150_000, False), (300_000, False), (2_000_000, True)):
            coordd = self.start(Process(["bash", "-c", f"ulimit -v {kib}; exec {program('coordd')} --listen 127.0.0.1:0 --http off"],
                                        self.environment))
            if begins:
                self.assertTrue(wait_for(lambda coordd=coordd: "ready: grpc" in coordd.text()), coordd.text())
                coordd.signal(signal.SIGINT)
                continue
            self.assertNotIn(coordd.wait(), (0, 134), coordd.text())
            self.assertIn(f"the address space is limited to {kib // 1024} MiB (ulimit -v)", coordd.text())
            self.assertEqual(coordd.text().count("\n"), 1, coordd.text())

    def test_a_run_has_a_secret_that_others_cannot_read(self):
        status, text = self.script('echo $(stat -c %a "$COORDD_TOKEN_FILE") $(wc -c < "$COORDD_TOKEN_FILE") '
                                   '$(stat -c %a "$(dirname "$COORDD_TOKEN_FILE")")', *NOWHERE, count=1)
        self.assertEqual((status, lines_of(text, 0)), (0, ["600 64 700"]), text)

    def test_the_summary_for_programs_is_the_last_line_of_stdout(self):
        process = self.start(Process([program("coordrun"), "-np", "2", *NOWHERE, "--json", "--", "bash", "-c",
                                      "echo noise; exit $((COORDD_RANK * 3))"], self.environment))
        self.assertEqual(process.wait(), 3)
        summary = json.loads(next(line for line in reversed(process.text().splitlines()) if line.startswith("{")))
        self.assertEqual(summary["exit_status"], 3)
        self.assertEqual(summary["first_failure"], 1)
        self.assertEqual([rank["exit_code"] for rank in summary["ranks"]], [0, 3])


class EndTest(CoordrunCase):
    def test_the_first_failure_decides_and_the_rest_is_ended(self):
        status, text = self.script('if [ "$COORDD_RANK" = 1 ]; then echo last words >&2; exit 7; fi; sleep 1000 & sleep 1000',
                                   *NOWHERE, "--linger", "0.2", count=3)
        self.assertEqual(status, 7, text)
        self.assertRegex(text, r"rank 1 \(pid \d+\) failed first: it exited with status 7")
        self.assertIn("  | last words", text)
        self.assertIn("ranks 0, 2 were killed by SIGTERM", text)
        self.assert_clean()

    def test_a_signal_is_named(self):
        status, text = self.script("kill -SEGV $$", *NOWHERE, count=1)
        self.assertEqual(status, 128 + signal.SIGSEGV)
        self.assertIn("it was killed by SIGSEGV", text)

    def test_who_does_not_react_to_sigterm_is_killed(self):
        deaf = os.path.join(self.folder, "deaf")
        status, text = self.script(f'if [ "$COORDD_RANK" = 0 ]; then until [ -e {deaf} ]; do sleep 0.05; done; exit 1; fi; '
                                   f'trap "" TERM; touch {deaf}; while :; do sleep 0.1; done',
                                   *NOWHERE, "--linger", "0.1", "--grace", "0.3")
        self.assertEqual(status, 1, text)
        self.assertIn("rank 1 was killed by SIGKILL", text)
        self.assert_clean()

    def test_the_timeout_ends_a_run(self):
        status, text = self.script("sleep 1000", *NOWHERE, "--timeout", "0.3")
        self.assertEqual(status, 124, text)
        self.assert_clean()

    def test_a_worker_can_end_well_after_a_signal(self):
        run = self.started("-np", "2", *NOWHERE, "--", "bash", "-c",
                           'trap "echo tidying up; exit 0" INT; echo up; while :; do sleep 0.05; done')
        self.assertTrue(wait_for(lambda: run.text().count("up\n") == 2))
        run.signal(signal.SIGINT)
        self.assertEqual(run.wait(), 130)
        self.assertEqual(run.text().count("tidying up"), 2)
        self.assert_clean()

    def test_a_second_signal_kills(self):
        run = self.started("-np", "2", *NOWHERE, "--grace", "1000", "--", "bash", "-c",
                           'trap "echo no" INT; echo up; while :; do sleep 0.05; done')
        self.assertTrue(wait_for(lambda: run.text().count("up\n") == 2))
        run.signal(signal.SIGINT)
        self.assertTrue(wait_for(lambda: run.text().count("no\n") == 2))
        run.signal(signal.SIGINT)
        self.assertEqual(run.wait(), 130)
        self.assert_clean()

    def test_other_signals_are_passed_on(self):
        run = self.started("-np", "1", *NOWHERE, "--", "bash", "-c",
                           'trap "echo got it; exit 5" USR1; echo up; while :; do sleep 0.05; done')
        self.assertTrue(wait_for(lambda: "up\n" in run.text()))
        run.signal(signal.SIGUSR1)
        self.assertEqual(run.wait(), 5)
        self.assertIn("got it", run.text())

    def test_nothing_outlives_a_coordrun_that_is_killed(self):
        run = self.started("-np", "2", "--", "bash", "-c", "setsid sleep 1000 & echo up; sleep 1000 & sleep 1000")
        self.assertTrue(wait_for(lambda: run.text().count("up\n") == 2), run.text())
        run.signal(signal.SIGKILL)
        run.wait()
        self.assert_nothing_left()
        self.assertTrue(wait_for(lambda: [n for n in os.listdir(self.runtime) if n != "coordd"] == []))

    def test_what_a_worker_leaves_behind_is_ended(self):
        status, text = self.script("setsid sleep 1000 > /dev/null 2>&1 & sleep 1000 & sleep 0.1", *NOWHERE)
        self.assertEqual(status, 0, text)
        self.assert_clean()

    def test_a_command_that_cannot_be_run_is_named(self):
        status, text = self.coordrun("-np", "2", *NOWHERE, "--", "/nowhere/train")
        self.assertEqual(status, 127)
        self.assertIn("/nowhere/train cannot be run", text)
        status, text = self.coordrun("-np", "2", *NOWHERE, "--", "/etc")
        self.assertEqual(status, 126)
        self.assert_clean()

    def test_wrong_usage_is_one_sentence(self):
        for arguments, sentence in ((("-np", "0", "--", "true"), "-np is 0"), (("-np", "2"), "command"),
                                    (("--no-tls", "--listen", "0.0.0.0:0", "--", "true"), "--no-tls")):
            status, text = self.coordrun(*arguments)
            self.assertEqual(status, 2, text)
            self.assertIn(sentence, text)


class CoordinatorTest(CoordrunCase):
    def test_digits_learn_the_same_with_one_process_and_with_three(self):
        one, many = (os.path.join(self.folder, name) for name in ("one", "many"))
        arguments = ("--epochs", "6", "--quiet", "--json", "--dump-weights")
        status, alone = self.run_command(program("digits"), *arguments, one)
        self.assertEqual(status, 0, alone)
        status, text = self.coordrun("-np", "3", "--", program("digits"), *arguments, many)
        self.assertEqual(status, 0, text)
        result = json.loads(lines_of(text, 0)[-1])
        self.assertEqual(result["workers"], 3)
        self.assertGreaterEqual(result["test_accuracy"], 0.95)
        status, difference = self.run_command(program("digits"), "compare", one, many)
        self.assertEqual(status, 0, difference)
        self.assertLessEqual(float(difference), 1e-4)
        self.assert_clean()

    def test_digits_go_on_from_a_checkpoint(self):
        whole, parts, checkpoint = (os.path.join(self.folder, name) for name in ("whole", "parts", "checkpoint"))
        self.run_command(program("digits"), "--epochs", "4", "--dump-weights", whole)
        self.run_command(program("digits"), "--epochs", "2", "--checkpoint", checkpoint)
        status, text = self.coordrun("-np", "2", "--", program("digits"), "--epochs", "4", "--checkpoint", checkpoint,
                                     "--dump-weights", parts)
        self.assertEqual(status, 0, text)
        self.assertNotIn("epoch  2", text)
        _, difference = self.run_command(program("digits"), "compare", whole, parts)
        self.assertLessEqual(float(difference), 1e-4)

    def test_a_killed_worker_is_named_by_everybody(self):
        run = self.started("-np", "3", "--linger", str(processes.PATIENCE_S), "--", "bash", "-c",
                           f'echo "pid $$"; exec {program("digits")} --epochs 100000')
        self.assertTrue(wait_for(lambda: "epoch  2" in run.text()), run.text())
        os.kill(int(lines_of(run.text(), 1)[0].split()[1]), signal.SIGKILL)
        self.assertEqual(run.wait(), 128 + signal.SIGKILL)
        text = run.text()
        self.assertRegex(text, r"rank 1 \(pid \d+\) failed first: it was killed by SIGKILL")
        for rank in (0, 2):
            # Seen by coordd, or by the rank that was reducing with it.
            self.assertRegex("\n".join(lines_of(text, rank)),
                             r"ABORTED: tensor \S+: generation 1 ended: (rank \d+ \(host .*was lost|.*; it blames rank \d+ \(host )")
        # What killed it: in the others' errors if coordrun is quick, in the end in any case.
        self.assertRegex(text, r"coordd saw: rank \d+ \(host .*was lost: .*it was killed by SIGKILL")
        self.assert_clean()

    def kill_coordd(self):
        for pid in processes.processes_with("COORDD_TEST_ID", self.test_id):
            try:
                with open(f"/proc/{pid}/comm", encoding="ascii") as comm:
                    if comm.read().strip() == "coordd":
                        os.kill(pid, signal.SIGKILL)
            except OSError:
                pass

    def test_coordd_is_started_again_and_the_job_goes_on(self):
        worker = f"{program('coordd-worker')} allreduce --elements 1000 --iterations 100 --interval-ms 10"
        run = self.started("-np", "2", "--", "bash", "-c", f"echo up; exec {worker}")
        self.assertTrue(wait_for(lambda: run.text().count("up\n") == 2), run.text())
        self.kill_coordd()
        self.assertEqual(run.wait(), 0, run.text())
        self.assertRegex(run.text(), r"coordd was killed by SIGKILL and was started again after \d+ ms")
        self.assert_clean()

    def test_the_end_of_coordd_is_told(self):
        # Each time before the one that was started instead can be of use, or listens at all.
        run = self.started("-np", "2", "--linger", "0.2", "--", "bash", "-c", "echo up; sleep 1000")
        self.assertTrue(wait_for(lambda: run.text().count("up\n") == 2), run.text())
        while run.running():
            self.kill_coordd()
        self.assertEqual(run.wait(), 137, run.text())
        self.assertIn("it is not started again", run.text())
        self.assertIn("coordd was killed by SIGKILL during the run", run.text())
        self.assert_clean()

    def test_a_worker_that_ends_before_it_joins_does_not_keep_the_others_waiting(self):
        status, text = self.script(f'[ $COORDD_RANK = 1 ] && exit 0; exec {program("coordd-worker")}', "--linger", "0.1")
        self.assertEqual(status, 1, text)
        self.assertRegex(text, r"rank 1 \(pid \d+\) exited with status 0 before it joined the job, for which 1 other waits")
        self.assert_clean()

    def test_a_worker_that_ends_without_a_goodbye_is_told(self):
        run = self.started("-np", "2", "--", "bash", "-c",
                           f'if [ $COORDD_RANK = 0 ]; then exec {program("digits")} --epochs 100000; fi; '
                           f'{program("digits")} --epochs 100000 & kid=$!; echo kid $kid; wait $kid; exit 0')
        self.assertTrue(wait_for(lambda: "epoch  2" in run.text()), run.text())
        os.kill(int(lines_of(run.text(), 1)[0].split()[1]), signal.SIGKILL)
        self.assertNotEqual(run.wait(), 0)
        self.assertRegex(run.text(), r"coordd saw: rank 1 \(host .*was lost")
        self.assert_clean()

    def test_checks_can_be_had_alone(self):
        status, text = self.coordrun("-np", "2", "--check", "--json", "--", "/nowhere/train")
        self.assertEqual(status, 0, text)
        found = json.loads(next(line for line in text.splitlines() if line.startswith("{")))
        self.assertEqual([host["ranks"] for host in found["hosts"]], [2])
        self.assert_clean()

    def test_keep_leaves_coordd_up_for_coordctl(self):
        run = self.started("-np", "1", "--keep", "--", program("digits"), "--epochs", "1")
        self.assertTrue(wait_for(lambda: "stays up" in run.text()), run.text())
        status, text = self.run_command(program("coordctl"), "status", "digits", environment=self.environment)
        self.assertEqual(status, 0, text)
        self.assertIn("job digits: ended", text)
        status, text = self.run_command(program("coordctl"), "status", "other", environment=self.environment)
        self.assertEqual(status, 4, text)
        status, text = self.run_command(program("coordctl"), "jobs", "--json", environment=self.environment)
        self.assertEqual(json.loads(text)[0]["phase"], "ended")
        run.signal(signal.SIGINT)
        self.assertEqual(run.wait(), 0)
        self.assert_clean()

    def test_a_page_beyond_loopback_speaks_tls_to_who_has_the_token(self):
        token = os.path.join(self.folder, "http-token")
        with open(token, "w", encoding="ascii") as out:
            out.write("open-sesame")
        os.chmod(token, 0o600)
        run = self.started("--http", "0.0.0.0:0", "--http-token-file", token, "--keep", "--", "true")
        self.assertTrue(wait_for(lambda: "stays up" in run.text()), run.text())
        port = int(re.search(r"status page https://0.0.0.0:(\d+)/", run.text()).group(1))
        authority = find(self.runtime, "ca.crt")
        for brought, status in (("open-sesame", 200), ("sesame", 401)):
            page = http.client.HTTPSConnection("127.0.0.1", port, context=ssl.create_default_context(cafile=authority))
            page.request("GET", "/v1/jobs", headers={"Authorization": f"Bearer {brought}"})
            self.assertEqual(page.getresponse().status, status)
            page.close()
        run.signal(signal.SIGINT)
        self.assertEqual(run.wait(), 0)
        self.assert_clean()

    def test_a_run_without_tls_and_without_pages(self):
        status, text = self.script('echo "tls:$COORDD_TLS_CA"', "--no-tls", "--http", "off", "--metrics", "off")
        self.assertEqual(status, 0, text)
        self.assertIn("[0] tls:\n", text)

    def test_says_why_coordd_does_not_start(self):
        status, text = self.script("true", "--listen", "192.0.2.1:1")
        self.assertEqual(status, 1)
        self.assertIn("192.0.2.1:1", text)
        self.assert_clean()


if __name__ == "__main__":
    processes.main()
