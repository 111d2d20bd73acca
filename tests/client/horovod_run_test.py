"""coordd.horovod.run: a function on processes that coordrun starts."""

import os
import sys

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))

from tests.support import processes
from tests.support.processes import clean_environment, program

PROGRAM = """
import os, sys
from coordd.horovod.runner import run

def place(*words):
    return os.environ["COORDD_RANK"] + "/" + os.environ["COORDD_SIZE"] + "".join(words)

def only_others(bad):
    if os.environ["COORDD_RANK"] == bad:
        raise ValueError("bad batch")
    return place()

if __name__ == "__main__":
    print("result:", {expression})
"""


class HorovodRunTest(processes.TestCase):
    def results(self, expression):
        script = os.path.join(self.folder, "program.py")
        with open(script, "w", encoding="ascii") as file:
            file.write(PROGRAM.format(expression=expression))
        environment = clean_environment(TMPDIR=self.folder, COORDD_COORDRUN=program("coordrun"),
                                        PYTHONPATH=os.path.join(processes.ROOT, "client", "python"))
        status, text = self.run_command(sys.executable, script, environment=environment)
        line = next((line for line in text.splitlines() if line.startswith("result: ")), "")
        return status, line[len("result: "):], text

    def test_processes_of_this_machine(self):
        for expression in ('run(place, ("!",), np=2)', 'run(place, ("!",), hosts="localhost:2")',
                           'run(place, ("!",), np=2, hosts="localhost:4", use_gloo=True, start_timeout=30)'):
            status, results, text = self.results(expression)
            self.assertEqual((status, results), (0, "['0/2!', '1/2!']"), text)

    def test_the_job_is_called_after_the_function(self):
        status, results, text = self.results('run(place, np=1)')
        self.assertEqual((status, results), (0, "['0/1']"), text)
        self.assertIn("coordrun: job program.place, 1 worker", text)

    def test_the_others_go_on_without_one_that_fails(self):
        status, results, text = self.results('run(only_others, ("1",), np=3, min_np=1, max_np=3)')
        self.assertEqual((status, results), (0, "['0/3', '2/3']"), text)
        self.assertIn("1 was lost, the others exited with status 0", text)

    def test_a_program_from_stdin_is_run_as_python_would(self):
        script = os.path.join(self.folder, "program")
        with open(script, "w", encoding="utf-8") as file:
            file.write("import sys, horovod\nprint('result:', __name__, sys.argv, repr(sys.path[0]), horovod.__version__ != '', 'ä')\n")
        environment = clean_environment(TMPDIR=self.folder, PYTHONPATH=os.path.join(processes.ROOT, "client", "python"))
        with open(script, "rb") as stdin:
            process = self.start(processes.Process([program("coordrun"), "--horovod", "-np", "1", sys.executable, "-", "a", "-b"],
                                                   environment, stdin=stdin))
            self.assertEqual(process.wait(), 0, process.text())
        self.assertIn("result: __main__ ['-', 'a', '-b'] '' True ä", process.text())

    def test_hosts_of_a_script(self):
        status, results, text = self.results('run(place, host_discovery_script="echo localhost:2", min_np=2, max_np=2)')
        self.assertEqual((status, results), (0, "['0/2', '1/2']"), text)

    def test_without_min_np_a_failure_is_the_end(self):
        status, _, text = self.results('run(only_others, ("1",), num_proc=2)')
        self.assertNotEqual(status, 0)
        self.assertIn("run: rank 1 failed: ValueError: bad batch", text)

    def test_an_unknown_argument_is_refused(self):
        status, _, text = self.results("run(place, np=1, colour='red')")
        self.assertNotEqual(status, 0)
        self.assertIn("run() got an unexpected argument 'colour'", text)


if __name__ == "__main__":
    processes.main()
