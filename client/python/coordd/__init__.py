"""coordd: coordination and collectives for distributed training.

``import coordd.torch as hvd`` is the interface for PyTorch, with the names of Horovod's. This package itself imports no
framework, and loads libcoordd.so when it is first needed.
"""

from typing import TYPE_CHECKING, Any

from coordd._version import __version__
from coordd.exceptions import CoorddError, HorovodInternalError, HostsUpdatedInterrupt

__all__ = ["__version__", "CoorddError", "HorovodInternalError", "HostsUpdatedInterrupt", "check_build", "run"]

if TYPE_CHECKING:
    from coordd._function_run import run


def __getattr__(name: str) -> Any:
    """run(), which needs modules that no rank of a job has any use for."""
    if name == "run":
        from coordd._function_run import run
        return run
    raise AttributeError(f"module 'coordd' has no attribute {name!r}")


def check_build() -> str:
    """A line for each component of libcoordd.so: what it was built with, and what it has found here."""
    from coordd import _library
    library = _library.library()
    library.show_environment()
    return library.quick.coordd_check_build(0).decode()
