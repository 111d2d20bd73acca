"""Puts libcoordd.so into the package that is installed, so that it finds the library wherever it lies.

    pip install ./client/python     takes the library of build/, which works on machines like this one
    tools/build-wheel               gives COORDD_WHEEL_FOLDER: a folder whose lib/ and bin/ go into the package as they are

Without either, the package is installed alone and looks for the library when it runs (coordd/_library.py).
"""

import os
import shutil

from setuptools import setup
from setuptools.command.build_py import build_py

try:
    from setuptools.command.bdist_wheel import bdist_wheel  # setuptools 70.1 and later
except ImportError:
    from wheel.bdist_wheel import bdist_wheel

HERE = os.path.dirname(os.path.abspath(__file__))
BUILT = os.path.join(HERE, "..", "..", "build", "lib", "libcoordd.so.0")
PREPARED = os.environ.get("COORDD_WHEEL_FOLDER")


class BuildWithLibrary(build_py):

    def run(self):
        super().run()
        if getattr(self, "editable_mode", False):
            return
        package = os.path.join(self.build_lib, "coordd")
        if PREPARED:
            for part in ("lib", "bin"):
                shutil.copytree(os.path.join(PREPARED, part), os.path.join(package, part), dirs_exist_ok=True)
        elif os.path.exists(BUILT):
            os.makedirs(os.path.join(package, "lib"), exist_ok=True)
            shutil.copy(BUILT, os.path.join(package, "lib", "libcoordd.so.0"))


class WheelForThisMachine(bdist_wheel):
    """One wheel for every Python, since nothing is compiled against it; the library is for one kind of machine."""

    def finalize_options(self):
        super().finalize_options()
        self.root_is_pure = not (PREPARED or os.path.exists(BUILT))

    def get_tag(self):
        return ("py3", "none", super().get_tag()[2])


setup(cmdclass={"build_py": BuildWithLibrary, "bdist_wheel": WheelForThisMachine})
