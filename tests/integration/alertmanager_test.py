"""The example for Alertmanager: who is told of what, and that a killed worker's alert comes to them, and its end too."""

import re
import signal
import subprocess
import unittest

from tests.support import alertmanager, processes, prometheus
from tests.support.processes import wait_for

RECEIVERS = {"critical": "wakes", "warning": "same-day", "info": "notes"}


@unittest.skipUnless(alertmanager.IS_HERE and prometheus.IS_HERE, "no Alertmanager or Prometheus here: tools/install-deps --test")
class AlertmanagerTest(processes.TestCase):
    def amtool(self, *arguments):
        run = subprocess.run([alertmanager.AMTOOL, *arguments], capture_output=True, text=True, check=False)
        self.assertEqual(run.returncode, 0, run.stdout + run.stderr)
        return run.stdout.strip()

    def test_each_severity_of_the_rules_has_a_receiver_of_its_own(self):
        self.amtool("check-config", alertmanager.CONFIG)
        severities = set(re.findall(r"severity: (\w+)", prometheus.text_of(prometheus.RULES)))
        self.assertEqual(severities, set(RECEIVERS))
        for severity, receiver in RECEIVERS.items():
            found = self.amtool("config", "routes", "test", "--config.file", alertmanager.CONFIG, f"severity={severity}")
            self.assertEqual(found, receiver)

    def test_a_second_critical_alert_does_not_wait_for_the_interval_of_the_first(self):
        receiver = self.start(alertmanager.Receiver())
        manager = self.start(alertmanager.Alertmanager(receiver, self.folder, interval="10m"))
        for name in ("CoorddStateNotWritable", "CoorddDown"):
            manager.send({"alertname": name, "severity": "critical", "instance": "launch:29651", "job": "coordd"})
            self.assertTrue(wait_for(lambda: receiver.alerts("/wakes", name)), manager.text())

    def test_a_killed_worker_is_told_to_who_reads_warnings_and_its_end_too(self):
        coordd = self.coordd("--stall-warning", "1s")
        receiver = self.start(alertmanager.Receiver())
        manager = self.start(alertmanager.Alertmanager(receiver, self.folder))
        server = self.start(prometheus.Prometheus(coordd, self.folder, hold="1s", alertmanager=manager.address))
        trains = self.workers(coordd, 3, job="run7", min_workers=2, COORDD_ON_FAILURE="raise")
        stalls = self.workers(coordd, 2, job="eval")
        self.assertTrue(wait_for(lambda: server.value('coordd_departures_total{job_name="run7",cause="connection_lost"}') == 0),
                        server.text())

        trains[2].signal(signal.SIGKILL)
        self.assertTrue(wait_for(lambda: receiver.alerts("/same-day", "CoorddWorkersLost")), manager.text() + server.text())
        [killed, *_] = receiver.alerts("/same-day", "CoorddWorkersLost")
        self.assertEqual((killed["labels"]["job_name"], killed["status"]), ("run7", "firing"))
        self.assertIn("has lost 1 worker in", killed["annotations"]["summary"])

        self.assertEqual(stalls[0].ask("submit grad float32 10 1"), "ok")
        self.assertTrue(wait_for(lambda: receiver.alerts("/same-day", "CoorddJobStalled")), manager.text() + server.text())
        self.assertEqual(stalls[1].ask("submit grad float32 10 1"), "ok")
        over = lambda: [alert for alert in receiver.alerts("/same-day", "CoorddJobStalled") if alert["status"] == "resolved"]
        self.assertTrue(wait_for(over), receiver.messages)

        coordd.signal(signal.SIGKILL)
        self.assertTrue(wait_for(lambda: receiver.alerts("/wakes", "CoorddDown")), manager.text() + server.text())
        # Nobody is woken for a worker.
        self.assertEqual({alert["labels"]["severity"] for path, message in receiver.messages if path == "/wakes"
                          for alert in message["alerts"]}, {"critical"})


if __name__ == "__main__":
    processes.main()
