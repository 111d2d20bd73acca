"""How this program ends, as far as the others are concerned: an error that nothing handles is no goodbye.

An uncaught exception of the main thread is told at once, by sys.excepthook, since the interpreter may wait for other threads for as
long as they like before it exits. With which status it exits nobody knows before it does: the goodbye of coordd_worker_leave_at_exit
waits for that.
"""

import os
import sys
import threading
import traceback
from typing import Callable, List, Optional

_PACKAGE = os.path.dirname(os.path.abspath(__file__)) + os.sep
_OF_CONTROL_FLOW = (StopIteration, StopAsyncIteration, GeneratorExit)

_tellers: List[Callable[[str], None]] = []


def tell_of_uncaught_errors(tell: Callable[[str], None]) -> None:
    """Has `tell("ValueError: bad batch (train.py, line 12, in step)")` called when such an error ends the program, before whatever
    sys.excepthook does otherwise. Several may ask, each once."""
    if tell not in _tellers:
        _tellers.append(tell)
    before = sys.excepthook
    if getattr(before, "of_coordd", False):
        return

    def hook(kind, value, trace):
        try:
            if _ends_the_program():
                for one in _tellers:
                    one(describe(kind, value, trace))
        finally:
            before(kind, value, trace)

    hook.of_coordd = True  # type: ignore[attr-defined]
    sys.excepthook = hook


def describe(kind, value, trace) -> str:
    """One line."""
    try:
        text = " ".join("".join(traceback.format_exception_only(kind, value)).split())
    except Exception:  # of its own __str__, say
        text = getattr(kind, "__name__", "an error")
    if trace is None:
        return text
    # Not by traceback.extract_tb: Python 3.13 evaluates code in it, and forgets that it was about to end by SIGINT.
    last = trace
    while trace is not None:
        # The program's own line, where the error comes from a call of this package.
        if not trace.tb_frame.f_code.co_filename.startswith(_PACKAGE) or last.tb_frame.f_code.co_filename.startswith(_PACKAGE):
            last = trace
        trace = trace.tb_next
    code = last.tb_frame.f_code
    return f"{text} ({os.path.basename(code.co_filename)}, line {last.tb_lineno}, in {code.co_name})"


def unwinding() -> Optional[BaseException]:
    """The error for which a finally block, a context manager or an except block of a caller is being executed: it may be about to
    end the program."""
    value = sys.exc_info()[1]
    return None if isinstance(value, _OF_CONTROL_FLOW) else value


def say_goodbye_in_exit(say: Callable[[], None]) -> None:
    """For what runs after this and ends the process by os._exit(0), past the handlers of exit()."""
    end, own = os._exit, os.getpid()

    def say_goodbye_and_end(status):
        if status == 0 and os.getpid() == own:
            say()
        end(status)

    os._exit = say_goodbye_and_end  # type: ignore[assignment]


def _ends_the_program() -> bool:
    """Whether the interpreter has called this hook since the main thread has come to its end by an error. Other programs call
    sys.excepthook, too, to print what they have caught; and at a prompt an error ends nothing."""
    if threading.current_thread() is not threading.main_thread():
        return False
    if hasattr(sys, "ps1") or sys.flags.interactive or os.environ.get("PYTHONINSPECT"):
        return False
    frame = sys._getframe()
    while frame.f_back is not None:
        frame = frame.f_back
    # What runs the program's main module: its code, or runpy's, is the first on the stack as long as it runs.
    return frame.f_code.co_name != "<module>" and frame.f_globals.get("__name__") != "runpy"
