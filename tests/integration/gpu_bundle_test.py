"""The archive of tools/gpu-bundle, unpacked elsewhere: its tests/gpu/run over the stand-ins of CUDA's driver and NCCL."""

import os
import re
import shutil
import subprocess
import tarfile
import tempfile
import unittest

from tests.integration.gpu_run_test import GpuRunCase
from tests.support import processes


@unittest.skipIf(processes.SANITIZED, "a bundle is made of a release")
@unittest.skipUnless(shutil.which("patchelf"), "no patchelf here: tools/install-deps --test")
@unittest.skipUnless(processes.is_built("coordd-bench"), "this build has no coordd-bench")
class GpuBundleTest(GpuRunCase):
    """Unpacked elsewhere, where neither the build nor its libraries can be read."""

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.place = tempfile.mkdtemp(prefix="coordd-test-")
        cls.addClassCleanup(shutil.rmtree, cls.place, ignore_errors=True)
        cls.archive = os.path.join(cls.place, "gpu.tgz")
        cls.said = subprocess.run([os.path.join(processes.ROOT, "tools", "gpu-bundle"), "--build", processes.BUILD, "--output", cls.archive,
                                   "--fakes"], check=True, stdout=subprocess.PIPE, text=True).stdout
        with tarfile.open(cls.archive) as tar:
            tar.extractall(cls.place)
        cls.build = os.path.join(cls.place, "coordd-gpu", "build")
        cls.run_script = os.path.join(cls.place, "coordd-gpu", "tests", "gpu", "run")

    def test_it_is_small_enough_to_be_carried(self):
        self.assertLess(os.path.getsize(self.archive), 60 << 20)

    def test_what_it_needs_of_the_system_is_said(self):
        asked = {"GLIBC": set(), "GLIBCXX": set()}
        for folder, _, names in os.walk(self.build):
            for path in (os.path.join(folder, name) for name in names):
                headers = subprocess.run(["objdump", "-p", path], capture_output=True, text=True).stdout
                for family, version in re.findall(r"(?m)^\s+0x\w+ 0x\w+ \d+ (GLIBC|GLIBCXX)_([\d.]+)$", headers):
                    asked[family].add(tuple(map(int, version.split("."))))
        glibc, libstdcxx = (".".join(map(str, max(versions))) for versions in asked.values())
        self.assertIn(f"It needs glibc {glibc} and a libstdc++ that has GLIBCXX_{libstdcxx}, or later ones.\n", self.said)
        # None of the two is inside, where one from another system could take the system's place.
        inside = os.listdir(os.path.join(self.build, "lib"))
        self.assertEqual([name for name in inside if name.startswith(("libc.so", "libstdc++", "libgcc_s"))], [])

    def test_its_programs_find_what_they_need_inside(self):
        for folder in ("bin", "tests", "bench"):
            for name in os.listdir(os.path.join(self.build, folder)):
                path = os.path.join(self.build, folder, name)
                resolved = subprocess.run(["ldd", path], capture_output=True, text=True, env={"PATH": "/usr/bin:/bin"}).stdout
                self.assertNotIn("not found", resolved, path)
                self.assertNotIn(processes.BUILD, resolved, path)
                for library in re.findall(r"(?m)^\s*(lib(?:grpc|protobuf|absl|coordd)\S*) => (?!.*/coordd-gpu/).*$", resolved):
                    self.fail(f"{path} finds {library} elsewhere")

    def test_its_stages_run(self):
        wrapper = ()
        if os.geteuid() == 0:
            hide = "\n".join(f"mount -t tmpfs none {processes.BUILD}/{folder}" for folder in ("bin", "lib", "tests"))
            wrapper = ("unshare", "--mount", "bash", "-euc", hide + '\ncd /\nexec "$@"', "bash")  # pyenv's python3 wants a folder that is there
        status, text = self.gpu_run("--stages", "facts driver-probe nccl-probe kernels collectives torch bench-1 nvml", "--quiet",
                                    wrapper=wrapper, MAX_BYTES=4096)
        self.assertEqual(status, 0, text)
        self.assertEqual(set(self.results().values()), {"passed"}, text)
        self.assertIn("bench-1: one rank: NCCL launches nothing", text)


if __name__ == "__main__":
    processes.main()
