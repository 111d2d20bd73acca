"""coordd that dies while members write into its store: what was answered is there when it is back, and what was deleted is not."""

import os
import signal

from tests.support import processes
from tests.support.processes import wait_for

CLIENTS = 4
DEATHS = 4


class StoreRestartTest(processes.TestCase):
    def setUp(self):
        super().setUp()
        self.state = ("--store", f"sqlite:{os.path.join(self.folder, 'state')}")
        self.now = self.coordd(*self.state)
        self.members = self.workers(self.now, CLIENTS)

    def restart(self):
        """Kills coordd, and waits until all are back at the next one."""
        self.now.signal(signal.SIGKILL)
        self.now.wait()
        self.now = self.coordd(*self.state, listen=self.now.listen)
        self.assertTrue(wait_for(lambda: "generation 1 goes on: all" in self.now.text()), self.now.text())

    def tell(self, rank, command):
        self.assertEqual(self.members[rank].ask(command), "ok")

    def values(self, key):
        return [member.ask(f"look {key}") for member in self.members]

    def test_every_add_that_was_answered_counts(self):
        stop = os.path.join(self.folder, "stop")
        for member in self.members:
            member.tell(f"count counter {stop}")
        for member in self.members:
            self.assertEqual(member.answer(), "counting")
        for _ in range(DEATHS):
            self.restart()
            # Somebody counts at this coordd before it dies.
            self.assertTrue(wait_for(self.has_counted), self.now.text())
        with open(stop, "w", encoding="ascii"):
            pass
        counted, unknown, why = 0, 0, set()
        for member in self.members:
            answer = member.answer()
            self.assertRegex(answer, r"^ok \d+ \d+")
            counted += int(answer.split()[1])
            unknown += int(answer.split()[2])
            why.add(" ".join(answer.split()[3:]))
        total = int(self.members[0].ask("look counter").split()[1])
        self.assertGreaterEqual(total, counted, f"{unknown} unknown: {why}")
        self.assertLessEqual(total, counted + unknown)
        # What was under way, and what came before the end of its connection was noticed.
        self.assertLessEqual(unknown, 4 * CLIENTS * DEATHS, why)

    def has_counted(self):
        """The coordd that runs now."""
        return (self.now.metric("coordd_store_calls_total", method="add", code="OK") or 0) > 0

    def test_the_last_writer_of_a_key_has_the_last_word(self):
        self.tell(0, "put both first")
        self.tell(1, "put both second")
        self.tell(3, "put other first")
        self.tell(2, "put other second")
        self.restart()
        self.assertEqual(self.values("both"), ["ok second"] * CLIENTS)
        self.assertEqual(self.values("other"), ["ok second"] * CLIENTS)
        self.restart()
        self.assertEqual(self.values("both"), ["ok second"] * CLIENTS)

    def test_what_another_has_deleted_stays_deleted(self):
        self.tell(0, "put gone value")
        self.tell(3, "drop gone")
        self.restart()
        self.assertEqual(self.values("gone"), ["ok"] * CLIENTS)
        self.tell(1, "put gone again")
        self.restart()
        self.assertEqual(self.values("gone"), ["ok again"] * CLIENTS)

    def test_what_was_appended_is_there(self):
        self.tell(2, "append log a")
        self.tell(0, "append log b")
        self.tell(3, "append log c")
        self.restart()
        self.assertEqual(self.values("log"), ["ok abc"] * CLIENTS)


if __name__ == "__main__":
    processes.main()
