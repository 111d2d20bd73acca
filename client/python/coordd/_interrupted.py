"""Calls whose wait Ctrl-C has ended, and which the other ranks still count on."""

from coordd import _native
from coordd.exceptions import HorovodInternalError


def finish_interrupted() -> None:
    """Waits for all calls of this process whose wait was interrupted (Ctrl-C), which the other ranks still count on. In place
    they have their result then. HorovodInternalError: the first that has failed, after all have ended. Can be interrupted,
    too."""
    failure = None
    while _native._kept:
        try:
            _native._kept[0][0].wait()
        except HorovodInternalError as error:
            failure = failure or error
        _native._kept.pop(0)
    if failure is not None:
        raise failure
