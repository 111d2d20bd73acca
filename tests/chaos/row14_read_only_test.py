"""Row 14: the file system under the state becomes read-only.

Injected: coordd's state is on an ext4 of its own, which the kernel makes read-only while coordd has its files open, as it does
after an error of the disk. Observed: the job that runs goes on, every result exact; a job that is new does not form and the
status says why; a coordd that is started on that state later, when it can be written again, knows the job.
"""

import os
import shutil
import signal
import subprocess
import sys
import unittest

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))

from tests.chaos import elastic
from tests.support import processes
from tests.support.processes import ScriptedWorker

# $0 is the image, $1 where it is mounted, in a mount namespace of its own; the rest is what to run there.
ON_ITS_OWN_DISK = ["unshare", "--mount", "--propagation", "private", "sh", "-c",
                   'mount -o loop,errors=remount-ro "$0" "$1" && chmod 700 "$1" && shift && exec "$@"']


def why_not():
    if os.geteuid() != 0:
        return "mounting a disk needs root"
    if shutil.which("mkfs.ext4") is None:
        return "no mkfs.ext4 here"
    with open("/proc/filesystems", encoding="ascii") as known:
        if "ext4" not in known.read() or not os.path.exists("/dev/loop-control"):
            return "this kernel has no ext4 or no loop devices"
    return None


@unittest.skipIf(why_not(), why_not())
class ReadOnlyTest(elastic.TestCase):
    def disk(self, coordd):
        """Where the kernel takes errors for the disk that this coordd has mounted, and no other process."""
        with open(f"/proc/{coordd.pid}/mounts", encoding="ascii") as mounts:
            device, = [line.split()[0] for line in mounts if line.split()[1] == self.state]
        return f"/sys/fs/ext4/{os.path.basename(device)}/trigger_fs_error"

    def test_the_running_job_goes_on(self):
        image, self.state = os.path.join(self.folder, "image"), os.path.join(self.folder, "disk")
        os.mkdir(self.state)
        with open(image, "wb") as file:
            file.truncate(16 << 20)
        subprocess.run(["mkfs.ext4", "-q", "-F", image], check=True)
        store = ("--store", f"sqlite:{os.path.join(self.state, 'state')}")
        wrapper = [*ON_ITS_OWN_DISK, image, self.state]
        probe = subprocess.run([*wrapper, "true"], capture_output=True, check=False)
        if probe.returncode != 0:
            self.skipTest(f"no loop device to be had: {probe.stderr.decode()}")
        coordd = self.coordd(*store, wrapper=wrapper)
        workers = self.workers(coordd, 2)
        with open(self.disk(coordd), "w", encoding="ascii") as trigger:
            trigger.write("1")
        late = self.start(ScriptedWorker(coordd.listen, COORDD_JOB_ID="late", COORDD_MAX_WORKERS=1, COORDD_JOIN_TIMEOUT=30))
        self.assertTrue(self.wait_for(lambda: coordd.metric("coordd_state_writable") == 0), coordd.text())
        self.assertIn("read", coordd.json("/v1/jobs")["store_error"].lower() + coordd.text().lower())
        self.assertEqual(late.place, {})
        for worker in workers:
            worker.tell("train grad 1000 50")
        for worker in workers:
            self.assertEqual(self.changes(worker), ([], ("ok", "50", "1", "2")))
        coordd.signal(signal.SIGKILL)
        coordd.wait()
        again = self.coordd(*store, wrapper=wrapper, listen=coordd.listen)
        for worker in workers:
            worker.tell("train more 1000 50")
        for worker in workers:
            self.assertEqual(self.changes(worker), ([], ("ok", "50", "1", "2")))
        self.assertEqual(again.json("/v1/jobs")["epoch"], 2)


if __name__ == "__main__":
    processes.main()
