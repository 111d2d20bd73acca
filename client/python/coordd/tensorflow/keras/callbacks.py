"""coordd.keras.callbacks, under Horovod's other name for them."""

from coordd.keras.callbacks import *  # noqa: F401,F403
from coordd.keras.callbacks import __all__ as _names

__all__ = [*_names]
