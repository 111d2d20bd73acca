"""The manifests of deploy/kubernetes as processes in network namespaces: an elastic indexed Job that is scaled, and loses a pod."""

import os
import re
import shutil
import signal
import subprocess
import sys
import unittest

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))

from tests.support import network, pods, processes  # noqa: E402
from tests.support.processes import ROOT, program, wait_for  # noqa: E402

MANIFESTS = os.path.join(ROOT, "deploy", "kubernetes")
SCALINGS = int(os.environ.get("COORDD_TEST_SCALINGS", "20"))
COORDD = 2  # its host; pods are on 0 and 1

TRAIN = """
import os, sys, time
import numpy
from coordd import HorovodInternalError, _arrays, _basics, elastic

folder = sys.argv[1]

def note(name, text):
    with open(os.path.join(folder, name), "a") as file:
        file.write(text + "\\n")

_basics.init()
state = elastic.ObjectState(lambda value, root_rank=0: _arrays.broadcast_object(value, root_rank, "state"), _basics.rank, step=0)

def train(state):
    last = 0
    while True:
        ends = float(os.path.exists(os.path.join(folder, "end")))
        try:
            total = _arrays.allreduce("gradient", numpy.array([1.0, ends]), _basics.Sum)
        except HorovodInternalError as error:
            note("failed", str(error))
            raise
        if total[0] != _basics.size():
            note("wrong", f"{total[0]} of {_basics.size()}")
        if total[1] > 0:
            return
        if last != _basics.size():
            last = _basics.size()
            note("sizes", str(last))
        time.sleep(0.01)
        state.step += 1
        state.commit()

elastic.run_fn(train, _basics.change_members)(state)
note("through", str(_basics.size()))
"""


def why_not():
    try:
        import numpy  # noqa: F401
        import yaml  # noqa: F401
    except ImportError as missing:
        return f"{missing}: tools/install-deps --test"
    return network.why_not()


@unittest.skipIf(why_not(), why_not())
class IndexedJobTest(processes.TestCase):
    def setUp(self):
        super().setUp()
        self.network = network.Network(3)
        self.addCleanup(self.network.close)
        certificates = os.path.join(self.folder, "certificates")
        subprocess.run([program("coordctl"), "certs", certificates, "--name", "coordd"], check=True, capture_output=True)
        secrets = {}
        for role in ("server", "worker"):
            secrets[f"coordd-{role}"] = folder = os.path.join(self.folder, role)
            os.mkdir(folder)
            for name, found in (("ca.crt", "ca.crt"), ("tls.crt", f"{role}.crt"), ("tls.key", f"{role}.key")):
                shutil.copy(os.path.join(certificates, found), os.path.join(folder, name))
        for name in ("train-token", "coordd-http"):
            secrets[name] = os.path.join(self.folder, name)
            os.mkdir(secrets[name])
            with open(os.path.join(secrets[name], "token"), "w", opener=lambda path, flags: os.open(path, flags, 0o600)) as token:
                token.write("secret")
        self.state = os.path.join(self.folder, "state")
        os.mkdir(self.state)
        self.program = os.path.join(self.folder, "train.py")
        with open(self.program, "w", encoding="ascii") as file:
            file.write(TRAIN)
        self.cluster = pods.Cluster(self.network, self.folder, secrets)
        self.job = pods.documents(os.path.join(MANIFESTS, "jobs", "indexed-job.yaml"))["Job"]

    def pod(self, index, *flags, **variables):
        more = {"JOB_COMPLETION_INDEX": str(index), "PYTHONPATH": os.path.join(ROOT, "client", "python"),
                "COORDD_LIBRARY": os.path.join(processes.BUILD, "lib", "libcoordd.so"), "COORDD_SETTLING_WINDOW": "2",
                "OMP_NUM_THREADS": "1", **variables}
        return self.start(self.cluster.start(
            self.job["spec"]["template"]["spec"], index, name=f"train-{index}", variables=more,
            replace={"coordrun": [program("coordrun"), *flags], "python": [sys.executable], "train.py": [self.program, self.folder]}))

    def lines(self, name):
        path = os.path.join(self.folder, name)
        if not os.path.exists(path):
            return []
        with open(path, encoding="utf-8") as file:
            return file.read().splitlines()

    def await_size(self, size):
        """Until each of so many workers has noted that they are so many, since the last call."""
        seen = len(self.seen)
        self.assertTrue(wait_for(lambda: self.lines("sizes")[seen:].count(str(size)) >= size), self.said())
        self.seen = self.lines("sizes")

    def said(self):
        return "\n".join(f"{pod.name}: {pod.text()}" for pod in [self.coordd_pod, *self.pods] if pod is not None)

    def begin(self):
        """Both pods are there before coordd, and before it has a name."""
        self.seen, self.coordd_pod = [], None
        self.pods = [self.pod(0), self.pod(1)]
        self.assertTrue(wait_for(lambda: all(processes.processes_with("HOSTNAME", pod.name) for pod in self.pods)))
        self.coordd_pod = self.start(self.cluster.start_coordd(os.path.join(MANIFESTS, "base", "coordd.yaml"), COORDD, self.state))
        self.await_size(4)

    def end(self):
        open(os.path.join(self.folder, "end"), "w").close()
        for pod in self.pods:
            self.assertEqual(pod.wait(), 0, pod.text())
        self.assertEqual(self.lines("wrong"), [])
        self.coordd_pod.signal(signal.SIGTERM)
        self.assertEqual(self.coordd_pod.wait(), 0, self.coordd_pod.text())
        self.assert_nothing_left()

    def test_a_job_is_scaled_without_a_failed_collective(self):
        self.begin()
        for _ in range(SCALINGS // 2):
            self.pods[1].signal(signal.SIGTERM)
            # Not 0: the controller would take its part of the program for done, and start it nowhere else.
            self.assertEqual(self.pods[1].wait(), 143, self.pods[1].text())
            self.assertIn("its workers have left", self.pods[1].text())
            self.await_size(2)
            self.pods[1] = self.pod(1)
            self.await_size(4)
        self.assertEqual(self.lines("failed"), [], self.said())
        self.end()

    def test_a_job_goes_on_without_a_pod_that_is_killed_and_takes_it_back(self):
        self.begin()
        self.pods[1].kill()
        self.await_size(2)
        for line in self.lines("failed"):
            self.assertRegex(line, r"rank [23] \(host train-1, .*was lost")
        self.pods[1] = self.pod(1)
        self.await_size(4)
        self.end()

    def test_the_first_pod_starts_coordd_for_all_who_wait_for_it(self):
        self.seen, self.coordd_pod = [], None
        variables = {"COORDD_ADDR": "train-0:29650", "COORDD_SIZE": "4",
                     **{name: "" for name in ("COORDD_TLS_CA", "COORDD_TLS_CERT", "COORDD_TLS_KEY")}}
        refused = self.pod(0, **variables)
        self.assertEqual(refused.wait(), 2)
        self.assertIn("the pods have no certificates", refused.text())
        self.pods = [self.pod(1, "--no-tls", **variables)]
        self.assertTrue(wait_for(lambda: processes.processes_with("HOSTNAME", "train-1")))
        self.cluster.add_name("train-0", 0)
        self.pods.insert(0, self.pod(0, "--no-tls", **variables))
        self.await_size(4)
        open(os.path.join(self.folder, "end"), "w").close()
        self.assertEqual([pod.wait() for pod in self.pods], [0, 0], self.said())
        self.assertEqual(self.lines("failed"), [])
        self.assert_nothing_left()

    def test_a_coordd_that_does_not_come_is_told_with_the_time_that_it_was_waited_for(self):
        pod = self.pod(1, "--no-tls", COORDD_ADDR="nobody:29650", COORDD_JOIN_TIMEOUT="2")
        self.assertEqual(pod.wait(), 1)
        self.assertRegex(pod.text(), r"the host name nobody .*, for 2 s \(COORDD_JOIN_TIMEOUT\): expected COORDD_ADDR to name a coordd")

    def test_a_pod_that_does_not_know_how_many_there_are_says_so(self):
        pod = self.pod(1, COORDD_SIZE="")
        self.assertEqual(pod.wait(), 2)
        self.assertTrue(re.search("pod 1 of Kubernetes indexed Job.*how many pods there are is not said: expected COORDD_SIZE", pod.text()),
                        pod.text())


if __name__ == "__main__":
    processes.main()
