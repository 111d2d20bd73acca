"""A real Alertmanager with the file of deploy/prometheus, and a receiver of its messages, for tests."""

import http.server
import json
import os
import re
import shutil
import threading
import urllib.error
import urllib.request

from tests.launchers.slurm_cluster import free_ports
from tests.support import prometheus
from tests.support.processes import Process, wait_for

# Debian's name, and everybody else's.
PROGRAM = shutil.which("prometheus-alertmanager") or shutil.which("alertmanager")
AMTOOL = shutil.which("amtool")
CONFIG = os.path.join(prometheus.FOLDER, "alertmanager.yml")
IS_HERE = bool(PROGRAM and AMTOOL)
RECEIVER = "http://127.0.0.1:9095"  # of the example


class Receiver:
    """A web server that keeps what is sent to it."""

    def __init__(self):
        self.messages = []  # (path, what it says), in order
        messages = self.messages

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self):  # noqa: N802: the name that http.server calls
                body = self.rfile.read(int(self.headers["Content-Length"]))
                messages.append((self.path, json.loads(body)))
                self.send_response(200)
                self.end_headers()

            def log_message(self, *_):
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = "http://127.0.0.1:%d" % self.server.server_address[1]
        self.thread = threading.Thread(target=self.server.serve_forever, daemon=True)
        self.thread.start()

    def alerts(self, path, name):
        """The alerts of this name that came to `path`, as often as they came."""
        return [alert for where, message in list(self.messages) if where == path for alert in message["alerts"]
                if alert["labels"]["alertname"] == name]

    def end(self):
        self.server.shutdown()
        self.server.server_close()
        self.thread.join()


class Alertmanager(Process):
    """It sends to `receiver` what the example sends to its webhooks, without waiting for more of the kind; what comes to a message that
    was sent already after `interval`."""

    def __init__(self, receiver, folder, shipped=CONFIG, interval="1s"):
        text = prometheus.text_of(shipped)
        assert text.count(RECEIVER) == 3, f"{shipped} has not three webhooks at {RECEIVER}"
        text = re.sub(r"group_wait: \w+", "group_wait: 1s", text.replace(RECEIVER, receiver.url))
        text = re.sub(r"group_interval: \w+", f"group_interval: {interval}", text)
        with open(os.path.join(folder, "alertmanager.yml"), "w", encoding="utf-8") as out:
            out.write(text)
        self.address = f"127.0.0.1:{free_ports(1)}"
        # Without an address for a cluster it has none.
        super().__init__([PROGRAM, f"--config.file={folder}/alertmanager.yml", f"--storage.path={folder}/alertmanager",
                          f"--web.listen-address={self.address}", "--cluster.listen-address=", "--log.level=warn"])
        # The port would look free to who takes the next one.
        assert wait_for(self.is_ready), self.text()

    def send(self, labels):
        """An alert with these labels begins to fire, as if Prometheus said so."""
        request = urllib.request.Request(f"http://{self.address}/api/v2/alerts", json.dumps([{"labels": labels}]).encode(),
                                         {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=10):
            pass

    def is_ready(self):
        try:
            with urllib.request.urlopen(f"http://{self.address}/-/ready", timeout=10) as answer:
                return answer.status == 200
        except (urllib.error.URLError, ConnectionError):
            return False
