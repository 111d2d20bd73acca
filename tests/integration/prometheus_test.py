"""A real Prometheus with the scrape configuration that we ship follows workers that come and go."""

import subprocess
import unittest

from tests.support import processes
from tests.support.processes import wait_for
from tests.support.prometheus import CONFIG, IS_HERE, Prometheus

ELEMENTS, STEPS, WORKERS = 25000, 10, 4


@unittest.skipUnless(IS_HERE, "no prometheus here: tools/install-deps --test")
class PrometheusTest(processes.TestCase):
    def test_promtool_accepts_the_configuration(self):
        run = subprocess.run(["promtool", "check", "config", CONFIG], capture_output=True, text=True)
        self.assertEqual(run.returncode, 0, run.stdout + run.stderr)

    def test_finds_four_workers_sums_their_bytes_and_finds_three_after_one_has_left(self):
        coordd = self.coordd()
        prometheus = self.start(Prometheus(coordd, self.folder))
        workers = self.workers(coordd, WORKERS, job="run7", COORDD_METRICS="127.0.0.1:0")
        up = 'count(up{job="coordd-workers"} == 1)'
        self.assertTrue(wait_for(lambda: prometheus.value(up) == WORKERS), prometheus.text())
        self.assertTrue(wait_for(lambda: prometheus.value('up{job="coordd"}') == 1), prometheus.text())
        # A worker that is started again has another port, and the same name.
        self.assertEqual({series["metric"]["instance"] for series in prometheus.series('up{job="coordd-workers"}')},
                         {f"run7/{rank}" for rank in range(WORKERS)})

        for step in range(STEPS):
            for worker in workers:
                self.assertEqual(worker.ask(f"submit step{step} float32 {ELEMENTS} 1"), "ok")
            for worker in workers:
                self.assertEqual(worker.ask(f"wait step{step}"), f"ok {WORKERS} {WORKERS}")
        total = 'sum(coordd_worker_payload_bytes_total{kind="allreduce"})'
        expected = WORKERS * STEPS * ELEMENTS * 4
        self.assertTrue(wait_for(lambda: prometheus.value(total) == expected),
                        f"{total} is {prometheus.value(total)}, expected {expected}")
        # Of histograms the sum and the count are kept.
        self.assertEqual(prometheus.series("coordd_worker_execution_seconds_bucket"), [])
        self.assertTrue(wait_for(lambda: (prometheus.value("sum(coordd_worker_execution_seconds_count)") or 0) > 0), prometheus.text())

        self.assertEqual(workers[3].ask("leave"), "ok")
        workers[3].end()
        self.assertTrue(wait_for(lambda: prometheus.value('count(up{job="coordd-workers"})') == WORKERS - 1),
                        coordd.get("/v1/targets"))
        self.assertTrue(wait_for(lambda: prometheus.value(up) == WORKERS - 1), prometheus.text())


if __name__ == "__main__":
    processes.main()
