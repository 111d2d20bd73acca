"""An installed prefix works where it is moved to, for programs that find it by CMake and by pkg-config."""

import os
import shutil
import subprocess

from tests.support import processes

SOURCES = os.path.join(processes.ROOT, "tests", "consumer")


class InstallTest(processes.TestCase):
    def setUp(self):
        super().setUp()
        installed = os.path.join(self.folder, "installed")
        self.prefix = os.path.join(self.folder, "moved", "coordd")
        self.run_ok("cmake", "--install", processes.BUILD, "--prefix", installed)
        os.makedirs(os.path.dirname(self.prefix))
        os.rename(installed, self.prefix)

    def run_ok(self, *command, **more):
        run = subprocess.run(command, capture_output=True, text=True, env=processes.clean_environment(**more),
                             timeout=processes.PATIENCE_S * 2)
        self.assertEqual(run.returncode, 0, f"{command}\n{run.stdout}{run.stderr}")
        return run.stdout

    def assert_runs(self, consumer):
        text = self.run_ok(f"{self.prefix}/bin/coordrun", "-np", "3", "--no-prefix", "--", consumer)
        self.assertEqual(text.count("sum of ranks 3, ranks 3, version 0.1"), 3, text)

    def test_find_package(self):
        build = os.path.join(self.folder, "build")
        self.run_ok("cmake", "-S", SOURCES, "-B", build, "-G", "Ninja", f"-DCMAKE_PREFIX_PATH={self.prefix}")
        self.run_ok("cmake", "--build", build)
        self.assert_runs(f"{build}/consumer")

    def test_pkg_config(self):
        if not shutil.which("pkg-config"):
            self.skipTest("no pkg-config here")
        flags = self.run_ok("pkg-config", "--cflags", "--libs", "coordd",
                            PKG_CONFIG_PATH=f"{self.prefix}/lib/pkgconfig").split()
        self.assertTrue(all(processes.BUILD not in flag for flag in flags), flags)
        consumer = os.path.join(self.folder, "consumer")
        self.run_ok("g++", "-std=c++17", f"{SOURCES}/main.cc", "-o", consumer, *flags, f"-Wl,-rpath,{self.prefix}/lib")
        self.assert_runs(consumer)

    def test_installs_no_more_than_it_says(self):
        self.assertEqual(sorted(os.listdir(self.prefix)), ["bin", "include", "lib", "share"])
        self.assertEqual(sorted(os.listdir(self.prefix + "/bin")), ["coordctl", "coordd", "coordd-relay", "coordd-worker",
                                                                 "coordrun"])
        self.assertEqual(sorted(os.listdir(self.prefix + "/lib")), ["cmake", "libcoordd.so", "libcoordd.so.0", "libcoordd.so.0.1.0",
                                                                    "libcoordd_tensorflow.so", "pkgconfig"])
        self.assertEqual(sorted(os.listdir(self.prefix + "/include/coordd")), [
            "collectives.h", "comm.h", "comm.hpp", "coordd.h", "coordd.hpp", "leaving.h", "memory.h", "process_sets.h", "process_sets.hpp",
            "store.h", "store.hpp", "tensors.hpp"])


if __name__ == "__main__":
    processes.main()
