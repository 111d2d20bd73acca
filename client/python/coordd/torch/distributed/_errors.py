"""What a group raises: DistBackendError with coordd's sentence, which names rank, host and cause."""

import re
from typing import Optional

import torch.distributed as dist

from coordd import _library, _native

# What coordd says of a member that has ended otherwise than by leaving.
LOST = re.compile(r"\brank (\d+) \(host [^)]*\) (?:was lost|failed)")
_DEADLINE_EXCEEDED = _library.STATUS["DEADLINE_EXCEEDED"]


def backend_error(status: int, timeout_s: Optional[float] = None) -> Exception:
    """For a call of this thread that has just failed."""
    name = _native._status_name(status)
    sentence = _library.library().last_error() or name
    if status == _DEADLINE_EXCEEDED and timeout_s is not None:
        sentence = f"the timeout of {timeout_s:g} s is over: {sentence}"
    return dist.DistBackendError(f"coordd: {sentence} [{name}]")  # type: ignore[attr-defined]


def as_backend_error(error: BaseException, timeout_s: Optional[float] = None) -> Exception:
    """The same for what the package itself has raised."""
    code = getattr(error, "code", "UNKNOWN")
    over = "" if code != "DEADLINE_EXCEEDED" or timeout_s is None else f"the timeout of {timeout_s:g} s is over: "
    return dist.DistBackendError(f"coordd: {over}{error} [{code}]")  # type: ignore[attr-defined]
