"""coordd.run in a notebook: cells that a real Jupyter kernel executes."""

import os
import queue
import sys
import tempfile
import time
import unittest

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, ROOT)

try:
    import cloudpickle  # noqa: F401
    from jupyter_client.manager import start_new_kernel
    import ipykernel  # noqa: F401
except ModuleNotFoundError as missing:
    if missing.name.partition(".")[0] not in ("cloudpickle", "jupyter_client", "ipykernel"):  # they are there, and lack something
        raise
    print(f"SKIPPED: {missing}", file=sys.stderr)
    sys.exit(77)

from tests.support import processes
from tests.support.processes import clean_environment, program, wait_for

PATIENCE_S = 120

SUM = """
import coordd

scale = 10

def train(extra):
    from coordd import _basics
    _basics.init()
    print("hello of", _basics.rank())
    return scale * _basics.rank() + extra, _basics.size()

coordd.run(train, [1], np=3)
"""

WAITS = """
def waits(path):
    import os, time
    open(path + os.environ["COORDD_RANK"], "w").close()
    time.sleep(600)

coordd.run(waits, [{path!r}], np=2)
"""

FAILS = """
def fails():
    import numpy
    from coordd import _arrays, _basics
    _basics.init()
    if _basics.rank() == 1:
        raise ValueError("bad batch")
    _arrays.allreduce("sum", numpy.ones(1), _basics.Sum)

coordd.run(fails, np=2)
"""


class NotebookTest(unittest.TestCase):
    def setUp(self):
        self.folder = self.enterContext(tempfile.TemporaryDirectory(prefix="coordd-notebook-"))
        environment = clean_environment(COORDD_COORDRUN=program("coordrun"), PYTHONPATH=os.path.join(ROOT, "client", "python"),
                                        COORDD_LIBRARY=os.environ["COORDD_LIBRARY"], HOME=self.folder, IPYTHONDIR=self.folder)
        self.manager, self.client = start_new_kernel(kernel_name="python3", env=environment, cwd=self.folder)
        self.addCleanup(self.manager.shutdown_kernel, now=True)
        self.addCleanup(self.client.stop_channels)

    def execute(self, code, started=None):
        """(what the cell's value is, what it printed, the name of its error)."""
        asked = self.client.execute(code)
        value, printed, error = None, "", None
        end = time.monotonic() + PATIENCE_S
        while time.monotonic() < end:
            try:
                message = self.client.get_iopub_msg(timeout=1)
            except queue.Empty:
                message = None
            if started and started():
                self.manager.interrupt_kernel()
                started = None
            if message is None or message["parent_header"].get("msg_id") != asked:
                continue
            kind, content = message["header"]["msg_type"], message["content"]
            if kind == "stream":
                printed += content["text"]
            elif kind == "execute_result":
                value = content["data"]["text/plain"]
            elif kind == "error":
                error, self.reason = content["ename"], content["evalue"]
            elif kind == "status" and content["execution_state"] == "idle":
                return value, printed, error
        raise AssertionError(f"the cell goes on:\n{printed}")

    def test_a_function_of_a_cell_runs_on_ranks_and_its_output_is_the_cells(self):
        value, printed, error = self.execute(SUM)
        self.assertIsNone(error, printed)
        self.assertEqual(value, "[(1, 3), (11, 3), (21, 3)]")
        for rank in range(3):
            self.assertIn(f"[{rank}] hello of {rank}", printed)
        self.assertIn("job notebook.train, 3 workers", printed)
        self.assertRegex(printed, r"ssh -N -L 29651:127.0.0.1:\d+ ")
        # And once more, with what the kernel has now.
        value, printed, error = self.execute("scale = 100\ncoordd.run(train, [2], np=2)")
        self.assertEqual((value, error), ("[(2, 2), (102, 2)]", None), printed)

    def test_an_error_of_a_rank_is_the_cells(self):
        value, printed, error = self.execute("import coordd\ncoordd.run(lambda: 1 / 0, np=2)")
        self.assertEqual((value, error), (None, "HorovodInternalError"))
        self.assertIn("ZeroDivisionError", printed)
        # That of the rank that failed first, and not what the others have heard of it.
        _, printed, _ = self.execute(FAILS)
        self.assertRegex(self.reason, r"^run: rank 1 failed: ValueError: bad batch", printed)

    def test_an_interrupt_ends_the_ranks(self):
        path = os.path.join(self.folder, "rank-")

        def here():
            return os.path.exists(path + "0") and os.path.exists(path + "1")

        def left():
            return processes_below(self.manager.provisioner.pid)
        _, printed, error = self.execute("import coordd\n" + WAITS.format(path=path), started=here)
        self.assertEqual(error, "KeyboardInterrupt", printed)
        self.assertTrue(wait_for(lambda: not left()), left())
        self.assertEqual(self.execute("6 * 7")[0], "42")


def processes_below(pid):
    """The process ids of its children and theirs."""
    found = []
    try:
        for thread in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{thread}/children", encoding="ascii") as children:
                for child in children.read().split():
                    found += [int(child), *processes_below(int(child))]
    except OSError:  # it has ended
        pass
    return found


if __name__ == "__main__":
    processes.main()
