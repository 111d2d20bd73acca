"""The parts of the package that need neither ranks nor a framework: finding the library, errors, process sets, versions."""

import os
import pickle
import re
import shutil
import subprocess
import sys
import tempfile
import types
import unittest
import unittest.mock

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
PACKAGE = os.path.join(ROOT, "client", "python")
sys.path.insert(0, PACKAGE)

import coordd  # noqa: E402
from coordd import _basics, _library, _memory, _native, _prepared_store, elastic, exceptions, process_sets  # noqa: E402


def python(code, folder=PACKAGE, **environment):
    """(exit status, output) of a Python of its own, without COORDD_* but for `environment`."""
    clean = {key: value for key, value in os.environ.items() if not key.startswith("COORDD_")}
    clean.update(environment, PYTHONPATH=folder, PYTHONDONTWRITEBYTECODE="1")
    done = subprocess.run([sys.executable, "-c", code], env=clean, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                          text=True, timeout=60, check=False)
    return done.returncode, done.stdout


class Versions(unittest.TestCase):

    def test_package_library_and_build_have_one_version(self):
        with open(os.path.join(ROOT, "CMakeLists.txt"), encoding="utf-8") as cmake:
            built = re.search(r"project\(coordd VERSION ([0-9.]+)", cmake.read()).group(1)
        self.assertEqual(coordd.__version__, built)
        self.assertEqual(_library.library().version, built)

    def test_structures_are_as_large_as_those_of_the_header(self):
        with open(os.path.join(ROOT, "client", "c_api", "coordd.h"), encoding="utf-8") as header:
            text = header.read()
        for structure in (_library.Tensor, _library.CallOptions, _library.Options, _library.Launch, _library.Placement,
                          _library.Result):
            name = structure.__doc__
            body = re.search(r"typedef struct \w+ \{([^}]*)\} " + name + ";", text).group(1)
            body = re.sub(r"/\*.*?\*/", "", body, flags=re.DOTALL)
            members = re.findall(r"(\w+)\s*(?=[,;])", body)
            self.assertEqual([field for field, _ in structure._fields_], members, name)

    def test_numbers_are_those_of_the_header(self):
        with open(os.path.join(ROOT, "client", "c_api", "coordd.h"), encoding="utf-8") as header:
            numbers = {name: int(value) for name, value in re.findall(r"COORDD_(\w+) = (\d+)", header.read())}
        for name, number in _library.DTYPES.items():
            self.assertEqual(numbers[name.upper()], number)
        for name, number in _library.STATUS.items():
            self.assertEqual(numbers[name], number)
        for name in ("Sum", "Average", "Min", "Max", "Product"):
            self.assertEqual(_basics.native_op(getattr(_basics, name)), numbers[name.upper()])

    def test_check_build_names_its_parts(self):
        self.assertIn("gRPC", coordd.check_build())

    def test_what_is_built_is_what_can_be_opened(self):
        tests = os.path.abspath(os.path.join(os.path.dirname(_library.library().path), "..", "tests"))
        if not os.path.exists(os.path.join(tests, "libfake_cuda.so")):
            return  # a build without its tests, or without NCCL
        with tempfile.TemporaryDirectory() as folder:
            os.symlink(os.path.join(tests, "libfake_cuda.so"), os.path.join(folder, "libcuda.so.1"))
            code = "from coordd import _basics; print(_basics.cuda_built(), _basics.nccl_built())"
            said = python(code, COORDD_LIBRARY=_library.library().path, LD_LIBRARY_PATH=folder,
                          COORDD_NCCL_LIBRARY=os.path.join(tests, "libfake_nccl.so"))[1]
        self.assertRegex(said, r"^True 2[0-9]{4}\n$")

    def test_nccl_needs_a_driver(self):
        for driver, nccl, loaded, number in ((True, True, "2.28.9", 22809), (True, False, "", 0), (False, True, "2.28.9", 0),
                                             (True, True, "2.18.1", 21801)):
            parts = {"CUDA": {"available": driver}, "NCCL": {"available": nccl, "loaded": loaded}}
            with unittest.mock.patch.object(_basics, "_components", lambda parts=parts: parts):
                self.assertEqual((_basics.cuda_built(), _basics.nccl_built()), (driver, number))

    def test_dtypes_are_those_that_the_framework_has(self):
        old = types.SimpleNamespace(uint8="torch.uint8", bool="torch.bool", complex64="torch.complex64")
        self.assertEqual(_library.dtypes_of(old), {"torch.uint8": 1, "torch.bool": 13})
        new = types.SimpleNamespace(float8_e4m3fn="torch.float8_e4m3fn", float8_e5m2="torch.float8_e5m2",
                                    float8_e4m3fnuz="torch.float8_e4m3fnuz")
        self.assertEqual(_library.dtypes_of(new), {"torch.float8_e4m3fn": 14, "torch.float8_e5m2": 15})

    def test_the_package_says_that_it_is_typed(self):
        self.assertTrue(os.path.exists(os.path.join(PACKAGE, "coordd", "py.typed")))


class FindingTheLibrary(unittest.TestCase):

    def setUp(self):
        self.folder = tempfile.mkdtemp(prefix="coordd-test-")
        self.addCleanup(shutil.rmtree, self.folder)
        shutil.copytree(os.path.join(PACKAGE, "coordd"), os.path.join(self.folder, "coordd"))

    load = "import coordd._library as l; print(l.library().path)"

    def test_importing_the_package_loads_nothing(self):
        status, said = python("import coordd, coordd._basics, coordd.process_sets; print(coordd.__version__)", self.folder)
        self.assertEqual((status, said.strip()), (0, coordd.__version__))

    def test_the_variable_wins(self):
        path = _library.library().path
        status, said = python(self.load, self.folder, COORDD_LIBRARY=os.path.abspath(path))
        self.assertEqual((status, said.strip()), (0, os.path.abspath(path)), said)

    def test_a_variable_that_is_wrong_is_not_passed_over(self):
        status, said = python(self.load, COORDD_LIBRARY="/nowhere/libcoordd.so")
        self.assertNotEqual(status, 0)
        self.assertIn("COORDD_LIBRARY says /nowhere/libcoordd.so", said.splitlines()[-1])

    def test_the_package_carries_its_own(self):
        os.mkdir(os.path.join(self.folder, "coordd", "lib"))
        carried = os.path.join(self.folder, "coordd", "lib", "libcoordd.so.0")
        shutil.copy(_library.library().path, carried)
        status, said = python(self.load, self.folder)
        self.assertEqual((status, said.strip()), (0, carried), said)

    def test_a_missing_one_is_a_sentence_that_says_where_it_was_looked_for(self):
        status, said = python(self.load, self.folder, LD_LIBRARY_PATH="")
        last = said.splitlines()[-1]
        if status == 0:
            self.skipTest("libcoordd.so is installed for the whole system")
        self.assertTrue(last.startswith("ImportError: libcoordd.so was found nowhere"), said)
        self.assertIn(os.path.join(self.folder, "coordd", "lib", "libcoordd.so.0"), last)
        self.assertIn("COORDD_LIBRARY", last)

    def test_an_older_library_is_refused_with_both_revisions(self):
        source = os.path.join(self.folder, "old.c")
        with open(source, "w", encoding="utf-8") as file:
            names = ("coordd_last_error coordd_check_build coordd_worker_placement coordd_worker_status "
                     "coordd_worker_metrics_address coordd_work_poll coordd_work_name coordd_work_result "
                     "coordd_work_release coordd_worker_start coordd_worker_shutdown coordd_worker_destroy "
                     "coordd_launch_place").split()
            file.write("unsigned coordd_abi_version(void) { return 0; }\n"
                       'const char* coordd_version(void) { return "0.0.1"; }\n'
                       + "".join(f"void {name}(void) {{}}\n" for name in names))
        compiler = shutil.which("cc")
        if compiler is None:
            self.skipTest("no C compiler")
        old = os.path.join(self.folder, "old.so")
        subprocess.run([compiler, "-shared", "-fPIC", "-o", old, source], check=True)
        status, said = python(self.load, COORDD_LIBRARY=old)
        self.assertNotEqual(status, 0)
        self.assertIn("is coordd 0.0.1, whose interface has revision 0; this package needs", said.splitlines()[-1])


class Errors(unittest.TestCase):

    def test_classes_are_those_of_horovod_and_more(self):
        self.assertTrue(issubclass(exceptions.HorovodInternalError, RuntimeError))
        self.assertTrue(issubclass(exceptions.InvalidArgumentError, ValueError))
        self.assertTrue(issubclass(exceptions.UnsupportedError, NotImplementedError))
        self.assertTrue(issubclass(exceptions.HostsUpdatedInterrupt, RuntimeError))
        self.assertTrue(issubclass(exceptions.HorovodVersionMismatchError, ImportError))
        self.assertTrue(exceptions.HostsUpdatedInterrupt(True).skip_sync)
        mismatch = exceptions.HorovodVersionMismatchError("torch", "1.13", "2.9")
        self.assertEqual((mismatch.name, mismatch.version, mismatch.installed_version), ("torch", "1.13", "2.9"))
        self.assertIn("torch 2.9", str(mismatch))

    def test_what_is_known_is_taken_from_the_text(self):
        error = exceptions.HorovodInternalError(
            "generation 7 ended: rank 2 (host node3, pid 4711) was lost: its connection closed", "ABORTED")
        self.assertEqual((error.code, error.generation, error.rank, error.tensor), ("ABORTED", 7, 2, None))
        error = exceptions.CoorddError("tensor allreduce.a: rank 0 has shape [2], rank 1 has [3]")
        self.assertEqual((error.tensor, error.rank, error.generation), ("allreduce.a", 0, None))

    def test_they_can_be_pickled(self):
        error = pickle.loads(pickle.dumps(exceptions.HorovodInternalError("rank 3 was lost", "ABORTED")))
        self.assertEqual((str(error), error.rank), ("rank 3 was lost", 3))


class Elastic(unittest.TestCase):

    def test_a_forgotten_init_is_not_taken_for_the_end_of_a_job(self):
        state = elastic.ObjectState(lambda obj, root_rank=0: _basics.worker() and obj, _basics.rank, epoch=0)
        with self.assertRaises(exceptions.HorovodInternalError) as raised:
            elastic.run_fn(lambda state: None, lambda: None)(state)
        self.assertEqual(str(raised.exception), "coordd is not initialised: call init() first")


class ProcessSets(unittest.TestCase):

    def test_ranks_are_sorted(self):
        one = process_sets.ProcessSet((3, 0, 2))
        self.assertEqual((one.ranks, one.process_set_id, one.mpi_comm), ([0, 2, 3], None, None))
        self.assertEqual((one.size(), one.rank(), one.included()), (None, None, None))
        self.assertIn("[0, 2, 3]", str(one))

    def test_other_things_are_refused(self):
        for wrong in (5, ["a"], [0, 0], [-1], [1.5]):
            with self.assertRaises(ValueError, msg=repr(wrong)):
                process_sets.ProcessSet(wrong)

    def test_the_set_of_all_ranks_is_number_0(self):
        self.assertEqual(process_sets.global_process_set.process_set_id, 0)
        self.assertIs(process_sets.process_set_by_id(0), process_sets.global_process_set)
        self.assertRaises(ValueError, process_sets.process_set_by_id, 3)


class Waiting(unittest.TestCase):

    def wait(self, *statuses, complete_after):
        """A wait for a work that says `statuses`, one for each slice, and is complete behind so many."""
        said = list(statuses)
        blocking = types.SimpleNamespace(coordd_work_wait=lambda work, seconds: _library.STATUS[said.pop(0)])
        quick = types.SimpleNamespace(coordd_work_poll=lambda work: int(len(statuses) - len(said) >= complete_after),
                                      coordd_work_name=lambda work: b"a tensor", coordd_work_release=lambda work: None)
        library = types.SimpleNamespace(blocking=blocking, quick=quick, last_error=lambda: "the last rank never came")
        with unittest.mock.patch.object(_library, "library", lambda: library):
            work = _native.Work((1,), "a tensor")
            try:
                work.wait()
            finally:
                work.pointers = ()  # there is none to release
        self.assertEqual(said, [])

    def test_a_work_that_completes_while_nobody_waits_is_a_success(self):
        self.wait("DEADLINE_EXCEEDED", "OK", complete_after=1)
        self.wait("DEADLINE_EXCEEDED", "DEADLINE_EXCEEDED", "OK", complete_after=3)

    def test_a_deadline_of_its_own_is_an_error(self):
        with self.assertRaisesRegex(exceptions.HorovodInternalError, "never came"):
            self.wait("DEADLINE_EXCEEDED", "DEADLINE_EXCEEDED", complete_after=1)


class HalfMade(unittest.TestCase):

    def test_what_init_has_not_finished_can_be_freed(self):
        for kind in (_native.Work, _native.Worker, _memory.MappedMemory):
            kind.__new__(kind).__del__()


class Submissions(unittest.TestCase):

    def test_one_thread_at_a_time_has_a_prepared_structure(self):
        store = _prepared_store.PreparedStore()
        store.give_back("a", 1)
        self.assertEqual([store.take("a"), store.take("a")], [1, None])

    def test_the_number_of_prepared_structures_is_bounded(self):
        store = _prepared_store.PreparedStore()
        for key in range(3 * _prepared_store.MAX_PREPARED):
            store.give_back(key, key)
        self.assertLessEqual(sum(store.take(key) is not None for key in range(3 * _prepared_store.MAX_PREPARED)),
                             _prepared_store.MAX_PREPARED)

    def test_options_are_made_once_for_the_same_values(self):
        self.assertIsNone(_native.call_options(0, 1.0, 1.0))
        self.assertIs(_native.call_options(3, 1.0, 0.5), _native.call_options(3, 1.0, 0.5))
        self.assertRaises(ValueError, _native.call_options, 0, 0.0, 1.0)

    def test_average_is_the_old_name_of_op(self):
        self.assertEqual(_basics.native_op(None), _basics.native_op(_basics.Average))
        self.assertEqual(_basics.native_op(None, average=False), _basics.native_op(_basics.Sum))
        self.assertRaises(ValueError, _basics.native_op, _basics.Sum, average=True)
        self.assertRaises(NotImplementedError, _basics.native_op, _basics.Adasum)
        self.assertRaises(ValueError, _basics.native_op, "sum")


if __name__ == "__main__":
    unittest.main(verbosity=2)
