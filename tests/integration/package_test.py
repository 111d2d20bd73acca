"""The tarball of tools/package, unpacked elsewhere, with the system's copies of what it bundles out of reach."""

import ctypes
import glob
import os
import shutil
import subprocess
import tarfile
import unittest

from tests.support import processes

# What the package leaves to the system: the run-time libraries of C and C++, and the drivers of RDMA cards.
FROM_SYSTEM = ("linux-vdso", "ld-linux", "/lib64/ld-linux", "libc.so", "libm.so", "libdl.so", "librt.so", "libpthread.so",
               "libresolv.so", "libstdc++.so", "libgcc_s.so", "libibverbs.so", "librdmacm.so", "libmlx", "libnl-")


@unittest.skipUnless(shutil.which("patchelf"), "no patchelf here: tools/install-deps --test")
class PackageTest(processes.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.dist = os.path.join(processes.BUILD, "dist-test")
        shutil.rmtree(cls.dist, ignore_errors=True)
        cls.said = subprocess.run([os.path.join(processes.ROOT, "tools", "package"), "--build", processes.BUILD,
                                   "--output", cls.dist], capture_output=True, text=True, check=True).stdout
        cls.tarball, = glob.glob(cls.dist + "/*.tar.xz")
        cls.addClassCleanup(shutil.rmtree, cls.dist, ignore_errors=True)
        with tarfile.open(cls.tarball) as tar:
            tar.extractall(cls.dist)
        cls.prefix, = (path for path in glob.glob(cls.dist + "/coordd-*") if os.path.isdir(path))

    def libraries(self):
        return [path for path in glob.glob(self.prefix + "/lib/**/*.so*", recursive=True) if not os.path.islink(path)]

    def test_says_how_large_it_is_and_which_glibc_it_needs(self):
        self.assertRegex(self.said, r"oldest glibc: 2\.\d+")
        self.assertLess(os.path.getsize(self.tarball), 40 << 20)

    def test_needs_nothing_else_of_the_system(self):
        for path in glob.glob(self.prefix + "/bin/*") + self.libraries():
            resolved = subprocess.run(["ldd", path], capture_output=True, text=True, env={"PATH": "/usr/bin:/bin"}).stdout
            for line in resolved.splitlines():
                name = line.split()[0]
                if "=>" in line and not name.startswith(FROM_SYSTEM):
                    self.assertIn(self.dist, line.split("=>")[1], f"{path} finds {name} elsewhere")

    def test_bundled_libraries_have_no_process_wide_symbols(self):
        tool = os.path.join(processes.ROOT, "tools", "elf_unique.py")
        run = subprocess.run([tool, "--count", *self.libraries()], capture_output=True, text=True)
        self.assertEqual(run.returncode, 0, run.stdout)

    def test_brings_the_licences_of_what_is_inside(self):
        share = self.prefix + "/share/coordd"
        self.assertTrue(os.path.exists(share + "/LICENSE"))
        licences = " ".join(os.listdir(share + "/licences"))
        for package in ("libgrpc", "libprotobuf", "libabsl", "libprometheus-cpp", "libucx"):
            self.assertIn(package, licences)

    def isolated(self, *command):
        """Runs a command where the build tree and the system's copies of the bundled libraries cannot be read."""
        hidden = [f"/usr/lib/x86_64-linux-gnu/{os.path.basename(path)}" for path in self.libraries()]
        script = [f"mount --bind /dev/null {path}" for path in hidden if os.path.exists(path)
                  and os.path.basename(path).startswith(("libgrpc", "libproto", "libabsl", "libuc", "libprom"))]
        for folder in ("bin", "lib"):
            script.append(f"mount -t tmpfs none {processes.BUILD}/{folder}")
        script.append('exec "$@"')
        return self.run_command("unshare", "--mount", "bash", "-euc", "\n".join(script), "bash", *command,
                                environment={"PATH": "/usr/bin:/bin", "HOME": self.folder}, seconds=170)

    def test_runs_the_selftest_with_four_ranks(self):
        command = [f"{self.prefix}/bin/coordrun", "-np", "4", "--", f"{self.prefix}/bin/coordd-worker", "selftest"]
        if os.geteuid() == 0:
            status, text = self.isolated(*command)
        else:
            status, text = self.run_command(*command, environment={"PATH": "/usr/bin:/bin"}, seconds=170)
        self.assertEqual(status, 0, text)
        self.assertIn("selftest passed", text)

    def test_brings_the_library_for_tensorflow(self):
        """Which is linked with what every system has, and with nothing of TensorFlow's."""
        library = ctypes.CDLL(self.prefix + "/lib/libcoordd_tensorflow.so")
        library.coordd_tensorflow_failure.restype = ctypes.c_char_p
        self.assertIn(b"this TensorFlow has no TF_", library.coordd_tensorflow_failure())

    def test_runs_the_example(self):
        example = f"{self.prefix}/share/coordd/examples/digits/digits"
        status, text = self.run_command(f"{self.prefix}/bin/coordrun", "-np", "2", "--", example, "--epochs", "2",
                                        environment={"PATH": "/usr/bin:/bin"})
        self.assertEqual(status, 0, text)
        self.assertIn("2 workers", text)

    def test_carries_ucx_with_its_modules(self):
        status, text = self.run_command(f"{self.prefix}/bin/coordctl", "check-build",
                                        environment={"PATH": "/usr/bin:/bin"})
        self.assertEqual(status, 0, text)
        if "[X] UCX" in text:
            self.assertTrue(os.path.exists(self.prefix + "/lib/ucx/libuct_cma.so.0"))
            on_nodes = f"export COORDD_NODE_ID=node$COORDD_LOCAL_RANK; exec {self.prefix}/bin/coordd-worker selftest"
            status, text = self.run_command(f"{self.prefix}/bin/coordrun", "-np", "2", "--", "/bin/sh", "-c", on_nodes,
                                            environment={"PATH": "/usr/bin:/bin", "COORDD_TRANSPORT": "ucx"}, seconds=170)
            self.assertEqual(status, 0, text)


if __name__ == "__main__":
    processes.main()
