"""What is built looks for no library in the folder in which its user happens to be: an empty name in a RUNPATH means that one."""

import glob
import os
import re
import shutil
import subprocess
import tempfile
import unittest

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..")
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

    @unittest.skipUnless(shutil.which("cmake"), "no cmake here")
    def test_holds_whatever_folders_the_user_gives_cmake(self):
        own = ["$ORIGIN/../lib", "$ORIGIN/../../../../a/longer/one/lib"]
        for build, install in (("", ""), ("/opt/b", ""), ("", "/opt/i"), ("/opt/b;;/opt/c", "/opt/i;;/opt/j")):
            with self.subTest(build=build, install=install), tempfile.TemporaryDirectory() as folder:
                with open(f"{folder}/CMakeLists.txt", "w", encoding="ascii") as file:
                    file.write("cmake_minimum_required(VERSION 3.16)\nproject(small C)\n"
                               f"include({os.path.abspath(ROOT)}/cmake/CoorddLooksIn.cmake)\n"
                               "add_library(part SHARED part.c)\nadd_executable(whole whole.c)\ntarget_link_libraries(whole part)\n"
                               f"coordd_looks_in(whole {' '.join(own)})\ninstall(TARGETS whole DESTINATION bin)\n".replace("$", "\\$"))
                for name, text in (("part", "int part(void) { return 0; }"), ("whole", "int part(void); int main(void) { return part(); }")):
                    with open(f"{folder}/{name}.c", "w", encoding="ascii") as file:
                        file.write(text + "\n")
                for command in (["-S", folder, "-B", f"{folder}/b", f"-DCMAKE_BUILD_RPATH={build}", f"-DCMAKE_INSTALL_RPATH={install}"],
                                ["--build", f"{folder}/b"], ["--install", f"{folder}/b", "--prefix", f"{folder}/p"]):
                    said = subprocess.run(["cmake", *command], check=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT).stdout
                    if "-S" in command:
                        self.assertEqual(b"CMAKE_BUILD_RPATH is set" in said, build != "", said)
                builds = [path for path in build.split(";") if path]
                installs = own + [path for path in install.split(";") if path]
                (built,), (installed,) = runpath(f"{folder}/b/whole"), runpath(f"{folder}/p/bin/whole")
                self.assertEqual(installed.split(":"), installs)
                for path in builds + installs:
                    self.assertIn(path, built.split(":"))
                # There CMake ends the list with a colon, which is said.
                self.assertEqual(built.split(":").count(""), 1 if build else 0, built)


if __name__ == "__main__":
    unittest.main()
