"""Runs test files of Horovod's own in one rank, with coordd in Horovod's place.

    coordrun --horovod -np 2 -- python tests/frameworks/horovod_suite.py CHECKOUT/test parallel/test_torch.py [-k REGEX]

CHECKOUT is somebody's copy of Horovod's sources: none of it is here. `tools/test-frameworks --horovod-tests CHECKOUT` does it for
all the files that concern torch. The last line is "N passed, N failed, N skipped"; before it stand the failures of this rank,
each with the end of its traceback. Exit status 0: none failed.
"""

import argparse
import importlib.util
import io
import os
import re
import sys
import threading
import time
import types
import unittest
import unittest.mock


def _thread(target, args=(), name=None, daemon=True, silent=False):
    del silent
    thread = threading.Thread(target=target, args=args, name=name, daemon=daemon)
    thread.start()
    return thread


def stand_in():
    """Modules that Horovod's tests import and that say nothing about what is tested."""
    if importlib.util.find_spec("mock") is None:
        sys.modules["mock"] = unittest.mock
    import horovod.runner
    threads = types.ModuleType("horovod.runner.util.threads")
    threads.in_thread = _thread
    util = types.ModuleType("horovod.runner.util")
    util.threads = threads
    sys.modules.setdefault("horovod.runner.util", util)
    sys.modules.setdefault("horovod.runner.util.threads", threads)
    horovod.runner.util = util


class Result(unittest.TextTestResult):
    """Says what it is about to run, so that the log of a run that hangs ends with its name."""

    def startTest(self, test):
        super().startTest(test)
        self.passed = getattr(self, "passed", 0)
        print(f"{time.strftime('%H:%M:%S')} {test.id().split('.')[-1]}", flush=True)

    def addFailure(self, test, err):
        super().addFailure(test, err)
        self.tell(*self.failures[-1])

    def addError(self, test, err):
        super().addError(test, err)
        self.tell(*self.errors[-1])

    @staticmethod
    def tell(test, traceback):
        lines = traceback.strip().splitlines()
        last = max((index for index, line in enumerate(lines) if line.startswith("  File ")), default=0)
        print(f"FAILED {test.id().split('.')[-1]}: " + " | ".join(line.strip()[:300] for line in lines[last:last + 4]), flush=True)

    def stopTest(self, test):
        """Where ranks have come to different results, the next test begins with all of them again."""
        import horovod.torch
        super().stopTest(test)
        horovod.torch.shutdown()

    def addSuccess(self, test):
        super().addSuccess(test)
        self.passed += 1


def load(folder, file):
    path = os.path.join(folder, file)
    spec = importlib.util.spec_from_file_location(os.path.splitext(os.path.basename(file))[0], path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    sys.path.insert(0, os.path.join(folder, "utils"))
    spec.loader.exec_module(module)
    return unittest.defaultTestLoader.loadTestsFromModule(module)


def each(suite):
    for part in suite:
        yield from each(part) if isinstance(part, unittest.TestSuite) else (part,)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder")
    parser.add_argument("file")
    parser.add_argument("-k", dest="pattern", default="", metavar="REGEX")
    options = parser.parse_args()
    stand_in()
    chosen = [test for test in each(load(options.folder, options.file)) if re.search(options.pattern, test.id())]
    runner = unittest.TextTestRunner(stream=io.StringIO(), resultclass=Result)
    result = runner.run(unittest.TestSuite(chosen))
    bad = {test.id() for test, _ in [*result.failures, *result.errors]}
    for test, reason in result.skipped:
        print(f"skipped {test.id().split('.')[-1]}: {reason}", flush=True)
    print(f"{result.passed} passed, {len(bad)} failed, {len(result.skipped)} skipped", flush=True)
    return 0 if not bad else 1


if __name__ == "__main__":
    sys.exit(main())
