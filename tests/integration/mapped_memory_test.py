"""Collectives on memory that the ranks of a node have mapped (COORDD_TRANSPORT=mapped), between real processes."""

import signal
import time

from tests.support import processes
from tests.support.processes import program


class MappedMemoryTest(processes.TestCase):
    def test_every_operation_dtype_and_op(self):
        status, text = self.run_command(program("coordrun"), "-np", "3", "--", program("coordd-worker"), "selftest",
                                        environment=processes.clean_environment(COORDD_TRANSPORT="mapped"), seconds=170)
        self.assertEqual(status, 0, text)
        self.assert_nothing_left()

    def test_a_rank_that_is_killed_at_any_instant_hangs_nobody_and_leaves_nothing(self):
        daemon = self.coordd()
        # Before it takes part, while the others wait for it, and somewhere in between.
        for number, instant_s in enumerate((None, 0.0, 0.003, 0.02)):
            workers = self.workers(daemon, 3, job=f"kill-{number}", COORDD_TRANSPORT="mapped")
            victim, others = workers[1], (workers[0], workers[2])
            for worker in others if instant_s is None else workers:
                self.assertEqual(worker.ask("submit big float32 20000000 1"), "ok")
                worker.tell("wait big")
            time.sleep(instant_s or 0.0)
            victim.signal(signal.SIGKILL)
            for worker in others:
                text = worker.answer()
                # Whoever had finished has the right result; everybody else an error that names the culprit.
                self.assertTrue(text == "ok 3 3" or (text.startswith("ABORTED ") and "rank 1" in text), text)
                self.assertEqual(worker.ask("leave"), "ok")
                worker.tell("exit")
                worker.wait()
        daemon.end()
        self.assert_nothing_left()


if __name__ == "__main__":
    processes.main()
