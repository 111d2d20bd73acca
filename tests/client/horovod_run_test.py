"""coordd.run, and coordd.horovod.run: a function on processes that coordrun starts."""

import os
import re
import sys

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))

from tests.support import processes
from tests.support.processes import clean_environment, program

PROGRAM = """
import io, os, sys
import coordd
from coordd.horovod.runner import run

def place(*words):
    return os.environ["COORDD_RANK"] + "/" + os.environ["COORDD_SIZE"] + "".join(words)

def says():
    print("hello from", os.environ["COORDD_RANK"])

def shown(call):
    kept = sys.stdout = io.StringIO()
    call()
    sys.stdout = sys.__stdout__
    return repr(kept.getvalue())

def only_others(bad):
    if os.environ["COORDD_RANK"] == bad:
        raise ValueError("bad batch")
    return place()

class Unreadable:
    def __reduce__(self):
        return eval, ("1/0",)

def unreadable():
    return Unreadable()

if __name__ == "__main__":
    print("result:", {expression})
"""


class RunCase(processes.TestCase):
    def results(self, expression):
        script = os.path.join(self.folder, "program.py")
        with open(script, "w", encoding="ascii") as file:
            file.write(PROGRAM.format(expression=expression))
        environment = clean_environment(TMPDIR=self.folder, COORDD_COORDRUN=program("coordrun"),
                                        PYTHONPATH=os.path.join(processes.ROOT, "client", "python"))
        status, text = self.run_command(sys.executable, script, environment=environment)
        line = next((line for line in text.splitlines() if line.startswith("result: ")), "")
        return status, line[len("result: "):], text


class HorovodRunTest(RunCase):
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


    def test_what_is_no_number_of_workers_is_refused_by_the_name_that_was_given(self):
        for name in ("np", "num_proc", "min_np", "max_num_proc", "slots"):
            status, _, text = self.results(f"run(place, **{{'{name}': 0}})")
            self.assertNotEqual(status, 0)
            self.assertIn(f"{name} is 0: expected a number of workers, a whole one from 1", text)


class RunTest(RunCase):
    def test_what_is_no_number_of_workers_is_refused_before_anything_is_started(self):
        for name in ("np", "min_np", "max_np"):
            for count in ("0", "-1", "1.5", "'2'", "True"):
                status, _, text = self.results(f"coordd.run(place, {name}={count}, coordrun=['--no-such-flag'])")
                self.assertNotEqual(status, 0)
                self.assertIn(f"{name} is {count}: expected a number of workers, a whole one from 1", text)

    def test_processes_of_this_machine(self):
        for expression in ('coordd.run(place, ["!"], np=2)', 'coordd.run(place, ["!"], hosts="localhost:2")',
                           'coordd.run(place, ["!"], hosts=["localhost:2"], start_timeout_s=30, coordrun=["--verbose"])'):
            status, results, text = self.results(expression)
            self.assertEqual((status, results), (0, "['0/2!', '1/2!']"), text)
        self.assertEqual(self.results("coordd.run(place)")[:2], (0, "['0/1']"))
        self.assertEqual([name for name in os.listdir(self.folder) if name.startswith(".coordd-run-")], [])

    def test_a_failure_names_its_rank(self):
        status, _, text = self.results('coordd.run(only_others, ["1"], np=2)')
        self.assertNotEqual(status, 0)
        self.assertIn("HorovodInternalError: run: rank 1 failed: ValueError: bad batch", text)

    def test_the_others_go_on_without_one_that_fails(self):
        status, results, text = self.results('coordd.run(only_others, ["1"], np=3, min_np=1)')
        self.assertEqual((status, results), (0, "['0/3', '2/3']"), text)

    def test_the_status_page_is_told_with_the_way_to_it(self):
        status, _, text = self.results("coordd.run(place, np=1, page=True)")
        self.assertEqual(status, 0, text)
        port = re.search(r"status page http://127.0.0.1:(\d+)/, on this machine", text).group(1)
        self.assertIn(f"ssh -N -L 29651:127.0.0.1:{port} ", text)

    def test_a_result_that_cannot_be_read_and_a_function_that_is_none_are_named(self):
        status, _, text = self.results("coordd.run(unreadable, np=2)")
        self.assertNotEqual(status, 0)
        self.assertIn("run: the result of rank 0 cannot be read here: ZeroDivisionError: division by zero", text)
        status, _, text = self.results("coordd.run(3, np=2, coordrun=['--no-such-flag'])")
        self.assertNotEqual(status, 0)
        self.assertIn("func is 3: expected a function", text)

    def test_what_the_processes_print_is_shown_where_the_program_prints(self):
        status, results, text = self.results("""shown(lambda: coordd.run(says, np=2))""")
        self.assertEqual(status, 0, text)
        self.assertIn("[0] hello from 0", results)
        self.assertIn("[1] hello from 1", results)

    def test_a_function_of_a_prompt_needs_a_package(self):
        environment = clean_environment(TMPDIR=self.folder, COORDD_COORDRUN=program("coordrun"),
                                        PYTHONPATH=os.path.join(processes.ROOT, "client", "python"))
        code = "import sys; sys.modules['cloudpickle'] = None; import coordd; coordd.run(lambda: 1)"
        status, text = self.run_command(sys.executable, "-c", code, environment=environment)
        self.assertNotEqual(status, 0)
        self.assertIn("expected the package cloudpickle (pip install cloudpickle), or a function of a module", text)


if __name__ == "__main__":
    processes.main()
