"""Row 18: messages of an older generation, that are said again.

Injected: a proxy records everything that a worker of generation 1 says to coordd; when the others are in generation 2 without it,
all of it is sent once more over a connection of its own: at once, in pieces, and a third time when the job has changed again.
Observed: whoever says it is expelled each time, since no such generation exists for it, and becomes nobody's companion; the
members go on, every result is exact; the next generation has a worker that lives, and waits for it.
"""

import os
import socket
import sys
import threading
import time

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))

from tests.chaos import elastic
from tests.support import processes
from tests.support.processes import ScriptedWorker


class Recorder:
    """A proxy of one connection."""

    def __init__(self, target):
        self.target = target
        self.said = bytearray()
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.listen = f"127.0.0.1:{self.listener.getsockname()[1]}"
        threading.Thread(target=self._serve, daemon=True).start()

    def connect(self):
        host, port = self.target.rsplit(":", 1)
        return socket.create_connection((host, int(port)))

    def _serve(self):
        while True:
            try:
                client, _ = self.listener.accept()
            except OSError:
                return
            server = self.connect()
            self.said.clear()  # the last connection counts
            threading.Thread(target=self._pump, args=(client, server, self.said), daemon=True).start()
            threading.Thread(target=self._pump, args=(server, client, None), daemon=True).start()

    @staticmethod
    def _pump(source, target, record):
        try:
            while data := source.recv(65536):
                if record is not None:
                    record += data
                target.sendall(data)
            target.shutdown(socket.SHUT_WR)
        except OSError:
            target.close()

    def replay(self, piece):
        """Says it all again, `piece` bytes at a time; how much coordd answered."""
        answered = 0
        with self.connect() as again:
            again.settimeout(0.5)
            said = bytes(self.said)
            try:
                for at in range(0, len(said), piece):
                    again.sendall(said[at:at + piece])
                while data := again.recv(65536):
                    answered += len(data)
            except OSError:
                pass  # it has nothing more to say, or has closed
        return answered

    def close(self):
        self.listener.close()


class ReplayTest(elastic.TestCase):
    def test_what_was_said_before_changes_nothing(self):
        coordd = self.coordd("--settling-window", "10m")
        proxy = Recorder(coordd.listen)
        self.addCleanup(proxy.close)
        others = [self.worker(coordd, 3) for _ in range(2)]
        recorded = self.start(ScriptedWorker(proxy.listen, COORDD_JOB_ID="test", COORDD_MIN_WORKERS=2, COORDD_MAX_WORKERS=3,
                                             COORDD_ON_FAILURE="raise"))
        workers = self.begin([*others, recorded])
        self.kill(recorded)
        rest = [worker for worker in workers if worker is not recorded]
        for worker in rest:
            self.assertEqual(self.changes(worker)[1][2:], ("2", "2"))
        self.assertGreater(len(proxy.said), 500)
        for attempt, piece in enumerate((1 << 20, 97)):
            for worker in rest:
                worker.tell(f"train g{attempt} 1000 500")
            self.assertGreater(proxy.replay(piece), 0)
            for worker in rest:
                self.assertEqual(self.changes(worker)[1], ("ok", "500", "2", "2"))
            self.members(coordd, rest, generation=2)
        self.kill(rest.pop())
        self.assertEqual(rest[0].ask("barrier")[:18], "GENERATION_CHANGED")
        proxy.replay(1 << 20)
        # Nobody may have become its companion: it waits for one that lives.
        fresh = self.worker(coordd, 3)
        rest[0].tell("next")
        self.assertEqual(rest[0].answer(), "ok 3 0 2")
        rest.append(fresh.joined())
        self.assertEqual(coordd.text().count("was expelled, it broke the protocol"), 3, coordd.text())
        for worker in rest:
            worker.tell("train last 1000 20")
        for worker in rest:
            self.assertEqual(self.changes(worker)[1], ("ok", "20", "3", "2"))
        self.members(coordd, rest, generation=3)

    def members(self, coordd, workers, generation):
        job = coordd.json("/v1/jobs")["jobs"][0]
        members = {member["pid"] for member in job["workers"] if member.get("rank", -1) >= 0}
        self.assertEqual((job["generation"], members), (generation, {worker.pid for worker in workers}))


if __name__ == "__main__":
    processes.main()
