"""The alert rules and the dashboard that we ship, and the queries in docs/METRICS.md: a worker that is killed and one that stalls wake
somebody, and every query is one that Prometheus executes on what coordd and its workers tell."""

import os
import re
import signal
import subprocess
import unittest

from tests.support import processes
from tests.support.processes import wait_for
from tests.support.prometheus import FOLDER, IS_HERE, RULES, Prometheus, may_be_empty, queries_of_dashboard, text_of

DOCS = os.path.join(processes.ROOT, "docs")
CASES = os.path.join(os.path.dirname(os.path.abspath(__file__)), "coordd_alerts_test.yml")
STEPS = 3


def names_of_alerts(text):
    return re.findall(r"- alert: (\w+)", text)


def queries_of_document():
    """Those of the last table of METRICS.md: what stands in backquotes behind the question."""
    table = text_of(os.path.join(DOCS, "METRICS.md")).partition("## Questions and the queries")[2]
    rows = [row for row in table.splitlines() if row.startswith("| ") and not row.startswith("| question")]
    return [query for row in rows for query in re.findall(r"`([^`]+)`", row[2:].partition(" | ")[2])]


class FilesTest(unittest.TestCase):
    def test_the_dashboard_is_what_its_script_writes(self):
        run = subprocess.run([os.path.join(FOLDER, "make_dashboard"), "--check"], capture_output=True, text=True)
        self.assertEqual(run.returncode, 0, run.stderr)

    def test_the_page_says_what_to_do_about_each_alert(self):
        alerts = names_of_alerts(text_of(RULES))
        self.assertEqual(re.findall(r"^### (\w+)$", text_of(os.path.join(DOCS, "ALERTS.md")), re.MULTILINE), alerts)
        self.assertEqual(re.findall(r"docs/ALERTS.md#(\w+)", text_of(RULES)), [alert.lower() for alert in alerts])

    def test_each_alert_has_a_case(self):
        self.assertEqual(set(names_of_alerts(text_of(RULES))), set(re.findall(r"alertname: (\w+)", text_of(CASES))))


@unittest.skipUnless(IS_HERE, "no prometheus here: tools/install-deps --test")
class AlertsTest(processes.TestCase):
    def test_fire_on_what_they_are_for_and_on_nothing_else(self):
        run = subprocess.run(["promtool", "test", "rules", CASES], capture_output=True, text=True)
        self.assertEqual(run.returncode, 0, run.stdout + run.stderr)

    def test_a_killed_and_a_stalled_rank_are_alerts_and_every_query_is_answered(self):
        coordd = self.coordd("--stall-warning", "1s")
        prometheus = self.start(Prometheus(coordd, self.folder, hold="1s"))
        trains = self.workers(coordd, 3, job="run7", min_workers=2, COORDD_METRICS="127.0.0.1:0", COORDD_ON_FAILURE="raise")
        stalls = self.workers(coordd, 2, job="eval", COORDD_METRICS="127.0.0.1:0")
        for step in range(STEPS):
            for worker in trains:
                self.assertEqual(worker.ask(f"submit step{step} float32 100 1"), "ok")
            for worker in trains:
                self.assertEqual(worker.ask(f"wait step{step}"), "ok 3 3")
        # The loss is an increase only where Prometheus knows of none before.
        lost = 'coordd_departures_total{job_name="run7",cause="connection_lost"}'
        self.assertTrue(wait_for(lambda: prometheus.value(lost) == 0), prometheus.text())
        self.assertTrue(wait_for(lambda: prometheus.value('count(up{job="coordd-workers"} == 1)') == 5), prometheus.text())
        self.assertEqual(prometheus.firing("CoorddWorkersLost"), [])

        trains[2].signal(signal.SIGKILL)
        self.assertEqual(stalls[0].ask("submit grad float32 10 1"), "ok")
        self.assertTrue(wait_for(lambda: prometheus.firing("CoorddWorkersLost")), coordd.get("/metrics"))
        self.assertTrue(wait_for(lambda: prometheus.firing("CoorddJobStalled")), coordd.get("/metrics"))
        [killed], [stalled] = prometheus.firing("CoorddWorkersLost"), prometheus.firing("CoorddJobStalled")
        self.assertEqual((killed["labels"]["job_name"], killed["labels"]["cause"]), ("run7", "connection_lost"))
        self.assertIn("has lost 1 worker in", killed["annotations"]["summary"])
        self.assertEqual(stalled["labels"]["job_name"], "eval")
        self.assertIn("rank 1 first", stalled["annotations"]["summary"])
        for quiet in ("CoorddDown", "CoorddStateNotWritable", "CoorddJoinsRefused", "CoorddProtocolErrors", "CoorddFull"):
            self.assertEqual(prometheus.firing(quiet), [])

        queries = queries_of_dashboard() + queries_of_document()
        self.assertGreater(len(queries), 40)
        for query in queries:
            with self.subTest(query=query):
                if may_be_empty(query):
                    prometheus.series(query)  # ValueError: Prometheus does not understand it
                else:
                    self.assertTrue(prometheus.answered(query), "nothing")
        # It is over as soon as the rank comes.
        self.assertEqual(stalls[1].ask("submit grad float32 10 1"), "ok")
        self.assertTrue(wait_for(lambda: not prometheus.firing("CoorddJobStalled")), coordd.get("/metrics"))


if __name__ == "__main__":
    processes.main()
