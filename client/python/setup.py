"""Puts libcoordd.so into the package that is installed, so that it finds the library wherever it lies.

    pip install ./client/python     takes library and programs of build/, which work on machines like this one
    tools/build-wheel               gives COORDD_WHEEL_FOLDER: a folder whose lib/ and bin/ go into the package as they are, and
                                    COORDD_WHEEL_PLATFORM, where it works: manylinux_2_27_x86_64

Without either, the package is installed alone and looks for the library when it runs (coordd/_library.py).
"""

import os
import shlex
import shutil

from setuptools import Distribution, setup
from setuptools.command.build_py import build_py

try:
    from setuptools.command.bdist_wheel import bdist_wheel  # setuptools 70.1 and later
except ImportError:
    from wheel.bdist_wheel import bdist_wheel

HERE = os.path.dirname(os.path.abspath(__file__))
BUILD = os.path.join(HERE, "..", "..", "build")
BUILT = os.path.join(BUILD, "lib", "libcoordd.so.0")
FOR_TENSORFLOW = os.path.join(BUILD, "lib", "libcoordd_tensorflow.so")
PROGRAMS = ("coordd", "coordd-relay", "coordrun", "coordctl", "coordd-worker")
PREPARED = os.environ.get("COORDD_WHEEL_FOLDER")
PLATFORM = os.environ.get("COORDD_WHEEL_PLATFORM")


def refuse_half_a_build():
    """A package without coordrun would be found out later, and far from here."""
    if not os.path.exists(os.path.join(BUILD, "CMakeCache.txt")):
        return
    wanted = [BUILT, *(os.path.join(BUILD, "bin", program) for program in PROGRAMS)]
    missing = [os.path.relpath(one, BUILD) for one in wanted if not os.path.exists(one)]
    if missing:
        # pip runs this in client/python, where nobody who reads it is.
        build = os.path.abspath(BUILD)
        raise SystemExit(f"coordd: {build} is not built to the end: it lacks {', '.join(missing)}; run "
                         f"`cmake --build {shlex.quote(build)}`, then install again")


class BuildWithLibrary(build_py):

    def run(self):
        super().run()
        if getattr(self, "editable_mode", False):
            return
        package = os.path.join(self.build_lib, "coordd")
        if not PREPARED:
            refuse_half_a_build()
        if PREPARED:
            for part in ("lib", "bin"):
                shutil.copytree(os.path.join(PREPARED, part), os.path.join(package, part), dirs_exist_ok=True)
        elif os.path.exists(BUILT):
            for part in ("lib", "bin"):
                os.makedirs(os.path.join(package, part), exist_ok=True)
            shutil.copy(BUILT, os.path.join(package, "lib", "libcoordd.so.0"))
            if os.path.exists(FOR_TENSORFLOW):
                shutil.copy(FOR_TENSORFLOW, os.path.join(package, "lib", "libcoordd_tensorflow.so"))
            for program in PROGRAMS:
                shutil.copy(os.path.join(BUILD, "bin", program), os.path.join(package, "bin", program))


class ForThisMachine(Distribution):
    """A library is for one kind of machine."""

    def has_ext_modules(self):
        return bool(PREPARED) or os.path.exists(BUILT)


class WheelForEveryPython(bdist_wheel):
    """Nothing is compiled against Python."""

    def get_tag(self):
        return ("py3", "none", PLATFORM or super().get_tag()[2])


setup(distclass=ForThisMachine, cmdclass={"build_py": BuildWithLibrary, "bdist_wheel": WheelForEveryPython})
