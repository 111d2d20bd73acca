"""Which Keras the program uses: Keras 3 on any of its backends, or Keras 2, which is tf_keras, or what came with TensorFlow before
2.16."""

import importlib
import os
from typing import Any

keras: Any
if os.environ.get("TF_USE_LEGACY_KERAS") in ("1", "true", "True"):
    keras = importlib.import_module("tf_keras")
else:
    keras = importlib.import_module("keras")

LEGACY = int(keras.__version__.split(".")[0]) < 3
BACKEND = "tensorflow" if LEGACY else keras.backend.backend()
