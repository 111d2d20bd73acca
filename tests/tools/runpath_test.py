"""What is built looks for no library in the folder in which its user happens to be: an empty name in a RUNPATH means that one."""

import glob
import os
import re
import shutil
import subprocess
import unittest

BUILD = os.environ.get("COORDD_BUILD", os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "build"))


def runpath(file):
    found = subprocess.run(["readelf", "-d", file], stdout=subprocess.PIPE, check=True, universal_newlines=True).stdout
    return re.findall(r"\((?:RUNPATH|RPATH)\).*\[(.*)\]", found)


@unittest.skipUnless(shutil.which("readelf"), "no readelf here")
class Runpath(unittest.TestCase):

    def test_names_no_folder_of_the_user(self):
        files = [file for kind in ("bin/*", "lib/*.so*") for file in glob.glob(os.path.join(BUILD, kind)) if not os.path.islink(file)]
        self.assertIn("coordrun", [os.path.basename(file) for file in files], BUILD)
        for file in files:
            for path in runpath(file):
                for folder in path.split(":"):
                    self.assertRegex(folder, r"^(/|\$ORIGIN)", f"{file} looks for libraries in [{path}]")


if __name__ == "__main__":
    unittest.main()
