"""Jobs that go on without members that are lost, every result of which is checked by the worker that gets it: exact over the
members of its generation, or an error."""

import os
import signal

from tests.support import processes
from tests.support.processes import ScriptedWorker, wait_for

STEPS = 20


class TestCase(processes.TestCase):
    def setUp(self):
        super().setUp()
        # One coordd after the other on the same state, which do not wait long for those who do not come back.
        self.durable = ("--store", f"sqlite:{os.path.join(self.folder, 'state')}", "--settling-window", "10m",
                        "--lease", "5s", "--resume-grace", "1s")

    def worker(self, coordd, most, least=2, job="test", **options):
        """One that is on its way into the job."""
        return self.start(ScriptedWorker(coordd.listen, COORDD_JOB_ID=job, COORDD_MIN_WORKERS=least, COORDD_MAX_WORKERS=most,
                                         COORDD_ON_FAILURE="raise", COORDD_JOIN_TIMEOUT=processes.PATIENCE_S, **options))

    def training(self, coordd, count, least=2):
        """Members that reduce until the members change, and STEPS steps more."""
        return self.begin([self.worker(coordd, count, least) for _ in range(count)])

    def begin(self, workers):
        workers = sorted((worker.joined() for worker in workers), key=lambda worker: worker.rank)
        for worker in workers:
            worker.tell(f"train grad 20000 {STEPS} change")
        for worker in workers:
            self.assertEqual(worker.answer(), "step 5")
        return workers

    def kill(self, *those):
        for one in those:
            one.signal(signal.SIGKILL)

    def changes(self, worker):
        """What it says of each change of generation, up to its end, which is ("ok", steps, generation, size)."""
        told = []
        while True:
            answer = worker.answer()
            if answer.startswith("step "):
                continue
            if not answer.startswith("changed "):
                return told, tuple(answer.split()[:4])
            told.append(answer)

    def names_it(self, text, victim):
        return f"rank {victim.rank} " in text and f"pid {victim.pid})" in text

    def again(self, coordd):
        """Another coordd where this one was, which has ended."""
        coordd.wait()
        return self.coordd(*self.durable, listen=coordd.listen)

    def departed(self, coordd):
        """Processes of the only job that are gone."""
        return {departure["pid"] for departure in coordd.json("/v1/jobs")["jobs"][0].get("departures", [])}

    wait_for = staticmethod(wait_for)
