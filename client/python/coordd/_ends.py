"""How this program ends, as far as the others are concerned: an error that nothing handles is no goodbye.

An uncaught exception of the main thread is told at once, by sys.excepthook, since the interpreter may wait for other threads for as
long as they like before it exits. A program may put a hook of its own there, which calls no other one (rich does): then it is told
when the interpreter begins to wait for those threads. With which status it exits nobody knows before it does: the goodbye of coordd_worker_leave_at_exit
waits for that.
"""

import contextlib
import ctypes
import os
import re
import sys
import threading
import traceback
from typing import Callable, List, Optional

_PACKAGE = os.path.dirname(os.path.abspath(__file__)) + os.sep
_OF_PACKAGES = (f"{os.sep}site-packages{os.sep}", f"{os.sep}dist-packages{os.sep}")
_OF_CONTROL_FLOW = (StopIteration, StopAsyncIteration, GeneratorExit)
# Where Python that C++ has called raised an error, innermost line first: torch's backward() appends it to the text of its own error.
_LINES_OF_A_CALLBACK = re.compile(r"\n\nAt:(?:\n  \S.*\(\d+\): .*)+")

_tellers: List[Callable[[str], None]] = []
_told: Optional[BaseException] = None
_asked: object = None  # of sys.exit()


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
                _tell(value.with_traceback(trace))
        finally:
            before(kind, value, trace)

    hook.of_coordd = True  # type: ignore[attr-defined]
    sys.excepthook = hook
    known = _printed_error()
    with contextlib.suppress(AttributeError, RuntimeError):  # it is no public one, and refuses at the exit of the interpreter
        threading._register_atexit(lambda: _tell_what_another_hook_kept(known))  # type: ignore[attr-defined]


def _printed_error() -> Optional[BaseException]:
    """The last error that the interpreter itself has printed: it notes it before it calls sys.excepthook."""
    return getattr(sys, "last_exc", None) or getattr(sys, "last_value", None)


def _tell_what_another_hook_kept(known: Optional[BaseException]) -> None:
    error = _printed_error()
    if error is None or error is known or error is _told or _at_a_prompt():
        return
    # Of the program's main module, or of what runs it: an error that a console has printed began elsewhere.
    trace = error.__traceback__
    if trace is not None and trace.tb_frame.f_globals.get("__name__") in ("__main__", "runpy"):
        _tell(error)


def _tell(error: BaseException) -> None:
    global _told
    _told = error
    for one in _tellers:
        one(describe(type(error), error, error.__traceback__))


def describe(kind, value, trace) -> str:
    """One line."""
    try:
        text = "".join(traceback.format_exception_only(kind, value))
        callback = _LINES_OF_A_CALLBACK.search(text)
        is_ours = callback is not None and _PACKAGE in callback.group()
        text = " ".join(_LINES_OF_A_CALLBACK.sub("", text).split())
        text = without_repeats(text) if kind.__module__.startswith("jax") else text
    except Exception:  # of its own __str__, say
        text, is_ours = getattr(kind, "__name__", "an error"), False
    if trace is None:
        return text
    # Not by traceback.extract_tb: Python 3.13 evaluates code in it, and forgets that it was about to end by SIGINT.
    last, own = trace, None
    while trace is not None:
        file = trace.tb_frame.f_code.co_filename
        # The program's own line, where the error comes from a call of this package.
        if not file.startswith(_PACKAGE) or last.tb_frame.f_code.co_filename.startswith(_PACKAGE):
            last = trace
        if not file.startswith(_PACKAGE) and not any(folder in file for folder in _OF_PACKAGES):
            own = trace
        is_ours = is_ours or file.startswith(_PACKAGE)
        trace = trace.tb_next
    last = own if is_ours and own is not None else last  # by way of a framework
    code = last.tb_frame.f_code
    return f"{text} ({os.path.basename(code.co_filename)}, line {last.tb_lineno}, in {code.co_name})"


def without_repeats(text: str) -> str:
    """JAX begins with "Error dispatching computation: " as often as programs have waited for what has failed."""
    return re.sub(r"(\b[^:]{4,80}: )\1+", r"\1", text)


def unwinding() -> Optional[BaseException]:
    """The error for which a finally block, a context manager or an except block of a caller is being executed: it may be about to
    end the program."""
    value = sys.exc_info()[1]
    return None if isinstance(value, _OF_CONTROL_FLOW) else value


def note_exits() -> None:
    """Has sys.exit() note with which status it was asked to end the program (asked_to_fail)."""
    before = sys.exit
    if getattr(before, "of_coordd", False):
        return

    def noting_exit(status=None, /):
        global _asked
        if threading.current_thread() is threading.main_thread():
            _asked = status
        before(status)

    noting_exit.of_coordd = True  # type: ignore[attr-defined]
    sys.exit = noting_exit  # type: ignore[assignment]


def asked_to_fail() -> bool:
    """Whether sys.exit() was last called with a status that is an error. The program may have gone on since."""
    return _asked is not None and _asked != 0


def say_goodbye_in_exit(say: Callable[[], None]) -> None:
    """For what runs after this and ends the process by os._exit(0), past the handlers of exit()."""
    end, own = os._exit, os.getpid()

    def say_goodbye_and_end(status):
        if status == 0 and os.getpid() == own:
            say()
        end(status)

    os._exit = say_goodbye_and_end  # type: ignore[assignment]


def end_with_failure() -> None:
    """The interpreter exits, and has not been told yet that the program has failed: the process ends with status 1, once everything else
    is done. Not where sys.exit() was given another status than 0 (note_exits)."""
    if asked_to_fail():
        return
    end, own = os._exit, os.getpid()

    def end_with_another_status(status):
        end(1 if status == 0 and os.getpid() == own else status)

    os._exit = end_with_another_status  # type: ignore[assignment]
    # The interpreter has a status for the process already. C's exit() calls these last of all it knows, the newest first.
    process = ctypes.CDLL(None)
    for function, argument in ((process._exit, 1), (process.fflush, None)):
        getattr(process, "__cxa_atexit")(function, ctypes.c_void_p(argument), None)


def _ends_the_program() -> bool:
    """Whether the interpreter has called this hook since the main thread has come to its end by an error. Other programs call
    sys.excepthook, too, to print what they have caught; and at a prompt an error ends nothing."""
    if threading.current_thread() is not threading.main_thread():
        return False
    if _at_a_prompt():
        return False
    frame = sys._getframe()
    while frame.f_back is not None:
        frame = frame.f_back
    # What runs the program's main module: its code, or runpy's, is the first on the stack as long as it runs.
    return frame.f_code.co_name != "<module>" and frame.f_globals.get("__name__") != "runpy"


def _at_a_prompt() -> bool:
    return hasattr(sys, "ps1") or bool(sys.flags.interactive) or bool(os.environ.get("PYTHONINSPECT"))
