"""Errors of collectives whose results nobody has asked for. JAX returns before it has computed, and raises where the program reads: a
program that reads nothing any more would end well though its last steps have failed."""

import collections
import contextlib
import re
from typing import Deque

import jax

from coordd import _basics, _ends
from coordd._running import state
from coordd.exceptions import HorovodInternalError

_OURS = re.compile(r"\b(tensor|generation|coordd)\b")  # of what coordd says one is there; other calls with effects fail otherwise
_raised: Deque[str] = collections.deque(maxlen=64)  # newest texts


def _note_raised() -> bool:
    """Has each error noted that JAX raises; False: its class does not let us, so that nobody knows what the program has seen."""
    kind = jax.errors.JaxRuntimeError
    before = kind.__init__

    def noting(self, *arguments, **more):
        before(self, *arguments, **more)
        _raised.append(str(self))

    try:
        kind.__init__ = noting  # type: ignore[method-assign]
    except (AttributeError, TypeError):
        return False
    return True


def _forget() -> None:
    """JAX waits for the same twice more when the interpreter exits, and prints a traceback each time."""
    with contextlib.suppress(ImportError, AttributeError):
        from jax._src import dispatch
        dispatch.runtime_tokens.clear()


def _finish() -> None:
    """What other ranks wait for may still be before this one. HorovodInternalError: it has failed, and the program does not know."""
    known = set(_raised)
    try:
        jax.effects_barrier()
    except jax.errors.JaxRuntimeError as error:
        text = str(error)
        _forget()
        if _notes and text not in known and _OURS.search(text):
            code, separator, rest = _ends.without_repeats(text).partition(": ")
            raise HorovodInternalError(f"a collective has failed whose result the program did not ask for: {rest}",
                                       code if separator else "UNKNOWN") from None


def _end_quietly() -> None:
    """The error that ends the program is printed once."""
    if state.exits and state.failing:
        try:
            jax.effects_barrier()
        except jax.errors.JaxRuntimeError:
            _forget()


_notes = _note_raised()
_ends.note_exits()
_basics.before_end(_finish)
_basics.on_end(_end_quietly)
