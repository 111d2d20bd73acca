"""A real Prometheus with the scrape configuration that we ship follows workers that come and go."""

import json
import os
import shutil
import subprocess
import unittest
import urllib.error
import urllib.parse
import urllib.request

from tests.launchers.slurm_cluster import free_ports
from tests.support import processes
from tests.support.processes import Process, wait_for

CONFIG = os.path.join(processes.ROOT, "deploy", "prometheus", "prometheus.yml")
ELEMENTS, STEPS, WORKERS = 25000, 10, 4


@unittest.skipUnless(shutil.which("prometheus"), "no prometheus here: tools/install-deps --test")
class PrometheusTest(processes.TestCase):
    def prometheus(self, coordd):
        """Our configuration with this coordd's port and shorter intervals, on a free port."""
        with open(CONFIG, encoding="utf-8") as shipped:
            text = shipped.read().replace("127.0.0.1:29651", coordd.http).replace("5s", "1s")
        self.assertIn(coordd.http, text)
        path = os.path.join(self.folder, "prometheus.yml")
        with open(path, "w", encoding="utf-8") as out:
            out.write(text)
        # Not one of those that other tests are given for port 0.
        self.address = f"127.0.0.1:{free_ports(1)}"
        return self.start(Process(["prometheus", f"--config.file={path}", f"--storage.tsdb.path={self.folder}/data",
                                   f"--web.listen-address={self.address}", "--log.level=warn"]))

    def query(self, expression):
        """The value of a scalar expression; None while there is none."""
        url = f"http://{self.address}/api/v1/query?" + urllib.parse.urlencode({"query": expression})
        try:
            with urllib.request.urlopen(url, timeout=10) as answer:
                result = json.load(answer)["data"]["result"]
        except (urllib.error.URLError, ConnectionError):
            return None
        return float(result[0]["value"][1]) if result else None

    def test_promtool_accepts_the_configuration(self):
        if not shutil.which("promtool"):
            self.skipTest("no promtool here")
        run = subprocess.run(["promtool", "check", "config", CONFIG], capture_output=True, text=True)
        self.assertEqual(run.returncode, 0, run.stdout + run.stderr)

    def test_finds_four_workers_sums_their_bytes_and_finds_three_after_one_has_left(self):
        coordd = self.coordd()
        prometheus = self.prometheus(coordd)
        workers = self.workers(coordd, WORKERS, job="run7", COORDD_METRICS="127.0.0.1:0")
        up = 'count(up{job="coordd-workers"} == 1)'
        self.assertTrue(wait_for(lambda: self.query(up) == WORKERS), prometheus.text())
        self.assertTrue(wait_for(lambda: self.query('up{job="coordd"}') == 1), prometheus.text())

        for step in range(STEPS):
            for worker in workers:
                self.assertEqual(worker.ask(f"submit step{step} float32 {ELEMENTS} 1"), "ok")
            for worker in workers:
                self.assertEqual(worker.ask(f"wait step{step}"), f"ok {WORKERS} {WORKERS}")
        total = 'sum(coordd_worker_payload_bytes_total{kind="allreduce"})'
        expected = WORKERS * STEPS * ELEMENTS * 4
        self.assertTrue(wait_for(lambda: self.query(total) == expected),
                        f"{total} is {self.query(total)}, expected {expected}")

        self.assertEqual(workers[3].ask("leave"), "ok")
        workers[3].end()
        self.assertTrue(wait_for(lambda: self.query('count(up{job="coordd-workers"})') == WORKERS - 1),
                        coordd.get("/v1/targets"))
        self.assertTrue(wait_for(lambda: self.query(up) == WORKERS - 1), prometheus.text())


if __name__ == "__main__":
    processes.main()
