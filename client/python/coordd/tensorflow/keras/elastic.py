"""coordd.keras.elastic, under Horovod's other name for it."""

from coordd.keras.elastic import *  # noqa: F401,F403
from coordd.keras.elastic import __all__ as _names

__all__ = [*_names]
