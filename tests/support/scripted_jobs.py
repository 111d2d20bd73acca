"""What several tests do with a job of ScriptedWorkers (tests/support/processes.py)."""

import signal
import time


def leave(test, workers):
    for worker in workers:
        test.assertEqual(worker.ask("leave"), "ok")
        worker.tell("exit")
        worker.wait()


def allreduce(test, workers, tensor, count, expected):
    """Each gives ones; `expected` is the answer of all."""
    for worker in workers:
        test.assertEqual(worker.ask(f"submit {tensor} float32 {count} 1"), "ok")
        worker.tell(f"wait {tensor}")
    for worker in workers:
        test.assertEqual(worker.answer(), expected)


def kill_in_an_allreduce(test, workers, victim, instant_s):
    """Ends `workers[victim]` so long after all have submitted 20 million numbers, or, with None, while it has not; the others end."""
    others = [worker for worker in workers if worker is not workers[victim]]
    for worker in others if instant_s is None else workers:
        test.assertEqual(worker.ask("submit big float32 20000000 1"), "ok")
        worker.tell("wait big")
    time.sleep(instant_s or 0.0)
    workers[victim].signal(signal.SIGKILL)
    size = len(workers)
    for worker in others:
        text = worker.answer()
        # Whoever had finished has the right result; everybody else an error that names the culprit.
        test.assertTrue(text == f"ok {size} {size}" or (text.startswith("ABORTED ") and f"rank {victim}" in text), text)
        leave(test, [worker])
