"""Row 28: three etcds without a quorum, under a running job.

Injected: coordd leads through three etcds, another coordd stands by; the first etcd is killed; later one of the two that are left
stands still, for 30 s. Observed: the loss of one member changes nothing. Without a quorum the ranks reduce on, and no result is
wrong; a job that is new does not form, and says why; nobody else leads. Seconds after etcd's return it does; the members are
those of the same generation, under the one coordd or the other, and a tensor that is new is reduced.
"""

import os
import signal
import socket
import sys
import time
import types
import unittest

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))

from tests.chaos import elastic
from tests.support import etcd, processes

OUTAGE_S = 30


@unittest.skipUnless(etcd.installed(), "no etcd is installed here (Debian: etcd-server): etcds without a quorum are not tested")
class QuorumTest(elastic.TestCase):
    def test_a_job_outlives_thirty_seconds_without_a_quorum(self):
        members = etcd.cluster(self, 3)
        store = ("--store", "etcd:" + ",".join(member.address for member in members) + "/lab", "--store-lease", "3s")
        with socket.create_server(("127.0.0.1", 0)) as free:
            address = f"127.0.0.1:{free.getsockname()[1]}"
        coordd = self.coordd(*store)
        standby = self.start(processes.Process([processes.program("coordd"), "--listen", address, "--http", "127.0.0.1:0",
                                                "--connection-file", "", "--standby", *store]))
        self.assertTrue(self.wait_for(lambda: "standing by" in standby.text()), standby.text())
        both = types.SimpleNamespace(listen=f"{coordd.listen},{address}")
        workers = self.workers(both, 3, COORDD_METRICS="127.0.0.1:0")
        stop = os.path.join(self.folder, "stop")
        for worker in workers:
            worker.tell(f"steps {stop} same 5")  # not as fast as they can, for so long
        self.goes_on(workers)
        members[0].signal(signal.SIGKILL)
        members[0].wait()
        self.workers(both, 1, job="second")
        self.goes_on(workers)

        members[1].signal(signal.SIGSTOP)
        began = time.monotonic()
        third = self.start(processes.ScriptedWorker(both.listen, COORDD_JOB_ID="third", COORDD_MAX_WORKERS=1,
                                                    COORDD_JOIN_TIMEOUT=processes.PATIENCE_S * 2))
        self.assertTrue(self.wait_for(lambda: coordd.metric("coordd_state_writable") == 0), coordd.text())
        while time.monotonic() - began < OUTAGE_S:
            self.goes_on(workers)
            time.sleep(1)  # no condition: it is time that passes
        self.assertTrue(coordd.running(), coordd.text())
        self.assertNotIn(" ready: ", standby.text())
        self.assertEqual(third.place, {})

        members[1].signal(signal.SIGCONT)
        self.assertTrue(third.joined().place)
        self.goes_on(workers)
        with open(stop, "w", encoding="ascii"):
            pass
        ends = {worker.answer() for worker in workers}
        self.assertEqual(len(ends), 1, ends)
        self.assertRegex(ends.pop(), r"^ok \d+$")
        for worker in workers:
            worker.tell("train new 1000 10")
        for worker in workers:
            self.assertEqual(self.changes(worker), ([], ("ok", "10", "1", "3")))
        print("after the outage", "the same coordd leads" if coordd.running() else "the standby leads")

    def goes_on(self, workers):
        """Each rank reduces more than it had."""
        before = [self.reduced(worker) for worker in workers]
        for worker, count in zip(workers, before):
            self.assertTrue(self.wait_for(lambda: self.reduced(worker) > count), worker.text())

    def reduced(self, worker):
        with processes.urllib.request.urlopen(f"http://{worker.place['metrics']}/metrics", timeout=60) as answer:
            return processes.metric(answer.read().decode(), "coordd_worker_collectives_total", code="OK") or 0


if __name__ == "__main__":
    processes.main()
