"""Names for what a program makes one after the other, the same on all ranks that make the same."""

from typing import Dict

from coordd import _basics

# How many of a kind have been made in this membership of the process. Keras's own names count what the process has ever made, which is
# less on a rank that has joined later.
_made: Dict[str, int] = {}
_basics.on_end(_made.clear)


def name_of_new(kind: str) -> str:
    """"Adam", then "Adam.1"."""
    number = _made.get(kind, 0)
    _made[kind] = number + 1
    return kind if number == 0 else f"{kind}.{number}"
