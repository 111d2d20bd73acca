"""Programs that end by an error, without a framework: everybody hears who it was. This file is also the program of the ranks.

COORDD_TEST_RUNS: how often each of them is run (3).
"""

import atexit
import json
import os
import re
import signal
import sys
import threading
import time

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path[:0] = [ROOT, os.path.join(ROOT, "client", "python")]

CULPRIT = 1
RUNS = int(os.environ.get("COORDD_TEST_RUNS", "3"))


class Session:
    """As programs have it around their training."""

    def __enter__(self):
        return self

    def __exit__(self, *_):
        from coordd import _basics
        _basics.shutdown()


def raise_error():
    raise ValueError("bad batch")


def exit_by_raising():
    raise SystemExit(3)


def exit_with_a_text():
    sys.exit("no such file: train.csv")


def exit_in_finally():
    from coordd import _basics
    try:
        sys.exit(3)
    finally:
        _basics.shutdown()


def shutdown_in_finally():
    from coordd import _basics
    try:
        raise ValueError("bad batch")
    finally:
        _basics.shutdown()


def shutdown_in_context():
    with Session():
        raise ValueError("bad batch")


def interrupt():
    signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored in what a shell has started in the background
    os.kill(os.getpid(), signal.SIGINT)
    time.sleep(60)


def live_on_behind_a_hook_of_the_program():
    """As rich's hook does, it calls no other one."""
    sys.excepthook = lambda kind, value, trace: print("a hook of the program", flush=True)
    live_on_in_a_thread()


def live_on_in_a_thread():
    threading.Thread(target=time.sleep, args=(30,)).start()
    raise ValueError("bad batch")


def raise_after_shutdown():
    from coordd import _basics
    _basics.shutdown()
    raise ValueError("bad batch")


def exit_after_shutdown():
    from coordd import _basics
    _basics.shutdown()
    sys.exit(3)


def shutdown_in_handler():
    from coordd import _basics
    try:
        raise ValueError("bad batch")
    except ValueError:
        _basics.shutdown()
    print("goes on", flush=True)
    time.sleep(6)
    sys.exit(0)


class Late:
    """One whose end comes after everything else."""

    def __init__(self):
        from coordd import _agreement
        self.call, self.write = _agreement.largest, os.write

    def __del__(self):
        try:
            self.call("late", 1)
        except RuntimeError as error:
            self.write(1, f"{error}\n".encode())


def start_a_child():
    import subprocess
    code = ("import sys; sys.path.insert(0, sys.argv[1]); from coordd import _basics\n"
            "try:\n    _basics.init()\nexcept Exception as error:\n    print('child:', error)")
    subprocess.run([sys.executable, "-c", code, os.path.join(ROOT, "client", "python")], check=True)


# What all ranks do together.
TOGETHER = {
    "end": lambda: None,
    "end_by_os_exit": lambda: None,
    "collective_in_del": lambda: setattr(sys.modules["__main__"], "late", Late()),
    "start_a_child": lambda: start_a_child() if os.environ["COORDD_RANK"] == "1" else None,
}

# What the culprit does: its status, what the others hear, and what coordrun says of it.
ENDS = {
    "raise": (raise_error, 1, r"failed: ValueError: bad batch \(ends_test\.py, line \d+, in raise_error\)", "ValueError: bad batch"),
    "sys_exit": (lambda: sys.exit(3), 3, "failed: it exits with status 3", "exited with status 3"),
    # Of which nothing is left where the process is waited for: the others' status is the run's.
    "exit_with_256": (lambda: sys.exit(256), 1, "failed: it exits with status 256, of which the system keeps 0",
                      "it exits with status 256, of which the system keeps 0; it exited with status 0"),
    "raise_system_exit": (exit_by_raising, 3, "failed: it exits with status 3", "exited with status 3"),
    "exit_with_a_text": (exit_with_a_text, 1, "failed: it exits with status 1", "no such file: train.csv"),
    "exit_in_finally": (exit_in_finally, 3, "failed: it exits with status 3", "exited with status 3"),
    "shutdown_in_finally": (shutdown_in_finally, 1, "failed: ValueError: bad batch", "ValueError: bad batch"),
    "shutdown_in_context": (shutdown_in_context, 1, "failed: ValueError: bad batch", "ValueError: bad batch"),
    "interrupt": (interrupt, 130, "failed: KeyboardInterrupt", "KeyboardInterrupt"),
    "thread": (live_on_in_a_thread, 1, "failed: ValueError: bad batch", "ValueError: bad batch"),
    "thread_behind_a_hook": (live_on_behind_a_hook_of_the_program, 1, "failed: ValueError: bad batch", "ValueError: bad batch"),
    "os_exit": (lambda: os._exit(3), 3, "was lost: ", "exited with status 3"),
    "abort": (os.abort, 134, "was lost: ", "killed by SIGABRT"),
    # The goodbye has been said: the others hear nothing else. But it was not they who failed.
    "raise_after_shutdown": (raise_after_shutdown, 1, "left", "exited with status 1"),
    "exit_after_shutdown": (exit_after_shutdown, 3, "left", "exited with status 3"),
}


def run_rank(end):
    if end == "end_by_os_exit":
        atexit.register(lambda: os._exit(0))  # which comes after what is registered later
    from coordd import _agreement, _basics
    from coordd.exceptions import HorovodInternalError
    _basics.init()
    if end in TOGETHER:
        _agreement.largest("begin", 1)
        TOGETHER[end]()
        _agreement.largest("end", 1)
        return
    for step in range(1000000):
        try:
            _agreement.largest("step", step)
        except HorovodInternalError as error:
            print("heard:", error, flush=True)
            raise
        if step == 20 and _basics.rank() == CULPRIT:
            (shutdown_in_handler if end == "handled" else ENDS[end][0])()


if len(sys.argv) == 3 and sys.argv[1] == "rank":
    run_rank(sys.argv[2])
    sys.exit(0)

from tests.support import processes  # noqa: E402
from tests.support.processes import clean_environment, program  # noqa: E402


class EndsTest(processes.TestCase):

    def environment(self):
        more = {"COORDD_LIBRARY": os.environ.get("COORDD_LIBRARY")}
        return clean_environment(XDG_RUNTIME_DIR=self.daemon.runtime, **more)

    def run_end(self, end, job, *arguments):
        return self.run_command(program("coordrun"), "-np", "4", "--coordinator", self.daemon.listen, "--job", job, *arguments, "--",
                                sys.executable, os.path.abspath(__file__), "rank", end, environment=self.environment())

    def check(self, end, attempt):
        _, expected, heard, told = ENDS[end]
        job = f"{end}-{attempt}"
        began = time.monotonic()
        status, text = self.run_end(end, job)
        self.assertEqual(status, expected, text)
        self.assertLess(time.monotonic() - began, 25, text)
        for rank in {0, 1, 2, 3} - {CULPRIT}:
            lines = [line for line in text.splitlines() if line.startswith(f"[{rank}] heard: ")]
            self.assertEqual(len(lines), 1, text)
            self.assertRegex(lines[0], rf"ended: rank {CULPRIT} \(host \S+, pid \d+\) .*{heard}", text)
        summary = next(line for line in text.splitlines() if line.startswith("coordrun: job "))
        self.assertRegex(summary, rf": rank {CULPRIT} \(pid \d+\) failed first: ", text)
        behind = text[text.index(summary):]
        self.assertIn(told, behind, text)
        status, events = self.run_command(program("coordctl"), "events", job, "--json", environment=self.environment())
        self.assertEqual(status, 0, events)
        ended = [event["text"] for event in json.loads(events)["events"] if event["kind"] == "generation_ended"]
        self.assertEqual(len(ended), 1, events)
        self.assertRegex(ended[0], rf"generation 1 ended: rank {CULPRIT} \(.*{heard}")

    def test_everybody_hears_who_it_was(self):
        self.daemon = self.coordd("--max-jobs", "1000")
        wanted = os.environ.get("COORDD_TEST_ENDS", "").split(",") if os.environ.get("COORDD_TEST_ENDS") else ENDS
        for end in wanted:
            with self.subTest(end):
                for attempt in range(RUNS):
                    self.check(end, attempt)
        self.assert_no_rank_is_left()

    def assert_no_rank_is_left(self):
        self.assertTrue(processes.wait_for(lambda: not [pid for pid in processes.processes_with("COORDD_TEST_ID", self.test_id)
                                                        if pid not in (os.getpid(), self.daemon.pid)], 10))


    def test_an_error_that_the_program_handles_ends_nothing(self):
        """Also where shutdown() is called while it does: that is a goodbye, once it is known that the program goes on."""
        self.daemon = self.coordd()
        status, text = self.run_end("handled", "handled")
        self.assertIn("[1] goes on\n", text)
        for rank in (0, 2, 3):
            self.assertRegex(text, rf"\[{rank}\] heard: .*ended: rank 1 \(.*\) left: shut down by its program")
        self.assertNotEqual(status, 0)  # the others have not handled theirs
        # It has not failed, but what the others failed for is said.
        self.assertRegex(text, r"coordrun: .*rank 1 \(pid \d+\) ended with status 0 while others waited for it in step, and rank \d ")
        self.assertNotRegex(text, r"rank 1 \(pid \d+\) (failed|exited|was)")

    def test_all_ranks_may_end_together_however_long_their_exit_takes(self):
        self.daemon = self.coordd()
        for end in ("end", "end_by_os_exit"):
            status, text = self.run_end(end, end)
            self.assertEqual(status, 0, text)
            self.assertIn("all workers exited with status 0", text)

    def test_after_the_exit_of_the_interpreter_a_collective_says_so(self):
        self.daemon = self.coordd()
        status, text = self.run_end("collective_in_del", "collective-in-del")
        self.assertEqual(status, 0, text)
        self.assertEqual(text.count("coordd was shut down at the exit of the interpreter"), 4, text)

    def test_a_child_that_joins_is_told_that_it_is_one(self):
        self.daemon = self.coordd()
        status, text = self.run_end("start_a_child", "start-a-child")
        self.assertEqual(status, 0, text)
        self.assertRegex(text, r"\[1\] child: coordd refused this worker: the job is full: .* has the variables of rank 1 \(.*: is it a child of that worker\?")


CASES = """
import code, sys, threading, time
sys.path.insert(0, sys.argv[2])
from coordd import _ends
_ends.tell_of_uncaught_errors(lambda what: print("told:", what))
def fail():
    raise ValueError("bad" + chr(10) + "batch")
def handles():
    try:
        fail()
    except ValueError:
        sys.excepthook(*sys.exc_info())
def chains():
    before = sys.excepthook
    sys.excepthook = lambda *error: (print("another hook"), before(*error))
    fail()
def replaces():
    threading.Thread(target=time.sleep, args=(1,)).start()
    sys.excepthook = lambda *error: print("another hook", flush=True)
    fail()
def replaces_and_is_a_prompt():
    sys.excepthook = lambda *error: print("another hook")
    code.InteractiveInterpreter().runsource("1 / 0")
def prompts():
    code.InteractiveInterpreter().runsource("1 / 0")
def exits():
    sys.exit(3)
def misuses():
    _ends.describe(ValueError, ValueError("bad"), "no traceback")
globals()[sys.argv[1]]()
"""


class UncaughtErrorsTest(processes.TestCase):

    def said(self, case, *options):
        environment = clean_environment(COORDD_LIBRARY=os.environ.get("COORDD_LIBRARY"))
        command = [sys.executable, *options, "-c", CASES, case, os.path.join(ROOT, "client", "python")]
        return [line for line in self.run_command(*command, environment=environment)[1].splitlines()
                if line.startswith(("told", "another"))]

    def test_only_what_ends_the_program_is_told(self):
        told = "told: ValueError: bad batch (<string>, line 7, in fail)"
        self.assertEqual(self.said("fail"), [told])
        self.assertEqual(self.said("chains"), ["another hook", told])
        # Before the interpreter waits for the thread: coordrun ends this rank no sooner than the others are told.
        self.assertEqual(self.said("replaces"), ["another hook", told])
        self.assertEqual(self.said("replaces", "-i"), ["another hook"])
        self.assertEqual(self.said("replaces_and_is_a_prompt"), ["another hook"])
        for case in ("handles", "prompts", "exits"):
            self.assertEqual(self.said(case), [], case)
        self.assertEqual(self.said("fail", "-i"), [])
        # An error of the package is told with the program's line that has called it.
        self.assertRegex(self.said("misuses")[0], r"^told: AttributeError: .* \(<string>, line 29, in misuses\)$")


if __name__ == "__main__":
    processes.main()
