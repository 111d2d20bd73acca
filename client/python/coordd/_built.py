"""Whether a model of Keras has its variables, for what is done with all of them."""

from typing import Any, List

from coordd.exceptions import InvalidArgumentError


def _layers_of(model: Any) -> List:
    """Those inside of others, too."""
    if hasattr(model, "_flatten_layers"):
        return list(model._flatten_layers(include_self=False, recursive=True))
    return list(getattr(model, "layers", ()))


def is_complete(model: Any) -> bool:
    """Whether no layer makes variables at its first call. A subclass of Model may call itself built before."""
    return bool(getattr(model, "built", True)) and all(getattr(layer, "built", True) for layer in _layers_of(model))


def build_optimizer(model: Any, optimizer: Any) -> None:
    """Of a model that is complete: Keras keeps an optimizer to the variables that it was built for."""
    if optimizer is not None and not getattr(optimizer, "built", True) and hasattr(optimizer, "build") and is_complete(model):
        optimizer.build(model.trainable_variables)


def check_built(model: Any, what: str) -> None:
    """Of a model whose variables are to be the same on all ranks from now on. ValueError: it has none yet."""
    if not hasattr(type(model), "variables"):  # the property may raise
        raise InvalidArgumentError(f"{what}: expected a model of Keras, found {model!r}", "INVALID_ARGUMENT")
    if not getattr(model, "built", True) or not (model.variables or is_complete(model)):
        raise InvalidArgumentError(f"{what}: the model {getattr(model, 'name', '')} is not built, so that it has no weights that all ranks "
                                   "could share: give it an Input, or call model.build(input_shape) or the model once, before",
                                   "INVALID_ARGUMENT")


class Known:
    """How many variables a model had when all ranks have got the same: a layer that is called later has others on each rank."""

    def __init__(self, model: Any, what: str):
        check_built(model, what)
        self._model, self._what, self._count = model, what, len(model.variables)

    def check(self) -> None:
        """ValueError: there are more."""
        found = len(self._model.variables)
        if found > self._count:
            raise InvalidArgumentError(f"{self._what}: the model {getattr(self._model, 'name', '')} has {found} variables and had "
                                       f"{self._count} when the state was made, so that ranks differ in the others: call the model once "
                                       "before, so that all of its layers are built", "INVALID_ARGUMENT")
