"""A real Prometheus with the files of deploy/prometheus, for tests."""

import json
import os
import re
import shutil
import urllib.error
import urllib.parse
import urllib.request

from tests.launchers.slurm_cluster import free_ports
from tests.support import processes
from tests.support.processes import Process, wait_for

FOLDER = os.path.join(processes.ROOT, "deploy", "prometheus")
CONFIG = os.path.join(FOLDER, "prometheus.yml")
RULES = os.path.join(FOLDER, "coordd-alerts.yml")
IS_HERE = shutil.which("prometheus") is not None


def text_of(path):
    with open(path, encoding="utf-8") as file:
        return file.read()


def queries_of_dashboard(folder=FOLDER):
    """Of all jobs."""
    dashboard = json.loads(text_of(os.path.join(folder, "coordd-dashboard.json")))
    return [target["expr"].replace("$job_name", ".*") for panel in dashboard["panels"] for target in panel.get("targets", [])]


def may_be_empty(query):
    """What compares, and what only a GPU, a certificate or an alert has."""
    return " > 0" in query or "gpu_utilization" in query or "certificate_end" in query or query.startswith("ALERTS")


class Prometheus(Process):
    """Of one coordd. It scrapes every second, unless `as_shipped`. `folder`: where its files go. `hold`: for how long an expression
    is true before its alert fires; None: as the rules say. `shipped`: where the two files are. `alertmanager`: where it listens; alerts
    are sent nowhere without."""

    def __init__(self, coordd, folder, hold=None, as_shipped=False, shipped=FOLDER, alertmanager=None):
        text = text_of(os.path.join(shipped, "prometheus.yml"))
        for theirs in ("127.0.0.1:29651", "scrape_interval: 15s", "coordd-alerts.yml", "127.0.0.1:9093"):
            assert theirs in text, f"prometheus.yml of {shipped} has no {theirs}"
        text = text.replace("127.0.0.1:29651", coordd.http)
        # Port 9093 of this machine may be another test's, or anybody's.
        text = text.replace('"127.0.0.1:9093"', f'"{alertmanager}"' if alertmanager else "")
        if not as_shipped:
            text = re.sub(r"\b(5|15)s\b", "1s", text)
        with open(os.path.join(folder, "prometheus.yml"), "w", encoding="utf-8") as out:
            out.write(text)
        rules = text_of(os.path.join(shipped, "coordd-alerts.yml"))
        with open(os.path.join(folder, "coordd-alerts.yml"), "w", encoding="utf-8") as out:
            out.write(rules if hold is None else re.sub(r"for: \w+", f"for: {hold}", rules))
        # Not one of those that other tests are given for port 0.
        self.address = f"127.0.0.1:{free_ports(1)}"
        super().__init__(["prometheus", f"--config.file={folder}/prometheus.yml", f"--storage.tsdb.path={folder}/data",
                          f"--web.listen-address={self.address}", "--log.level=warn"])

    def _get(self, path, **parameters):
        """The data of an answer; None while there is none. ValueError: what was asked is wrong, as Prometheus says it."""
        try:
            with urllib.request.urlopen(f"http://{self.address}{path}?" + urllib.parse.urlencode(parameters), timeout=10) as answer:
                return json.load(answer)["data"]
        except urllib.error.HTTPError as error:
            if error.code != 400:
                return None
            raise ValueError(error.read().decode()) from None
        except (urllib.error.URLError, ConnectionError):
            return None

    def series(self, expression):
        """What a query answers: a list of {"metric": labels, "value": [time, text]}."""
        data = self._get("/api/v1/query", query=expression)
        return [] if data is None else data["result"]

    def answered(self, expression):
        """What a query answers, as soon as there is something. A rate has no value before two scrapes of what it is of, and the ranks of
        a new generation are new targets."""
        found = []
        wait_for(lambda: found.extend(self.series(expression)) or found)
        return found

    def value(self, expression):
        """The value of the first series; None while there is none."""
        found = self.series(expression)
        return float(found[0]["value"][1]) if found else None

    def firing(self, name):
        """The alerts of this name that fire."""
        data = self._get("/api/v1/alerts")
        alerts = [] if data is None else data["alerts"]
        return [alert for alert in alerts if alert["labels"]["alertname"] == name and alert["state"] == "firing"]
