"""Where libcoordd_tensorflow.so is: beside libcoordd.so."""

import os
from typing import List

from coordd import _library

FILE = "libcoordd_tensorflow.so"


def candidates() -> List[str]:
    """Where it is looked for, in this order."""
    chosen = os.environ.get("COORDD_LIBRARY")
    places = [chosen] if chosen else _library.candidates()
    return [os.path.join(os.path.dirname(place), FILE) for place in places]


def path() -> str:
    """The first that is there; a name without a folder is left to the system's loader. ImportError: all the places."""
    for one in candidates():
        if not os.path.isabs(one) or os.path.exists(one):
            return one
    raise ImportError(f"{FILE} was found nowhere; looked at {', '.join(candidates())}; build it, or install a wheel that carries it")
