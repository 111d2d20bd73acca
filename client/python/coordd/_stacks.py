"""Where this process's threads are, for coordd, when others have waited for this rank for too long.

faulthandler writes their stacks into a file in memory when the library signals the process: that needs no lock of the
interpreter's, so that a call that never returns and keeps the lock does not matter. Nothing happens while nothing stalls.
"""

import faulthandler
import os
import signal
from typing import Dict, Optional

# The signal's number; 0: none, and nobody is told. Without it, one that nothing else handles by default.
SIGNAL_VARIABLE = "COORDD_STACK_SIGNAL"

_registered: Optional[Dict[str, int]] = None


def options() -> Dict[str, int]:
    """Members of coordd_options_t. ValueError: the variable."""
    global _registered
    if _registered is None:
        _registered = _register(_signal_number())
    return _registered


def _signal_number() -> int:
    given = os.environ.get(SIGNAL_VARIABLE, "")
    if not given:
        return signal.SIGRTMAX - 4
    if given == "0" or given.isdigit() and int(given) in signal.valid_signals():
        return int(given)
    raise ValueError(f"{SIGNAL_VARIABLE}: \"{given}\", expected a signal's number, or 0 for none")


def _register(number: int) -> Dict[str, int]:
    if number == 0 or _is_handled(number):
        return {}
    file = os.memfd_create("coordd-stacks")
    try:
        faulthandler.register(number, file=file, all_threads=True, chain=False)
    except (OSError, RuntimeError) as error:  # SIGKILL, SIGSEGV and the like
        os.close(file)
        raise ValueError(f'{SIGNAL_VARIABLE}: "{number}", expected a signal that a program can handle and that is no error, or 0 for '
                         f"none: {error}") from None
    return {"stack_signal": number, "stack_fd": file}


def _is_handled(number: int) -> bool:
    """By the program, in whatever language."""
    with open("/proc/self/status", encoding="ascii") as status:
        for line in status:
            name, _, mask = line.partition(":")
            if name in ("SigCgt", "SigIgn") and int(mask, 16) >> (number - 1) & 1:
                return True
    return False
