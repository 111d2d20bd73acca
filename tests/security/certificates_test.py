"""Certificates that are replaced under a coordd that serves, and that end."""

import datetime
import itertools
import json
import os
import re
import shutil
import signal
import socket
import ssl
import subprocess
import unittest

from tests.support import processes
from tests.support.certificates import HAS_OPENSSL, Certificates
from tests.support.processes import program, wait_for


class CertificatesTest(processes.TestCase):
    def setUp(self):
        super().setUp()
        self.first = Certificates(os.path.join(self.folder, "first"))
        self.second = Certificates(os.path.join(self.folder, "second"))
        self.used = os.path.join(self.folder, "used")
        os.mkdir(self.used, 0o700)

    def use(self, certificates):
        for name in ("server.crt", "server.key", "ca.crt"):
            shutil.copy2(os.path.join(certificates.folder, name), os.path.join(self.used, name + ".new"))
            os.rename(os.path.join(self.used, name + ".new"), os.path.join(self.used, name))

    def daemon(self):
        return self.coordd("--tls-cert", f"{self.used}/server.crt", "--tls-key", f"{self.used}/server.key", "--tls-ca", f"{self.used}/ca.crt")

    @staticmethod
    def read(path):
        with open(path, encoding="ascii") as file:
            return file.read()

    def certs(self, folder, *arguments):
        status, text = self.run_command(program("coordctl"), "certs", folder, *arguments)
        self.assertEqual(status, 0, text)

    def still_work(self, workers):
        for worker in workers:
            worker.tell("barrier")
        self.assertEqual({worker.answer() for worker in workers}, {"ok"})

    def status(self, coordd, certificates):
        return self.run_command(program("coordctl"), "status", "--coordinator", coordd.listen, *certificates.flags("operator"))[0]

    def test_new_ones_count_at_a_signal_and_a_job_goes_on(self):
        self.use(self.first)
        coordd = self.daemon()
        workers = self.workers(coordd, 2, **self.first.variables("worker"))
        self.assertEqual((self.status(coordd, self.first), self.status(coordd, self.second)), (0, 6))
        self.use(self.second)
        coordd.signal(signal.SIGHUP)
        self.assertTrue(wait_for(lambda: self.status(coordd, self.second) == 0), coordd.text())
        self.assertEqual(self.status(coordd, self.first), 6)
        self.still_work(workers)
        self.assertIn("new certificates", coordd.text())
        self.assertTrue(coordd.running())

    def test_one_of_the_same_authority_is_renewed_alone(self):
        coordd = self.coordd(*self.first.server_flags())
        workers = self.workers(coordd, 2, **self.first.variables("worker"))
        before = {name: self.read(f"{self.first.folder}/{name}") for name in os.listdir(self.first.folder)}
        self.certs(self.first.folder, "--role", "server", "--renew", "--days", "20")
        changed = {name for name in before if self.read(f"{self.first.folder}/{name}") != before[name]}
        self.assertEqual(changed, {"server.crt", "server.key"})
        self.assertTrue(wait_for(lambda: "new certificates" in coordd.text()), coordd.text())
        self.assertEqual(self.status(coordd, self.first), 0)
        self.still_work(workers)
        for role in ("operator", "worker"):
            self.certs(self.first.folder, "--role", role, "--renew")
        self.assertEqual(self.status(coordd, self.first), 0)
        self.workers(coordd, 1, job="another", **self.first.variables("worker"))

    def test_what_is_printed_is_pasted_into_a_shell_elsewhere(self):
        folder = os.path.join(self.folder, "made there", "it's")
        os.makedirs(os.path.dirname(folder))
        made = subprocess.run([program("coordctl"), "certs", "it's", "--name", "127.0.0.1"], cwd=os.path.dirname(folder), check=True,
                              capture_output=True, text=True).stdout
        variables = 'printf "%s\\n" "$COORDD_TLS_CERT" "$COORDD_TLS_KEY" "$COORDD_TLS_CA"'
        pasted = subprocess.run(["bash", "-euc", f'coordd() {{ printf "%s\\n" "$@"; }}\n{made}\n{variables}'], cwd="/", check=True,
                                capture_output=True, text=True).stdout.splitlines()
        self.assertEqual(pasted, ["--tls-cert", f"{folder}/server.crt", "--tls-key", f"{folder}/server.key", "--tls-ca", f"{folder}/ca.crt",
                                  *(f"{folder}/{name}" for name in ("operator.crt", "operator.key", "ca.crt"))])

    def test_whose_names_a_renewal_drops_is_told(self):
        folder = os.path.join(self.folder, "named")
        self.certs(folder, "--name", "launch.cluster", "--name", "10.0.0.7")
        renew = [program("coordctl"), "certs", folder, "--role", "server", "--renew"]
        kept = subprocess.run(renew, check=True, capture_output=True, text=True).stdout
        self.assertIn("# its names: localhost, 127.0.0.1, ::1, launch.cluster, 10.0.0.7\n", kept)
        self.assertNotIn("NO LONGER", kept)
        dropped = subprocess.run([*renew, "--name", "10.0.0.7", "--name", "other.cluster"], check=True, capture_output=True, text=True).stdout
        self.assertIn("# its names: localhost, 127.0.0.1, ::1, 10.0.0.7, other.cluster\n# NO LONGER among them: launch.cluster.", dropped)
        self.assertIn("\n#   --name launch.cluster\n", dropped)
        said = json.loads(subprocess.run([*renew, "--json", "--name", "launch.cluster"], check=True,
                                         capture_output=True, text=True).stdout)["server"]
        self.assertEqual(said["names"], ["localhost", "127.0.0.1", "::1", "launch.cluster"])
        self.assertEqual(said["dropped_names"], ["10.0.0.7", "other.cluster"])

    def test_what_cannot_be_renewed_is_one_sentence(self):
        folder = self.first.folder
        for arguments, status, said in ((["--role", "server"], 1, "server.crt exists already; nothing was written"),
                                        (["--renew"], 2, "--renew is given without --role"),
                                        (["--role", "captain", "--renew"], 2, "expected server, operator, launcher")):
            found, text = self.run_command(program("coordctl"), "certs", folder, *arguments)
            self.assertEqual((found, text.count("\n")), (status, 1), text)
            self.assertIn(said, text)
        os.remove(f"{folder}/ca.key")
        found, text = self.run_command(program("coordctl"), "certs", folder, "--role", "server", "--renew")
        self.assertEqual(found, 1, text)
        self.assertIn("there is no ", text)

    def test_another_authority_takes_over_under_a_job(self):
        """The steps of docs/SECURITY.md, in their order: whoever is asked at any of them is let in, and the job goes on."""
        self.use(self.first)
        clients = os.path.join(self.folder, "clients")
        os.mkdir(clients, 0o700)
        for name in ("ca.crt", "worker.crt", "worker.key", "operator.crt", "operator.key"):
            shutil.copy2(f"{self.first.folder}/{name}", clients)
        coordd = self.daemon()
        variables = {"COORDD_TLS_CA": f"{clients}/ca.crt", "COORDD_TLS_CERT": f"{clients}/worker.crt", "COORDD_TLS_KEY": f"{clients}/worker.key"}
        workers = self.workers(coordd, 2, **variables)

        def replace(folder, source, *names):
            for name in names:
                shutil.copy2(f"{source}/{name}", f"{folder}/{name}.next")
            for name in names:
                os.rename(f"{folder}/{name}.next", f"{folder}/{name}")

        def is_in_force(step):
            told = coordd.text().count("new certificates")
            step()
            coordd.signal(signal.SIGHUP)
            self.assertTrue(wait_for(lambda: coordd.text().count("new certificates") > told), coordd.text())

        number = itertools.count()

        def all_is_well():
            flags = ["--tls-ca", f"{clients}/ca.crt", "--tls-cert", f"{clients}/operator.crt", "--tls-key", f"{clients}/operator.key"]
            status, text = self.run_command(program("coordctl"), "status", "--coordinator", coordd.listen, *flags)
            self.assertEqual(status, 0, text)
            self.still_work([*workers, *self.workers(coordd, 1, job=f"another-{next(number)}", **variables)])

        both = os.path.join(self.folder, "both")
        os.mkdir(both)
        with open(f"{both}/ca.crt", "w", encoding="ascii") as out:
            out.write(self.read(f"{self.first.folder}/ca.crt") + self.read(f"{self.second.folder}/ca.crt"))
        is_in_force(lambda: replace(self.used, both, "ca.crt"))
        all_is_well()
        replace(clients, both, "ca.crt")
        all_is_well()
        is_in_force(lambda: replace(self.used, self.second.folder, "server.key", "server.crt"))
        all_is_well()
        replace(clients, self.second.folder, "worker.key", "worker.crt", "operator.key", "operator.crt")
        all_is_well()
        is_in_force(lambda: replace(self.used, self.second.folder, "ca.crt"))
        replace(clients, self.second.folder, "ca.crt")
        all_is_well()
        self.assertNotEqual(self.status(coordd, self.first), 0)
        self.assertTrue(coordd.running())

    def test_whoever_lacks_a_new_certificate_is_told_so_while_coordd_is_away(self):
        self.use(self.first)
        store = ("--store", f"sqlite:{os.path.join(self.folder, 'state')}")
        coordd = self.coordd(*store, *self.first.server_flags())
        worker = self.workers(coordd, 1, **self.first.variables("worker"))[0]
        coordd.signal(signal.SIGUSR1)
        coordd.wait()
        flags = [*self.first.server_flags()[:-1], f"{self.second.folder}/ca.crt"]
        self.coordd(*store, *flags, listen=coordd.listen)
        self.assertTrue(wait_for(lambda: "has been away for" in worker.text()), worker.text())
        self.assertRegex(worker.text(), r"has been away for .*: coordd at .* does not take the certificate in .*worker\.crt: expected one for "
                                        r"clients and of the authority that it was given with --tls-ca .*, so coordd's log says what will not do")

    def test_new_ones_are_found_without_a_signal(self):
        self.use(self.first)
        coordd = self.daemon()
        self.use(self.second)
        self.assertTrue(wait_for(lambda: self.status(coordd, self.second) == 0), coordd.text())

    def test_what_does_not_fit_together_is_not_used(self):
        self.use(self.first)
        coordd = self.daemon()
        shutil.copy2(os.path.join(self.second.folder, "server.crt"), os.path.join(self.used, "server.crt"))
        coordd.signal(signal.SIGHUP)
        self.assertTrue(wait_for(lambda: "goes on with the certificates that it has" in coordd.text()))
        self.assertEqual(self.status(coordd, self.first), 0)
        shutil.copy2(os.path.join(self.first.folder, "server.crt"), os.path.join(self.used, "server.crt"))
        coordd.signal(signal.SIGHUP)
        mended = "the files of --tls-cert, --tls-key and --tls-ca can be used again"
        self.assertTrue(wait_for(lambda: mended in coordd.text()), coordd.text())

    def test_what_is_gone_is_told_and_what_is_back_too(self):
        self.use(self.first)
        coordd = self.daemon()
        key = os.path.join(self.used, "server.key")
        os.rename(key, key + ".away")
        self.assertTrue(wait_for(lambda: "goes on with the certificates that it has" in coordd.text()), coordd.text())
        self.assertIn(key, coordd.text())
        self.assertEqual(self.status(coordd, self.first), 0)
        os.rename(key + ".away", key)
        mended = "the files of --tls-cert, --tls-key and --tls-ca can be used again"
        self.assertTrue(wait_for(lambda: mended in coordd.text()), coordd.text())

    def refused(self, coordd, stem):
        """What coordd's log says of a handshake with that certificate."""
        host, port = coordd.listen.rsplit(":", 1)
        with socket.create_connection((host, int(port)), processes.PATIENCE_S) as plain:
            mine = "%s:%d" % plain.getsockname()
            with self.assertRaises((OSError, ssl.SSLError)):
                with self.first.context(stem).wrap_socket(plain, server_hostname="localhost") as client:
                    client.sendall(b"x")
                    while client.recv(1000):
                        pass
                    raise ssl.SSLError("closed")
        said = re.compile(f"a TLS handshake of {mine} was refused: (.*)")
        self.assertTrue(wait_for(lambda: said.search(coordd.text())), coordd.text())
        return said.search(coordd.text()).group(1)

    def test_of_which_authority_each_side_is_is_said_to_both(self):
        def name_of(certificates):
            said = subprocess.run([program("coordctl"), "whoami", "--json"], check=True, capture_output=True, text=True,
                                  env={**os.environ, **certificates.variables("worker")}).stdout
            connection = json.loads(said)["connection"]
            self.assertEqual(connection["authority"], connection["trusted_authority"])
            return connection["authority"]

        ours, theirs = name_of(self.first), name_of(self.second)
        self.assertRegex(ours, "^CN=coordd authority [0-9a-f]{8},O=coordd$")
        self.assertNotEqual(ours, theirs)
        mark, their_mark = (re.search("[0-9a-f]{8}", name).group() for name in (ours, theirs))
        coordd = self.coordd(*self.first.server_flags())
        status = [program("coordctl"), "status", "--coordinator", coordd.listen]
        text = self.run_command(*status, *self.second.flags("operator"))[1]
        self.assertIn(f"; coordd's is of authority {mark}; the file is of {theirs})", text)
        flags = self.second.flags("operator")
        flags[flags.index(f"{self.second.folder}/ca.crt")] = f"{self.first.folder}/ca.crt"
        text = self.run_command(*status, *flags)[1]
        self.assertIn(f"; this one is of {theirs}", text)
        said = f"was refused: its certificate is not of the authority in --tls-ca, but of authority {their_mark}"
        self.assertTrue(wait_for(lambda: said in coordd.text()), coordd.text())

    @unittest.skipUnless(HAS_OPENSSL, "openssl makes the certificate")
    def test_what_will_not_do_of_one_of_its_own_authority_is_in_the_log(self):
        stem = self.first.add_by_hand("odd", "coordd://operator/odd", more="1.2.3.4=critical,DER:0500")
        coordd = self.coordd(*self.first.server_flags())
        status, text = self.run_command(program("coordctl"), "status", "--coordinator", coordd.listen, *self.first.flags(stem))
        self.assertEqual(status, 6, text)
        self.assertRegex(text, r"does not take the certificate in .*/odd\.crt: expected one for clients and of the authority that it was given "
                               r"with --tls-ca.*; this one says that it is of CN=coordd authority [0-9a-f]{8},O=coordd, as .*/ca\.crt is, so "
                               r"coordd's log says what will not do")
        self.assertTrue(wait_for(lambda: "will not do: unhandled critical extension" in coordd.text()), coordd.text())

    @unittest.skipUnless(HAS_OPENSSL, "openssl makes the certificate")
    def test_an_authoritys_certificate_is_nobodys_own(self):
        stem = self.first.add_by_hand("sub", "coordd://operator/eve", constraints="CA:TRUE")
        self.assertIn("is an authority's", self.refused(self.coordd(*self.first.server_flags()), stem))

    @unittest.skipUnless(HAS_OPENSSL, "openssl makes the certificate")
    def test_what_is_not_valid_yet_is_called_so(self):
        stem = self.first.add_by_hand("early", "coordd://operator/early", begin="20900101000000Z", end="20910101000000Z")
        said = self.refused(self.coordd(*self.first.server_flags()), stem)
        self.assertIn("its certificate (operator/early) is not valid yet: it becomes so at 2090-01-01 00:00:00 UTC", said)

    @unittest.skipUnless(HAS_OPENSSL, "openssl makes the certificate")
    def test_whose_certificate_has_expired_is_said(self):
        coordd = self.coordd(*self.first.server_flags())
        for stem, uris, whose in (("late", ["coordd://worker/train7"], "worker/train7"), ("plain", [], "plain")):
            self.first.add_by_hand(stem, *uris, begin="20200101000000Z", end="20210101000000Z")
            self.assertEqual(self.refused(coordd, stem), f"its certificate ({whose}) has expired at 2021-01-01 00:00:00 UTC")
            status, text = self.run_command(program("coordctl"), "status", "--coordinator", coordd.listen, *self.first.flags(stem))
            self.assertEqual(status, 2, text)
            self.assertIn(f"{stem}.crt has expired at 2021-01-01 00:00:00 UTC: expected a new one (coordctl certs DIR --role", text)

    @unittest.skipUnless(HAS_OPENSSL, "openssl says the messages")
    def test_new_keys_without_end_cost_their_connection(self):
        coordd = self.coordd(*self.first.server_flags())
        files = {name: f"{self.first.folder}/{name}" for name in ("ca.crt", "worker.crt", "worker.key")}
        client = subprocess.Popen(["openssl", "s_client", "-connect", coordd.listen, "-alpn", "h2", "-CAfile", files["ca.crt"], "-cert",
                                   files["worker.crt"], "-key", files["worker.key"]], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL,
                                  stderr=subprocess.DEVNULL)
        self.addCleanup(client.wait)
        self.addCleanup(client.kill)
        self.addCleanup(client.stdin.close)
        said = re.compile(r"a connection of .*127\.0\.0\.1:\d+.* was closed: it has sent more than 32 KeyUpdate messages of TLS")

        def one_more():
            try:
                os.write(client.stdin.fileno(), b"k\n")  # of each piece that it reads s_client looks at the first letter
            except BrokenPipeError:
                pass
            return said.search(coordd.text())

        self.assertTrue(wait_for(one_more), coordd.text())
        self.assertEqual(self.status(coordd, self.first), 0)

    @unittest.skipUnless(HAS_OPENSSL, "openssl makes the certificate")
    def test_their_end_itself_is_told(self):
        end = datetime.datetime.now(datetime.timezone.utc) + datetime.timedelta(seconds=20)
        self.first.add_by_hand("soon", usage="serverAuth", begin="20200101000000Z", end=f"{end:%Y%m%d%H%M%SZ}")
        for kind in ("crt", "key"):
            shutil.copy2(f"{self.first.folder}/soon.{kind}", f"{self.first.folder}/server.{kind}")
        coordd = self.coordd(*self.first.server_flags())
        self.assertRegex(coordd.text(), r"ends at .* UTC, in [1-9][0-9.]*s; put new files in the place")
        self.assertTrue(wait_for(lambda: "has ended at" in coordd.text(), seconds=60), coordd.text())

    def test_an_authority_that_is_none_is_a_wrong_flag(self):
        flags = [*self.first.server_flags()[:-1], f"{self.first.folder}/server.crt"]
        status, text = self.run_command(program("coordd"), "--listen", "127.0.0.1:0", "--http", "off", "--store", "memory", *flags)
        self.assertEqual(status, 2, text)  # which systemd does not start again
        self.assertIn("certificate 1 is no authority's, expected ca.crt", text)

    def test_their_end_is_told_a_month_before(self):
        short = os.path.join(self.folder, "short")
        subprocess.run([program("coordctl"), "certs", short, "--days", "20"], check=True, capture_output=True)
        coordd = self.coordd("--tls-cert", f"{short}/server.crt", "--tls-key", f"{short}/server.key", "--tls-ca", f"{short}/ca.crt")
        end = datetime.datetime.fromtimestamp(coordd.metric("coordd_certificate_end_seconds"), datetime.timezone.utc)
        self.assertAlmostEqual((end - datetime.datetime.now(datetime.timezone.utc)).days, 20, delta=1)
        self.assertIn(f"ends at {end:%Y-%m-%d %H:%M} UTC", coordd.text())
        # One that is renewed lasts as long as it did.
        subprocess.run([program("coordctl"), "certs", short, "--role", "server", "--renew"], check=True, capture_output=True)
        self.assertTrue(wait_for(lambda: "new certificates" in coordd.text()), coordd.text())
        end = datetime.datetime.fromtimestamp(coordd.metric("coordd_certificate_end_seconds"), datetime.timezone.utc)
        self.assertAlmostEqual((end - datetime.datetime.now(datetime.timezone.utc)).days, 20, delta=1)
        self.use(self.first)
        calm = self.daemon()
        self.assertNotIn("UTC", calm.text())
        self.assertIsNone(self.coordd().metric("coordd_certificate_end_seconds"))


if __name__ == "__main__":
    processes.main()
