#!/usr/bin/env python3
"""torch's own tests of torch.distributed (torch.testing._internal.distributed.distributed_test, in its wheel) with coordd as backend.

  dist_suite.py coordd         under our own name: what asks for another backend by name is skipped
  dist_suite.py gloo --ours    under gloo's name (replace("gloo")): what asks for gloo runs, too
  dist_suite.py gloo           torch's gloo itself: what a pass is on this machine
  --ranks N (3)  --only REGEX  --skip REGEX  --timeout SECONDS (60, of one test)  --json FILE  --expect-failures A,B

A test's ranks are forks of this process, which has imported torch and has started no threads: a test costs a second instead of ten. One
line of JSON for each test; the last line is "N passed, N failed, N skipped". Exit status 0: all passed, but for those that
--expect-failures names, which have to fail. Needs torch 2.14 or later, numpy, expecttest and hypothesis from PyPI.
"""

import argparse
import json
import os
import re
import shutil
import sys
import tempfile
import time
import unittest

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))
sys.path.insert(0, os.path.join(ROOT, "client", "python"))


def parsed():
    parser = argparse.ArgumentParser(usage=__doc__)
    parser.add_argument("backend", choices=["coordd", "gloo"])
    parser.add_argument("--ours", action="store_true")
    parser.add_argument("--ranks", default="3")
    parser.add_argument("--only", default="")
    parser.add_argument("--skip", default="a^")
    parser.add_argument("--timeout", default="60")
    parser.add_argument("--json")
    parser.add_argument("--expect-failures", default="")
    return parser.parse_args()


def prepare(options, folder):
    """What the tests read, before torch is imported."""
    os.environ.update(BACKEND=options.backend, WORLD_SIZE=options.ranks, TEMP_DIR=folder, OMP_NUM_THREADS="1", CUDA_VISIBLE_DEVICES="",
                      DISTRIBUTED_TESTS_DEFAULT_TIMEOUT=options.timeout)
    for name in ("barrier", "test_dir"):
        os.makedirs(os.path.join(folder, name))
    with open(os.path.join(folder, "init_dir"), "w", encoding="ascii"):
        pass


def suite(options):
    """Torch's class of tests, with ranks that are forks."""
    import torch
    from torch.testing._internal.common_distributed import DistTestCases

    if options.backend == "coordd" or options.ours:
        import coordd.torch.distributed as ours
        if options.ours:
            ours.replace(options.backend)
    if options.backend == "coordd":  # what a backend says of itself
        for feature in ("ddp", "subgroup", "plugin"):
            DistTestCases.backend_feature[feature].add("coordd")

    from torch.testing._internal.distributed import distributed_test
    if options.ours:  # our events have our name, "coordd:all_reduce"
        for names in ("PROFILING_SUPPORTED_BACKENDS", "CUDA_PROFILING_SUPPORTED_BACKENDS", "SEND_RECV_PROFILING_SUPPORTED_BACKENDS"):
            getattr(distributed_test, names).clear()

    class Forked(distributed_test.TestDistBackend, distributed_test.DistributedTest._DistTestBase):
        def setUp(self):
            super().setUp()
            self._start_processes(torch.multiprocessing.get_context("fork").Process)

    Forked.__name__ = Forked.__qualname__ = "TestDistBackendWithSpawn"  # parts of the suite ask for this name
    return Forked


class Result(unittest.TextTestResult):
    def __init__(self, *arguments, **options):
        super().__init__(*arguments, **options)
        self.rows = []
        self._began = 0.0

    def startTest(self, test):
        self._began = time.monotonic()
        super().startTest(test)

    def _note(self, test, outcome, why=""):
        row = {"test": test.id().split(".")[-1], "outcome": outcome, "s": round(time.monotonic() - self._began, 1), "why": why}
        self.rows.append(row)
        print(json.dumps(row), flush=True)

    def addSuccess(self, test):
        self._note(test, "passed")

    def addSkip(self, test, reason):
        self._note(test, "skipped", reason)

    def addError(self, test, err):
        text = str(err[1]).strip()
        named = [line for line in text.splitlines() if re.match(r"^\w*(\.\w+)*(Error|Exception|Failure)\b", line)]
        self._note(test, "failed", (named or text.splitlines()[-1:] or [""])[0][:400])

    addFailure = addError


def main():
    options = parsed()
    folder = tempfile.mkdtemp(prefix="coordd-dist-suite-")
    try:
        prepare(options, folder)
        kind = suite(options)
        tests = unittest.TestSuite(test for test in unittest.defaultTestLoader.loadTestsFromTestCase(kind)
                                   if re.search(options.only, test.id()) and not re.search(options.skip, test.id()))
        import torch
        print(f"torch {torch.__version__}, {options.backend}{' by coordd' if options.ours else ''}, {options.ranks} ranks, "
              f"{tests.countTestCases()} tests", flush=True)
        with open(os.devnull, "w", encoding="ascii") as nowhere:
            rows = unittest.TextTestRunner(stream=nowhere, resultclass=Result).run(tests).rows
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    if options.json:
        with open(options.json, "w", encoding="utf-8") as file:
            json.dump(rows, file, indent=1)
    failed = {row["test"] for row in rows if row["outcome"] == "failed"}
    expected = set(filter(None, options.expect_failures.split(",")))
    for name in sorted(failed - expected):
        print(f"FAILED: {name}")
    for name in sorted(expected & {row["test"] for row in rows if row["outcome"] == "passed"}):
        print(f"PASSED, which was expected to fail: {name}")
    counts = [sum(row["outcome"] == outcome for row in rows) for outcome in ("passed", "failed", "skipped")]
    print("{} passed, {} failed, {} skipped".format(*counts))
    return 0 if failed == expected and counts[0] else 1


if __name__ == "__main__":
    sys.exit(main())
