"""The packages of tools/build-deb: lintian finds no error, and they install and work in a new Debian 12 in which nothing else is.

Not among the tests of every day: COORDD_TEST_DEB=1 (tools/test --stage deb). It needs root, debootstrap and a mirror of Debian
($COORDD_DEBIAN_MIRROR, else deb.debian.org), or a folder of debootstrap's in $COORDD_DEBIAN_ROOT, which is copied.
"""

import glob
import os
import shutil
import subprocess
import unittest

from tests.support import processes

MIRROR = os.environ.get("COORDD_DEBIAN_MIRROR", "http://deb.debian.org/debian")
TOOLS = ("dh", "lintian", "help2man", "patchelf", "debootstrap")
# /usr/bin is where debhelper's own Python is: a Python of another folder has no packages of Debian's.
SYSTEM_PATH = "/usr/sbin:/usr/bin:/sbin:/bin"
PROGRAM = """
import coordd.torch.distributed as ours
import importlib.metadata
print("backend", [one.value for one in importlib.metadata.entry_points(group="torch.distributed.backends")])
"""
# What a user of each package does first.
STEPS = """
set -eu
export DEBIAN_FRONTEND=noninteractive
apt-get update -q >/dev/null
apt-get install -q -y --no-install-recommends /debs/*.deb libucx0 g++ pkgconf >/dev/null
coordrun -np 2 -- coordd-worker allreduce
coordrun -np 2 --node-sessions on -- coordd-worker selftest
coordctl check-build
python3 -c 'import coordd; print(coordd.check_build())'
printf '#include <coordd/coordd.hpp>\\nint main() { return coordd_abi_version() > 0 ? 0 : 1; }\\n' >/tmp/try.cc
g++ -std=c++17 /tmp/try.cc $(pkg-config --cflags --libs coordd) -o /tmp/try
/tmp/try
for program in coordd coordd-relay coordd-worker coordrun coordctl; do
  test -e /usr/share/man/man1/$program.1.gz || grep -q path-exclude /etc/dpkg/dpkg.cfg.d/* 2>/dev/null
  bash -n /usr/share/bash-completion/completions/$program
done
test -e /usr/share/coordd/RUNBOOK.md -a -e /usr/share/coordd/SECURITY.md -a -e /usr/share/coordd/deploy/prometheus/coordd-alerts.yml
test -e /lib/systemd/system/coordd.service
apt-get remove -q -y coordd libcoordd0 libcoordd-dev python3-coordd >/dev/null
test ! -e /usr/bin/coordd
echo all is well
"""


def missing():
    if not os.environ.get("COORDD_TEST_DEB"):
        return "COORDD_TEST_DEB is not set"
    if os.getuid() != 0:
        return "not root"
    return next((f"no {tool}" for tool in TOOLS if not shutil.which(tool, path=SYSTEM_PATH)), None)


@unittest.skipIf(missing(), f"{missing()}: tools/test --stage deb")
class DebTest(processes.TestCase):
    def test_lintian_has_no_error_and_a_new_debian_runs_them(self):
        debs = os.path.join(self.folder, "debs")
        built = subprocess.run([os.path.join(processes.ROOT, "tools", "build-deb"), "--build", processes.BUILD, "--output", debs],
                               env={**os.environ, "PATH": SYSTEM_PATH}, capture_output=True, text=True, check=False)
        self.assertEqual(built.returncode, 0, built.stdout + built.stderr)
        names = sorted(os.path.basename(path).split("_")[0] for path in glob.glob(debs + "/*.deb"))
        self.assertEqual(names, ["coordd", "libcoordd-dev", "libcoordd0", "python3-coordd"])
        said = subprocess.run(["lintian", "--fail-on", "error", *glob.glob(debs + "/*.deb")], capture_output=True, text=True, check=False)
        self.assertEqual(said.returncode, 0, said.stdout)

        page = subprocess.run(["sh", "-c", 'dpkg-deb --fsys-tarfile "$1"/coordd_*.deb | tar -xO ./usr/share/man/man1/coordctl.1.gz | gunzip',
                               "sh", debs], capture_output=True, text=True, check=True).stdout
        self.assertIn("coordctl drain", page.replace("\\", ""))
        self.assertIn("--grace", page.replace("\\", ""), "the page has the options of subcommands")

        root = os.path.join(self.folder, "root")
        made = os.environ.get("COORDD_DEBIAN_ROOT")
        command = ["cp", "-a", made, root] if made else ["debootstrap", "--variant=minbase", "bookworm", root, MIRROR]
        subprocess.run(command, env={**os.environ, "PATH": SYSTEM_PATH}, check=True, stdout=subprocess.DEVNULL)
        shutil.copytree(debs, os.path.join(root, "debs"))
        shutil.copy("/etc/resolv.conf", os.path.join(root, "etc", "resolv.conf"))
        # A mount namespace of its own: whatever happens, nothing stays mounted.
        run = subprocess.run(["unshare", "--mount", "--pid", "--fork", "sh", "-c",
                              'mount -t proc proc "$1/proc" && mount -t tmpfs tmpfs "$1/dev/shm" 2>/dev/null; '
                              'exec chroot "$1" /bin/bash -c "$2"', "sh", root, STEPS],
                             env={"PATH": SYSTEM_PATH, "HOME": "/root", "LC_ALL": "C.UTF-8",
                                  **{name: value for name, value in os.environ.items() if name.endswith("_proxy")}},
                             capture_output=True, text=True, timeout=1200, check=False)
        self.assertEqual(run.returncode, 0, run.stdout[-6000:] + run.stderr[-6000:])
        self.assertIn("all is well", run.stdout)


if __name__ == "__main__":
    processes.main()
