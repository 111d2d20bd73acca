"""What coordd raises.

Names and bases are Horovod's where Horovod has them, so that a script's ``except`` clauses keep their meaning:

=============================  ===========================================  ====================================
class                          is also a                                    raised when
=============================  ===========================================  ====================================
HorovodInternalError           CoorddError, RuntimeError                    a collective failed, a rank was lost,
                                                                            or coordd is not initialised
InvalidArgumentError           CoorddError, ValueError                      the call itself is wrong: nothing was
                                                                            submitted
UnsupportedError               CoorddError, NotImplementedError             this version cannot do it
HostsUpdatedInterrupt          RuntimeError                                 the members of the job have changed
HorovodVersionMismatchError    ImportError                                  versions that do not fit together
=============================  ===========================================  ====================================
"""

import re
from typing import Optional

__all__ = ["CoorddError", "HorovodInternalError", "InvalidArgumentError", "UnsupportedError",
           "HostsUpdatedInterrupt", "HorovodVersionMismatchError", "get_version_mismatch_message"]

_RANK = re.compile(r"\brank (\d+)\b")
_GENERATION = re.compile(r"\bgeneration (\d+)\b")
_TENSOR = re.compile(r"\btensor (\S+?):? ")


class CoorddError(RuntimeError):
    """Base of what coordd raises. ``str(error)`` is one sentence that says what happened.

    code:       name of the status, e.g. ``"ABORTED"``; the numbers' meanings are in coordd.h
    rank:       the first rank that the sentence names, or None
    tensor:     name of the tensor, e.g. ``"allreduce.layer1.weight"``, or None
    generation: the membership in which it happened, or None
    """

    def __init__(self, message: str, code: str = "UNKNOWN", rank: Optional[int] = None,
                 tensor: Optional[str] = None, generation: Optional[int] = None):
        super().__init__(message)
        self.code = code
        self.rank = _number(_RANK, message) if rank is None else rank
        self.generation = _number(_GENERATION, message) if generation is None else generation
        named = _TENSOR.search(message) if tensor is None else None
        self.tensor = named.group(1) if named else tensor


class HorovodInternalError(CoorddError):
    """A collective did not come to its result, or coordd is not there to run it. Elastic programs catch it."""


class InvalidArgumentError(CoorddError, ValueError):
    """A wrong argument: nothing was submitted. If the call has no name it fails on the other ranks that make it, with this
    sentence; if it has one they wait for this rank, which may repeat it."""


class UnsupportedError(CoorddError, NotImplementedError):
    """Something that this version of coordd does not do."""


class HostsUpdatedInterrupt(RuntimeError):
    """The members of an elastic job have changed; ``skip_sync``: the survivors' states are still equal."""

    def __init__(self, skip_sync: bool = False):
        super().__init__("the members of the job have changed")
        self.skip_sync = skip_sync


def get_version_mismatch_message(name: str, version: str, installed_version: str) -> str:
    """The sentence of HorovodVersionMismatchError."""
    return f"coordd was made for {name} {version}, but {name} {installed_version} is installed"


class HorovodVersionMismatchError(ImportError):
    """Two parts whose versions do not fit together."""

    def __init__(self, name: str, version: str, installed_version: str):
        super().__init__(get_version_mismatch_message(name, version, installed_version))
        self.name = name
        self.version = version
        self.installed_version = installed_version


def _number(pattern, message: str) -> Optional[int]:
    found = pattern.search(message)
    return int(found.group(1)) if found else None
