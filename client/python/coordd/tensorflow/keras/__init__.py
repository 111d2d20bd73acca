"""coordd.keras where Keras runs on TensorFlow, under Horovod's other name for it: horovod.tensorflow.keras."""

from coordd.keras import *  # noqa: F401,F403
from coordd.keras import __all__ as _names
from coordd.keras._which import BACKEND as _backend

if _backend != "tensorflow":
    raise ImportError(f"coordd.tensorflow.keras: Keras runs on the backend {_backend}, expected tensorflow; coordd.keras serves all")

__all__ = [*_names]
