"""What coordrun says when something about a run is wrong before its workers do anything, and closed standard streams."""

import os
import re
import shutil
import signal
import subprocess
import sys
import time

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))

from tests.support import processes
from tests.support.processes import PATIENCE_S, Process, clean_environment, program, wait_for

NOWHERE = ("--coordinator", "127.0.0.1:1")  # for workers that need no coordd


class MistakesCase(processes.TestCase):
    def setUp(self):
        super().setUp()
        self.environment = clean_environment(TMPDIR=self.folder)
        self.environment.pop("XDG_RUNTIME_DIR", None)

    def coordrun(self, *arguments):
        return self.run_command(program("coordrun"), *arguments, environment=self.environment)

    def started(self, *arguments):
        return self.start(Process([program("coordrun"), *arguments], self.environment))

    def assert_usage(self, *arguments, says):
        status, text = self.coordrun(*arguments)
        self.assertEqual(status, 2, text)
        self.assertRegex(text, says)
        return text


class StandardStreamsTest(MistakesCase):
    def under_shell(self, command, *redirections):
        line = " ".join(['exec "$@"', *redirections])
        return subprocess.run(["bash", "-c", line, "bash", *command], env=self.environment, stdin=subprocess.DEVNULL, check=False,
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=PATIENCE_S)

    def test_a_rank_has_all_three_whatever_coordrun_was_started_without(self):
        for closed in (["<&-"], [">&-"], ["2>&-"], ["<&-", ">&-", "2>&-"]):
            told = os.path.join(self.folder, "told")
            look = f'exec 3>{told}.$COORDD_RANK; readlink /proc/$$/fd/0 >&3; : </proc/$$/fd/0 >/proc/$$/fd/1 2>/proc/$$/fd/2 && echo open >&3'
            ended = self.under_shell([program("coordrun"), "-np", "2", "--", "bash", "-c", look], *closed)
            self.assertEqual(ended.returncode, 0, (closed, ended.stderr))
            for rank in range(2):
                with open(f"{told}.{rank}", encoding="ascii") as file:
                    self.assertEqual(file.read(), "/dev/null\nopen\n", closed)
                os.unlink(f"{told}.{rank}")
        self.assert_nothing_left()

    def test_no_program_of_ours_takes_their_numbers(self):
        """As coordd does while it serves: its log must never go into a socket."""
        ready = os.path.join(self.folder, "ready")
        command = [program("coordd"), "--listen", "127.0.0.1:0", "--http", "off", "--store", "memory", "--ready-fd", "9"]
        child = subprocess.Popen(["bash", "-c", f'exec "$@" <&- >&- 2>&- 9>{ready}', "bash", *command], env=self.environment)
        try:
            self.assertTrue(wait_for(lambda: os.path.exists(ready) and os.path.getsize(ready) > 0))
            streams = [os.readlink(f"/proc/{child.pid}/fd/{fd}") for fd in range(3)]
            self.assertEqual(streams, ["/dev/null"] * 3)
        finally:
            child.kill()
            child.wait()


class DiscoveryScriptTest(MistakesCase):
    def test_a_host_that_is_not_known_is_set_aside(self):
        """nosuchhost.invalid (RFC 2606) is in no DNS; it is tried again while the others run, and its absence is no failure."""
        status, text = self.coordrun("--host-discovery-script", "echo localhost:2; echo nosuchhost.invalid:2", "--min-np", "2",
                                     "--start-timeout", "30", "--", "bash", "-c", 'echo "ran $COORDD_RANK"; sleep 2')
        self.assertEqual(status, 0, text)
        self.assertIn("[0] ran 0\n", text)
        self.assertIn("[1] ran 1\n", text)
        self.assertEqual(text.count("coordrun: host nosuchhost.invalid: "), 1, text)
        self.assertRegex(text, r"rank 2 \(host nosuchhost.invalid\) was not started, since its host is not reached")
        self.assert_nothing_left()

    def test_without_it_too_few_are_left(self):
        status, text = self.coordrun("--host-discovery-script", "echo localhost:1; echo nosuchhost.invalid:2", "--min-np", "2",
                                     "--", "true")
        self.assertEqual(status, 1, text)
        self.assertIn("host nosuchhost.invalid: ", text)

    def test_a_script_that_cannot_be_run_is_wrong_usage(self):
        plain = os.path.join(self.folder, "plain")
        lost = os.path.join(self.folder, "lost")
        for path, mode, first in ((plain, 0o644, "#!/bin/sh"), (lost, 0o755, "#!/no/such/interpreter")):
            with open(path, "w", encoding="ascii") as file:
                file.write(f"{first}\necho localhost:2\n")
            os.chmod(path, mode)
        for script in (os.path.join(self.folder, "missing"), plain, lost):
            began = time.monotonic()
            self.assert_usage("--host-discovery-script", script, "--min-np", "2", "--", "true",
                              says=rf"coordrun: --host-discovery-script '{re.escape(script)}' cannot be run: .*; expected a command")
            self.assertLess(time.monotonic() - began, PATIENCE_S)  # and not --elastic-timeout

    def test_a_network_interface_that_is_not_there_is_wrong_usage(self):
        """Also where all workers are here, and nobody would have to find this machine."""
        self.assert_usage("-np", "2", "--network-interfaces", "lo,nosuch0", "--", "true",
                          says=r"--network-interfaces: there is no nosuch0, expected of .*\blo\b")

    def test_one_that_is_lost_later_is_a_warning(self):
        script = os.path.join(self.folder, "hosts")
        with open(script, "w", encoding="ascii") as file:
            file.write("#!/bin/sh\necho localhost:2\n")
        os.chmod(script, 0o755)
        run = self.started("--host-discovery-script", script, "--min-np", "2", "--", "bash", "-c",
                           f"echo up; while [ ! -e {script}.back ]; do sleep 0.05; done")
        self.assertTrue(wait_for(lambda: run.text().count("] up") == 2 or not run.running()), run.text())
        os.rename(script, script + ".away")
        self.assertTrue(wait_for(lambda: "the hosts stay as they are" in run.text() or not run.running()), run.text())
        # It may have been lost when it was begun, but before its shell had opened it.
        self.assertRegex(run.text(), "--host-discovery-script .*(cannot be run|exited with status 2: .*No such file).*; the hosts stay")
        os.rename(script + ".away", script)
        with open(script + ".back", "w", encoding="ascii"):
            pass
        self.assertEqual(run.wait(), 0, run.text())

    def test_one_that_never_ends_printing_is_ended(self):
        text = self.assert_usage("--host-discovery-script", "yes", "--elastic-timeout", "4", "--min-np", "2", "--", "true",
                                 says="printed more than 1 MiB, which begins 'y': expected a host a line, and an end")
        self.assertIn("it is asked again every second", text)
        self.assert_nothing_left()

    def test_a_listener_without_tls_is_refused_in_coordruns_own_words(self):
        text = self.assert_usage("--host-discovery-script", "echo localhost:2", "--no-tls", "--min-np", "2", "--", "true",
                                 says=r"--no-tls with launcher ssh \(--host-discovery-script names hosts\)")
        self.assertNotIn("--insecure", text)


class WrongFlagTest(MistakesCase):
    def test_a_job_that_coordd_does_not_take_is_refused_before_anything_starts(self):
        for job in ("a b", "a\nb", "a\x1b[2Jb"):
            text = self.assert_usage("--job", job, "--", "true", says=r"--job is 'a.*b': expected 1 to 128 letters")
            self.assertEqual(text.count("\n"), 1, text)
            self.assertNotIn("\x1b", text)
        self.environment["COORDD_JOB_ID"] = "a\nb"
        text = self.assert_usage(*NOWHERE, "--", "true", says="COORDD_JOB_ID is 'a.x0ab': expected")
        self.assertEqual(text.count("\n"), 1, text)

    def test_what_a_refusal_quotes_steers_no_terminal_and_is_no_line_of_its_own(self):
        steers = "x\nforged: line\x1b[2J\r\u009b31m\u202e\u2066"
        relay = ("coordd-relay", "--listen", "unix:/nowhere/relay")
        for name, *arguments in (("coordd", "--cluster-id", steers), ("coordd", "--store", steers), ("coordd", "--listen", steers),
                                 ("coordd", "--lease", steers), ("coordd", f"--{steers}"), ("coordctl", steers), ("coordctl", f"--{steers}"),
                                 ("coordctl", "status", "--coordinator", steers), ("coordrun", "-np", steers, "--", "true"),
                                 ("coordrun", "-H", steers, "--", "true"), ("coordrun", "--hostfile", steers, "--", "true"),
                                 ("coordrun", f"--{steers}", "--", "true"), ("coordrun", "--coordinator", steers, "--", "true"),
                                 ("coordd-worker", "--rank", steers), ("coordd-worker", "--coordinator", steers),
                                 ("coordd-worker", "--transport", steers), ("coordd-worker", steers), (*relay, "--coordinator", steers),
                                 (*relay, "--coordinator", "a:1", "--tls-ca", steers, "--tls-cert", steers, "--tls-key", steers),
                                 (*relay, steers)):
            with self.subTest(name=name, arguments=arguments):
                status, text = self.run_command(program(name), *arguments, environment=self.environment)
                self.assertNotEqual(status, 0, text)
                self.assert_steers_nothing(text)
        for name, variable in (("coordd-worker", "COORDD_RANK"), ("coordd-worker", "COORDD_ADDR"), ("coordd-worker", "COORDD_LAUNCHER"),
                               ("coordd-relay", "COORDD_ADDR"), ("coordctl", "COORDD_ADDR"), ("coordd", "COORDD_PORT_RANGE")):
            with self.subTest(name=name, variable=variable):
                arguments = {"coordctl": ["status"], "coordd-relay": relay[1:]}.get(name, [])
                status, text = self.run_command(program(name), *arguments, environment={**self.environment, variable: steers})
                self.assertNotEqual(status, 0, text)
                self.assert_steers_nothing(text)

    def assert_steers_nothing(self, text):
        self.assertNotRegex(text, "[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
        self.assertNotRegex(text, "(?m)^forged")
        self.assertIn("forged", text)

    def test_a_status_page_beyond_loopback_needs_tls_or_a_word_of_coordruns(self):
        self.assert_usage("--http", "0.0.0.0:0", "--no-tls", "--", "true", says="expected no --no-tls, or 127.0.0.1:0, or --insecure-http besides")
        token = os.path.join(self.folder, "http-token")
        self.assert_usage("--http", "0.0.0.0:0", "--http-token-file", token, "--", "true", says="--http-token-file names .*http-token, which cannot be read")
        with open(token, "w", encoding="ascii") as out:
            out.write("open-sesame")
        os.chmod(token, 0o600)
        self.assert_usage("--http-token-file", token, "--", "true", says="a token would be read on its way")
        status, text = self.coordrun("--http", "0.0.0.0:0", "--insecure-http", "--", "true")
        self.assertEqual(status, 0, text)

    def test_what_the_user_says_to_coordd_wins(self):
        status, text = self.coordrun("--coordd-arg=--log-level=info", "--coordd-arg=--store=memory", "--", "true")
        self.assertEqual(status, 0, text)
        self.assertIn("state: memory", text)  # of the level info
        self.assert_usage("--coordd-arg=--listen=127.0.0.1:0", "--", "true", says="expected coordrun's own --listen instead")

    def test_a_coordd_that_wants_tls_is_found_before_the_workers_start(self):
        certificates = os.path.join(self.folder, "certificates")
        status, text = self.run_command(program("coordctl"), "certs", certificates, environment=self.environment)
        self.assertEqual(status, 0, text)
        def tls(side):
            pairs = (("cert", f"{side}.crt"), ("key", f"{side}.key"), ("ca", "ca.crt"))
            return [word for flag, name in pairs for word in (f"--tls-{flag}", os.path.join(certificates, name))]

        coordd = self.coordd(*tls("server"))
        text = self.assert_usage("--coordinator", coordd.listen, "--", "echo", "ran", says="this coordd wants TLS: give --tls-ca")
        self.assertNotIn("ran", text)
        status, text = self.coordrun("--coordinator", coordd.listen, *tls("worker"), "--", "echo", "ran")
        self.assertEqual(status, 0, text)
        self.assertIn("[0] ran", text)

    def test_whatever_does_not_fit_a_named_coordd_is_wrong_usage(self):
        mine, other = (os.path.join(self.folder, name) for name in ("mine", "other"))
        for folder in (mine, other):
            status, text = self.run_command(program("coordctl"), "certs", folder, environment=self.environment)
            self.assertEqual(status, 0, text)

        def files(ca, pair, side="worker"):
            return ["--tls-ca", os.path.join(ca, "ca.crt"), "--tls-cert", os.path.join(pair, f"{side}.crt"),
                    "--tls-key", os.path.join(pair, f"{side}.key")]

        plain, tls = self.coordd(), self.coordd(*files(mine, mine, "server"))
        for coordd, flags, says in ((tls, [], "this coordd wants TLS: give --tls-ca"),
                                    (plain, files(mine, mine), "speaks no TLS: leave out --tls-ca"),
                                    (tls, files(other, other), "is not of the authority in"),
                                    (tls, files(mine, other), "does not take the certificate in"),
                                    (tls, files(mine, mine, "server"), "is not for clients"),
                                    (tls, files(mine, mine)[:2], "TLS is set up in part")):
            with self.subTest(says):
                text = self.assert_usage("--coordinator", coordd.listen, *flags, "--", "echo", "ran", says=says)
                self.assertNotIn("ran", text)

    def test_a_key_that_is_not_there_and_variables_that_are_none(self):
        self.assert_usage("-i", "/nonexistent", "-H", "localhost", "--", "true",
                          says=r"--ssh-identity-file is /nonexistent, which cannot be read \(No such file")
        self.assert_usage("-x", "NOSUCH", "--", "true", says="-x NOSUCH: is not set; expected -x NOSUCH=VALUE")
        self.assert_usage("-x", "A B=3", "--", "true", says="-x A B=3: expected NAME or NAME=VALUE")

    def test_scripts_whose_names_cannot_be_spelled_are_jobs_of_their_own(self):
        jobs = set()
        for name in ("тест", "тема"):
            script = os.path.join(self.folder, f"{name}.sh")
            with open(script, "w", encoding="ascii") as file:
                file.write("#!/bin/sh\n")
            os.chmod(script, 0o755)
            status, text = self.coordrun(script)
            self.assertEqual(status, 0, text)
            jobs.update(re.findall(r"coordrun: job (-{8}[0-9a-f]{8}),", text))
        self.assertEqual(len(jobs), 2, jobs)


class StartTimeoutTest(MistakesCase):
    def with_coordd(self, script, *arguments):
        """coordrun beside a coordd of this script, whose real one is "$real"."""
        folder = os.path.join(self.folder, "bin")
        os.mkdir(folder)
        shutil.copy(program("coordrun"), folder)
        with open(os.path.join(folder, "coordd"), "w", encoding="ascii") as file:
            file.write(f"#!/bin/sh\nreal={program('coordd')}\n{script}\n")
        os.chmod(os.path.join(folder, "coordd"), 0o755)
        return self.run_command(os.path.join(folder, "coordrun"), *arguments, environment=self.environment, seconds=2 * PATIENCE_S)

    def test_a_coordd_that_is_slow_has_a_minute_at_least(self):
        status, text = self.with_coordd('sleep 3; exec "$real" "$@"', "-np", "1", "--start-timeout", "1", "--", "echo", "ran")
        self.assertEqual(status, 0, text)
        self.assertIn("[0] ran", text)

    def test_what_it_says_when_it_does_not_start_is_passed_on_at_once(self):
        began = time.monotonic()
        status, text = self.with_coordd("echo no libraries >&2; exit 1", "-np", "1", "--", "echo", "ran")
        self.assertNotEqual(status, 0, text)
        self.assertIn("coordd did not start: no libraries", text)
        self.assertLess(time.monotonic() - began, 50, text)


class UsageTest(MistakesCase):
    def test_an_empty_value_is_not_no_value(self):
        for option in ("-H", "--hostfile", "--coordinator", "--host-discovery-script", "--token-file"):
            self.assert_usage(option, "", "--", "true", says=rf"{option} has an empty value: expected .*, or no {option}")

    def test_a_typo_in_hosts_is_told_with_its_place(self):
        for hosts, place in (("host:", 6), ("host:x", 6), (":2", 1), ("host:2,,host2", 8)):
            self.assert_usage("-H", hosts, "--", "true", says=rf'-H: the hosts "{re.escape(hosts)}", column {place}: found ')

    def test_the_number_of_workers_may_stand_in_the_same_word(self):
        for count in ("-np2", "-np=2", "-n=2", "-n2"):
            status, text = self.coordrun(count, *NOWHERE, "--", "bash", "-c", "echo $COORDD_SIZE")
            self.assertEqual((status, text.count("] 2\n")), (0, 2), text)

    def test_flags_of_torchrun_are_answered(self):
        for flag in (["--nproc_per_node", "2"], ["--nproc-per-node=2"], ["--nnodes", "1"], ["--standalone"],
                     ["--rdzv_backend=c10d"], ["--rdzv-endpoint", "h:1"], ["--master_port", "3"]):
            self.assert_usage(*flag, "python", "train.py", says=rf"{flag[0].split('=')[0]}: that is torchrun's")

    def test_what_users_of_torch_fall_into_is_a_warning_of_workers_on_this_machine_too(self):
        threads = ["-x", "OMP_NUM_THREADS=100000", "-x", "NCCL_COMM_ID=h:1"]
        status, text = self.coordrun("-np", "1", *threads, *NOWHERE, "--", "true")
        self.assertEqual(status, 0, text)
        self.assertRegex(text, r"coordrun: warning: host \S+: OMP_NUM_THREADS=100000 gives 1 rank 100000 threads on \d+ cores?, which")
        self.assertRegex(text, r"coordrun: warning: NCCL_COMM_ID=h:1 has all communicators")
        status, text = self.coordrun("-np", "1", "--skip-checks", *threads, *NOWHERE, "--", "true")
        self.assertEqual((status, text.count("warning")), (0, 0), text)

    def test_a_program_on_stdin_is_one_ranks(self):
        for command in (["python3", "-"], ["/usr/bin/python3", "-u", "-"]):
            self.assert_usage("-np", "2", "--", *command, says="reads its program from stdin, which at most rank 0 of the 2 workers")
        self.assert_usage("--horovod", "-np", "2", "python3", "-", says="reads its program from stdin")


class RefusedRankTest(MistakesCase):
    def test_the_summary_says_why_coordd_refused_a_rank(self):
        """Two runs of one name at one coordd, whose launchers have made a token each."""
        coordd = self.start(processes.Coordd())
        tokens = []
        for name in ("first", "second"):
            tokens.append(os.path.join(self.folder, name))
            with open(tokens[-1], "w", encoding="ascii") as file:
                file.write(name)
            os.chmod(tokens[-1], 0o600)
        arguments = ("--coordinator", coordd.listen, "--job", "train")
        first = self.started(*arguments, "--token-file", tokens[0], "-np", "2", "--", "bash", "-c",
                             f'[ $COORDD_RANK = 1 ] && exec sleep 1000; exec {program("coordd-worker")} selftest')
        self.assertTrue(wait_for(lambda: '"joined":1' in coordd.get("/v1/jobs").replace(" ", "")), first.text())
        status, text = self.coordrun(*arguments, "--token-file", tokens[1], "-np", "2", "--", program("coordd-worker"), "selftest")
        self.assertEqual(status, 3, text)
        self.assertRegex(text, r"failed first: coordd refused it: another run at this coordd is called job train, .*; it exited with status 3")
        self.assertRegex(text, r"\ncoordrun: rank [01] exited with status 3, refused by coordd for the same reason\n")
        first.signal(signal.SIGTERM)
        first.wait()


class FirstFlagsTest(MistakesCase):
    """What somebody types who has not read the page."""

    def coordctl(self, *arguments):
        return self.run_command(program("coordctl"), *arguments, environment=self.environment)

    def test_a_job_a_rank_and_a_node_may_be_named_by_flags(self):
        coordd = self.start(processes.Coordd())
        for command in (("status", "--job", "train"), ("status", "train"), ("events", "--job", "train"), ("trace", "--job", "train"),
                        ("evict", "--rank", "3", "--job", "train"), ("evict", "3", "--job", "train"), ("drain", "--node", "n1", "--job", "train")):
            with self.subTest(command=command):
                status, text = self.coordctl(*command, "--coordinator", coordd.listen)
                self.assertEqual(status, 4, text)
                self.assertRegex(text, "no (event of a )?job train")
        status, text = self.coordctl("evict", "--rank", "3", "--coordinator", coordd.listen)
        self.assertEqual(status, 2, text)
        self.assertIn("rank 3 is named without a job, and every job has one: expected --job NAME", text)

    def test_other_programs_names_of_flags_are_answered_with_ours(self):
        for says, name, *arguments in (("there is no flag --addr, did you mean --coordinator?", "coordctl", "status", "--addr", "a:1"),
                                       ("there is no flag --addr, did you mean --listen?", "coordd", "--addr", "a:1"),
                                       ("there is no flag --nproc, did you mean --np?", "coordrun", "--nproc", "2", "--", "true"),
                                       ("--coordinator stands behind the command: coordctl status --coordinator", "coordctl",
                                        "--coordinator", "a:1", "status")):
            status, text = self.run_command(program(name), *arguments, environment=self.environment)
            self.assertEqual(status, 2, text)
            self.assertIn(f"{name}: {says}", text)


class CredentialsTest(MistakesCase):
    def setUp(self):
        super().setUp()
        self.tls, self.other = (os.path.join(self.folder, name) for name in ("tls", "other"))
        for folder in (self.tls, self.other):
            status, text = self.run_command(program("coordctl"), "certs", folder, environment=self.environment)
            self.assertEqual(status, 0, text)

    def files(self, cert="worker.crt", key="worker.key", ca="ca.crt"):
        return [argument for name, file in (("cert", cert), ("key", key), ("ca", ca))
                for argument in (f"--tls-{name}", os.path.join(self.tls, file))]

    def test_files_that_every_worker_would_refuse_are_seen_once_and_at_once(self):
        shown = os.path.join(self.tls, "shown.key")
        with open(os.path.join(self.tls, "worker.key"), "rb") as key, open(shown, "wb") as copy:
            copy.write(key.read())
        os.chmod(shown, 0o644)
        for files, says in ((self.files(ca="missing"), "TLS authority .*missing cannot be read"),
                            (self.files(key="shown.key"), "TLS key .* has mode 0644"),
                            (self.files(key="server.key"), "TLS key .* does not belong to certificate "),
                            (self.files()[:4], "TLS is set up in part")):
            text = self.assert_usage("-np", "2", *NOWHERE, *files, "--", "touch", os.path.join(self.folder, "ran"),
                                     says=f"^coordrun: {says}")
            self.assertEqual(len(text.splitlines()), 1, text)
        self.assertFalse(os.path.exists(os.path.join(self.folder, "ran")))

    def test_so_is_a_token_file(self):
        path = os.path.join(self.folder, "token")
        with open(path, "w", encoding="ascii"):
            pass
        self.assert_usage(*NOWHERE, "--token-file", self.folder, "--", "true", says="--token-file names .*, which is a folder")
        self.assert_usage(*NOWHERE, "--token-file", path + "x", "--", "true", says="--token-file names .*x, which cannot be read: No such file")
        os.chmod(path, 0o640)
        self.assert_usage("--token-file", path, "--", "true", says="--token-file names .*, which has mode 0640, so others")
        os.chmod(path, 0o600)
        self.assert_usage("--token-file", path, "--", "true", says="--token-file names .*, which is empty")

    def test_an_unreadable_certificate_is_wrong_usage_of_every_program(self):
        files = self.files(ca="missing")
        variables = dict(self.environment, COORDD_ADDR="127.0.0.1:1", COORDD_RANK="0", COORDD_SIZE="1",
                         COORDD_TLS_CERT=files[1], COORDD_TLS_KEY=files[3], COORDD_TLS_CA=files[5])
        for environment, *command in ((self.environment, "coordd", "--listen", "127.0.0.1:0", "--http", "off", "--store", "memory", *files),
                                      (self.environment, "coordctl", "status", *NOWHERE, *files),
                                      (self.environment, "coordrun", *NOWHERE, *files, "--", "true"),
                                      (variables, "coordd-worker", "selftest")):
            status, text = self.run_command(program(command[0]), *command[1:], environment=environment)
            self.assertEqual(status, 2, (command, text))
            self.assertRegex(text, "TLS authority .*missing cannot be read")

    def test_coordctl_says_in_a_sentence_why_it_has_no_answer(self):
        server = [os.path.join(self.tls, name) for name in ("server.crt", "server.key", "ca.crt")]
        coordd = self.start(processes.Coordd("--tls-cert", server[0], "--tls-key", server[1], "--tls-ca", server[2]))
        theirs = [os.path.join(self.other, name) for name in ("worker.crt", "worker.key", "ca.crt")]
        status, text = self.run_command(program("coordctl"), "status", "--coordinator", coordd.listen, "--tls-cert", theirs[0],
                                        "--tls-key", theirs[1], "--tls-ca", theirs[2], environment=self.environment)
        self.assertEqual(status, 6, text)
        self.assertIn(f"the certificate of coordd at {coordd.listen} is not of the authority in {theirs[2]}: expected files of one "
                      "`coordctl certs`", text)
        status, text = self.run_command(program("coordctl"), "status", *NOWHERE, environment=self.environment)
        self.assertEqual(status, 1, text)
        self.assertEqual(text, "coordctl: coordd at 127.0.0.1:1: it cannot be reached: Connection refused\n")


if __name__ == "__main__":
    processes.main()
