"""What the tests on Ray share: a cluster of this process alone, or the word that there is no Ray."""

import os
import sys
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(os.path.dirname(HERE)))
PACKAGE = os.path.join(ROOT, "client", "python")
sys.path[:0] = [ROOT, PACKAGE, HERE]

try:
    import ray
except ModuleNotFoundError as missing:
    if missing.name != "ray":  # it is there, and lacks something
        raise
    print("there is no Ray here: tools/test-frameworks --ray installs one", file=sys.stderr)
    sys.exit(77)

PATIENCE_S = float(os.environ.get("COORDD_TEST_PATIENCE_S", "60"))
# Of Ray's own processes, too: workers find the package and the functions of these files.
os.environ["PYTHONPATH"] = os.pathsep.join([HERE, PACKAGE, os.environ.get("PYTHONPATH", "")])
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("RAY_AUTH_MODE", "disabled")
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
SMALL = 80 << 20  # bytes of Ray's store of objects, in /dev/shm


class RayCase(unittest.TestCase):
    CPUS = 8

    @classmethod
    def setUpClass(cls):
        ray.init(num_cpus=cls.CPUS, include_dashboard=False, object_store_memory=SMALL, logging_level="ERROR", log_to_driver=False)

    @classmethod
    def tearDownClass(cls):
        ray.shutdown()
