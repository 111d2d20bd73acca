"""Errors of a framework that stand for coordd's: those that its runtime makes of what an op of ours has said."""

import functools
from typing import Callable, Tuple, Type

from coordd import _basics
from coordd.exceptions import HorovodInternalError


def translated(func: Callable, kinds: Tuple[Type[BaseException], ...]) -> Callable:
    """`func`, whose errors of these kinds are HorovodInternalError where coordd's generation has ended: what has happened is asked of
    coordd, since a runtime may give all errors one class."""

    @functools.wraps(func)
    def wrapper(*arguments, **more):
        try:
            return func(*arguments, **more)
        except kinds as error:
            if not _basics.is_initialized():
                raise
            try:
                _basics.worker().check()
            except HorovodInternalError as ended:
                raise ended from error
            raise

    return wrapper
