"""The wheel of tools/build-wheel in distributions that are older than the one that it was built on.

Not among the tests of every day: COORDD_TEST_DEB=1 (tools/test --stage deb). It needs root, debootstrap and a mirror of Debian
($COORDD_DEBIAN_MIRROR, else deb.debian.org), or folders of debootstrap's in $COORDD_OLDER_ROOTS, separated by colons, which are copied.
"""

import glob
import os
import platform
import shutil
import subprocess
import sys
import unittest

from tests.integration.deb_test import MIRROR, SYSTEM_PATH
from tests.support import processes

# Debian 11: glibc 2.31, g++ 10's libstdc++, Python 3.9.
DISTRIBUTION, PACKAGES = "bullseye", "python3-minimal,python3,python3-numpy,libstdc++6"
PROGRAM = """
import numpy
import coordd
from coordd import _arrays, _basics
_basics.init()
total = _arrays.allreduce("numbers", numpy.arange(5.0), _basics.Sum)
assert total.tolist() == [0.0, 4.0, 8.0, 12.0, 16.0], total
print("python", _basics.rank(), "of", _basics.size())
"""
# Everything is looked for before a program begins, so that nothing is missed later.
STEPS = """
set -eu
export LD_BIND_NOW=1 PYTHONPATH=/opt/coordd PATH=/opt/coordd/coordd/bin:$PATH
echo "glibc $(getconf GNU_LIBC_VERSION)"
coordrun -np 4 -- coordd-worker selftest
coordrun -np 2 --node-sessions on -- coordd-worker allreduce
coordctl check-build
for library in libcoordd.so.0 libcoordd_tensorflow.so libucp-coordd.so.0; do
  python3 -c 'import ctypes, os, sys; ctypes.CDLL(sys.argv[1], os.RTLD_NOW)' "/opt/coordd/coordd/lib/$library"
done
if python3 -c 'import sys; sys.exit(sys.version_info < (3, 9))'; then
  coordrun -np 4 -- python3 -c "$PROGRAM"
fi
echo all is well
"""


def missing():
    if not os.environ.get("COORDD_TEST_DEB"):
        return "COORDD_TEST_DEB is not set"
    if os.getuid() != 0:
        return "not root"
    if platform.machine() != "x86_64":
        return "not x86-64"
    if not os.environ.get("COORDD_OLDER_ROOTS") and not shutil.which("debootstrap", path=SYSTEM_PATH):
        return "no debootstrap"
    return None


@unittest.skipIf(missing(), f"{missing()}: tools/test --stage deb")
class OlderWheelTest(processes.TestCase):
    def test_older_distributions_run_it(self):
        dist = os.path.join(self.folder, "dist")
        built = subprocess.run([os.path.join(processes.ROOT, "tools", "build-wheel"), "--build", processes.BUILD, "--output", dist],
                               capture_output=True, text=True, check=False)
        self.assertEqual(built.returncode, 0, built.stdout + built.stderr)
        [wheel] = glob.glob(dist + "/*.whl")
        for number, made in enumerate(os.environ.get("COORDD_OLDER_ROOTS", "").split(":")):
            with self.subTest(root=made or DISTRIBUTION):
                root = os.path.join(self.folder, f"root{number}")
                command = ["cp", "-a", made, root] if made else ["debootstrap", "--variant=minbase", f"--include={PACKAGES}", DISTRIBUTION,
                                                                 root, MIRROR]
                subprocess.run(command, env={**os.environ, "PATH": SYSTEM_PATH}, check=True, stdout=subprocess.DEVNULL)
                subprocess.run([sys.executable, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps", "--target",
                                os.path.join(root, "opt", "coordd"), wheel], check=True)
                self.runs_in(root)

    def runs_in(self, root):
        # A mount namespace of its own: whatever happens, nothing stays mounted.
        run = subprocess.run(["unshare", "--mount", "--pid", "--fork", "sh", "-c",
                              'mount -t proc proc "$1/proc" && mount -t tmpfs tmpfs "$1/dev/shm" 2>/dev/null; '
                              'exec chroot "$1" /bin/bash -c "$2"', "sh", root, STEPS],
                             env={"PATH": SYSTEM_PATH, "HOME": "/root", "LC_ALL": "C.UTF-8", "PROGRAM": PROGRAM},
                             capture_output=True, text=True, timeout=600, check=False)
        self.assertEqual(run.returncode, 0, run.stdout[-6000:] + run.stderr[-6000:])
        self.assertIn("all is well", run.stdout)



if __name__ == "__main__":
    processes.main()
