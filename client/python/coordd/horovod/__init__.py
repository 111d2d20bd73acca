"""Horovod's name for coordd: scripts that say ``import horovod.torch as hvd`` run unchanged.

    python -m coordd.horovod train.py            # this process, as coordrun or srun start it
    coordrun --horovod -np 4 -- python train.py

or install() before the script's imports. ``horovod.torch`` is then the module coordd.torch itself, and so are horovod.tensorflow,
horovod.tensorflow.keras and horovod.keras coordd's. Other parts of Horovod (mxnet, spark, ray) are not in this version: importing them is
an ImportError that says so.
"""

import importlib
import importlib.abc
import importlib.util
import os
import sys

from coordd.horovod.runner import run

__all__ = ["install", "run", "__version__", "SEARCH_PATH"]

__version__ = "0.28.1"  # of the interface: scripts compare it

# A folder with a package `horovod` that does install(), for PYTHONPATH: processes that a script starts find it there.
SEARCH_PATH = os.path.join(os.path.dirname(os.path.abspath(__file__)), "path")

# The module behind a name; names below it follow. The longest one counts.
_MODULES = {
    "horovod": "coordd.horovod",
    "horovod.torch": "coordd.torch",
    "horovod.tensorflow": "coordd.tensorflow",
    "horovod.keras": "coordd.keras",
    "horovod.common.elastic": "coordd.elastic",
    "horovod.common.exceptions": "coordd.exceptions",
    "horovod.common.process_sets": "coordd.process_sets",
}
_ABSENT = ("mxnet", "spark", "ray", "_keras")


def _target(name: str) -> str:
    known = max((known for known in _MODULES if name == known or name.startswith(known + ".")), key=len)
    return _MODULES[known] + name[len(known):]


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Gives modules of coordd a second name."""

    def find_spec(self, name, path=None, target=None):
        del path, target
        if name != "horovod" and not name.startswith("horovod."):
            return None
        part = name.split(".")[1] if "." in name else ""
        if part in _ABSENT:
            raise ModuleNotFoundError(f"{name}: this version of coordd has horovod.torch, horovod.tensorflow and horovod.keras only", name=name)
        if importlib.util.find_spec(_target(name)) is None:
            raise ModuleNotFoundError(f"{name}: coordd has no such part of Horovod", name=name)
        return importlib.util.spec_from_loader(name, self)

    def create_module(self, spec):
        module = importlib.import_module(_target(spec.name))
        spec.loader_state = module.__spec__  # the import system puts `spec` in its place: see exec_module
        return module

    def exec_module(self, module):
        if module.__spec__.loader_state is not None:
            module.__spec__ = module.__spec__.loader_state


def install() -> None:
    """Makes ``import horovod`` find coordd in this process, and in those that multiprocessing spawns from it. ImportError:
    Horovod itself is imported already."""
    ours = sys.modules[__name__]
    imported = sys.modules.get("horovod")
    if imported is not None and imported is not ours and not getattr(imported, "_is_coordd", False):
        raise ImportError("coordd.horovod: Horovod itself is imported already, from "
                          f"{getattr(imported, '__file__', 'nowhere')}; expected install() before it")
    sys.modules["horovod"] = ours
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())
    if SEARCH_PATH not in sys.path:  # which spawned processes inherit
        sys.path.insert(1, SEARCH_PATH)
