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
from tests.support.processes import Process

FOLDER = os.path.join(processes.ROOT, "deploy", "prometheus")
CONFIG = os.path.join(FOLDER, "prometheus.yml")
RULES = os.path.join(FOLDER, "coordd-alerts.yml")
IS_HERE = shutil.which("prometheus") is not None


class Prometheus(Process):
    """Of one coordd. It scrapes every second, unless `as_shipped`. `folder`: where its files go. `hold`: for how long an expression
    is true before its alert fires; None: as the rules say."""

    def __init__(self, coordd, folder, hold=None, as_shipped=False):
        with open(CONFIG, encoding="utf-8") as shipped:
            text = shipped.read()
        for theirs in ("127.0.0.1:29651", "scrape_interval: 15s", "coordd-alerts.yml"):
            assert theirs in text, f"{CONFIG} has no {theirs}"
        text = text.replace("127.0.0.1:29651", coordd.http)
        if not as_shipped:
            text = re.sub(r"\b(5|15)s\b", "1s", text)
        with open(os.path.join(folder, "prometheus.yml"), "w", encoding="utf-8") as out:
            out.write(text)
        with open(RULES, encoding="utf-8") as shipped:
            rules = shipped.read()
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

    def value(self, expression):
        """The value of the first series; None while there is none."""
        found = self.series(expression)
        return float(found[0]["value"][1]) if found else None

    def firing(self, name):
        """The alerts of this name that fire."""
        data = self._get("/api/v1/alerts")
        alerts = [] if data is None else data["alerts"]
        return [alert for alert in alerts if alert["labels"]["alertname"] == name and alert["state"] == "firing"]
