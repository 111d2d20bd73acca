"""Row 4: a program that is stuck while its heartbeats go on.

Injected: one of three Python ranks sleeps, or is in a call of C that never returns and keeps the interpreter's lock. Observed: the
warning names the rank; events, log and status say at which line of its program it is, innermost call first; so does the error that
the others get in the end. With COORDD_STACK_SIGNAL=0, or a handler of the program's own on that signal, all is as before, and the
rank is alive. This file is also the program of the ranks.
"""

import ctypes
import os
import signal
import sys
import time
import unittest

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, ROOT)
sys.path.insert(0, os.path.join(ROOT, "client", "python"))

from tests.support import processes
from tests.support.processes import program

STUCK, SIZE = 1, 3


def stay_in_sleep():
    while True:
        time.sleep(1000)


def stay_in_c():
    never, _ = os.pipe()
    ctypes.PyDLL(None).read(never, ctypes.create_string_buffer(1), 1)  # PyDLL: with the interpreter's lock


def run_rank(where, handled):
    from coordd import _agreement, _basics
    from coordd.exceptions import HorovodInternalError
    if handled:
        signal.signal(signal.SIGRTMAX - 4, lambda *_: os._exit(9))
    _basics.init()
    if _basics.rank() == STUCK:
        {"sleep": stay_in_sleep, "c": stay_in_c}[where]()
    try:
        _agreement.largest("late", 1)
    except HorovodInternalError as error:
        print("error:", error, flush=True)
    while True:
        time.sleep(1000)


@unittest.skipIf(processes.SANITIZED, "Python is not built with it")
class StuckTest(processes.TestCase):
    def stuck(self, where, handled="", **variables):
        coordd = self.coordd("--stall-warning", "1s", "--stall-abort", "6s", "--heartbeat-interval", "300ms", "--lease", "10s")
        environment = processes.clean_environment(
            COORDD_ADDR=coordd.listen, COORDD_SIZE=SIZE, COORDD_LIBRARY=os.path.join(processes.BUILD, "lib", "libcoordd.so.0"), **variables)
        ranks = [self.start(processes.Process([sys.executable, os.path.abspath(__file__), "rank", where, handled],
                                              environment={**environment, "COORDD_RANK": str(rank)}))
                 for rank in range(SIZE)]
        return coordd, ranks

    def named(self, where, function):
        coordd, ranks = self.stuck(where)
        at = rf'is at File ".*row04_stuck_test.py", line \d+ in {function}, called at File ".*", line \d+ in run_rank'
        self.assertTrue(processes.wait_for(lambda: f"in {function}" in coordd.text()), coordd.text())
        self.assertRegex(coordd.text(), rf"rank {STUCK} .*{at}")
        environment = processes.clean_environment(XDG_RUNTIME_DIR=coordd.runtime)
        status, text = self.run_command(program("coordctl"), "status", environment=environment)
        self.assertEqual(status, 0, text)
        self.assertRegex(text, rf"the others wait for rank {STUCK}, which is at\n +main thread:\n +File .* in {function}\n")
        status, text = self.run_command(program("coordctl"), "events", environment=environment)
        self.assertEqual(status, 0, text)
        self.assertRegex(text, rf"rank {STUCK} .*{at}")
        waiting = ranks[0]
        self.assertTrue(processes.wait_for(lambda: "error:" in waiting.text()), waiting.text())
        self.assertRegex(waiting.text(), rf"rank {STUCK} {at}")
        self.assertTrue(ranks[STUCK].running())

    def test_it_sleeps(self):
        self.named("sleep", "stay_in_sleep")

    def test_it_is_in_a_call_that_keeps_the_lock_of_the_interpreter(self):
        self.named("c", "stay_in_c")

    def test_nobody_is_asked_where_the_program_wants_the_signal_or_nobody_to_be_asked(self):
        for options in ({"handled": "handled"}, {"COORDD_STACK_SIGNAL": "0"}):
            coordd, ranks = self.stuck("sleep", **options)
            self.assertTrue(processes.wait_for(lambda: "error:" in ranks[0].text()), ranks[0].text())
            self.assertNotIn("is at", ranks[0].text() + coordd.text())
            self.assertTrue(ranks[STUCK].running())


if __name__ == "__main__":
    if sys.argv[1:2] == ["rank"]:
        run_rank(sys.argv[2], sys.argv[3])
    else:
        processes.main()
