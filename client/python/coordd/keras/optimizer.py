"""DistributedOptimizer: an optimizer of Keras that uses the gradients of all ranks.

    optimizer = coordd.keras.DistributedOptimizer(keras.optimizers.Adam(0.01))
    model.compile(optimizer, ...)
    model.fit(x, y, callbacks=[coordd.keras.callbacks.BroadcastGlobalVariablesCallback(0)])

The optimizer stays the object that it was, with its slots and iterations; its class is a subclass of its own under the same name, so that
a saved model loads with plain Keras. A copy of it (copy, pickle) is a distributed one; what Keras makes of a configuration or a file is a
plain one, of which BroadcastGlobalVariablesCallback tells.

Where gradients are reduced: behind their accumulation and before they are clipped, so once for each update. An optimizer that scales the
loss decides by the gradients whether there is an update at all; there they are reduced before that, so that an infinity on one rank is
seen by all.
"""

import functools
import warnings
from typing import Any, List, Optional

from coordd import _ends
from coordd._arguments import checked_passes
from coordd._basics import Average
from coordd._made import name_of_new
from coordd.exceptions import InvalidArgumentError, UnsupportedError
from coordd.keras import _reduce
from coordd.keras._accumulated import Accumulated
from coordd.keras._reduce import Compression, key_of
from coordd.keras._which import BACKEND, LEGACY, keras
from coordd.process_sets import ProcessSet, global_process_set

__all__ = ["DistributedOptimizer", "PartialDistributedOptimizer"]


class Distributed:
    """What every distributed optimizer has; the first base of its class."""

    _coordd_options: Any
    _coordd_local: Any
    _coordd_factor: float
    _coordd_name: Optional[str]  # of its gradients; None: of a copy that has had none

    @classmethod
    def from_config(cls, *arguments, **more):
        """A plain optimizer, which is said: how gradients travel is no part of a configuration."""
        warnings.warn(f"{cls.__name__}.from_config() makes a plain optimizer, with which each rank trains by itself: give it to "
                      "DistributedOptimizer(), or use copy.deepcopy() instead", RuntimeWarning, stacklevel=2)
        return cls.__bases__[1].from_config(*arguments, **more)  # type: ignore[attr-defined]

    def register_local_var(self, variable) -> None:
        """The gradient of this variable stays this rank's own."""
        self._coordd_local.add(key_of(variable))

    def finalize_variable_values(self, var_list) -> None:
        """fit() calls it at its end, where JAX may not have computed the last steps: an error of theirs belongs to fit()."""
        super().finalize_variable_values(var_list)  # type: ignore[misc]
        if _ends.unwinding() is None:
            _reduce.wait_for([variable.value for variable in var_list])

    def _coordd_reduced(self, gradients, variables) -> List:
        options = self._coordd_options
        if options.process_set.included() is False:
            return list(gradients)
        name = self._coordd_name
        if name is None:
            name = _name_of_gradients(self)
            object.__setattr__(self, "_coordd_name", name)
        local = [index for index, variable in enumerate(variables or ()) if key_of(variable) in self._coordd_local]
        return _reduce.reduce_gradients(gradients, options, name, variables, local, self._coordd_factor)


class _Copied(Distributed):
    """Of Keras 3, whose optimizers are copied and pickled as a file that Keras reads again, into a plain optimizer."""

    def __reduce_ex__(self, protocol):
        base = type(self).__bases__[1]
        reduced = super().__reduce_ex__(protocol)
        if not hasattr(base, "_unpickle_model"):
            return reduced
        options = self._coordd_options
        own = [text for text, is_so in (("variables of register_local_var()", bool(self._coordd_local)),
                                        ("a process set", options.process_set is not global_process_set),
                                        ("groups of variables", isinstance(getattr(options, "groups", None), (list, tuple)))) if is_so]
        if own:
            raise UnsupportedError(f"a copy of a DistributedOptimizer with {' and '.join(own)}, which a copy would not have: make another "
                                   "one with DistributedOptimizer()", "UNIMPLEMENTED")
        return _copy_of, (base._unpickle_model, reduced[1], options._replace(process_set=None), self._coordd_factor)


def _copy_of(unpickle, arguments, options, factor: float):
    """Named when it is first used: a rank may make a copy that the others do not make."""
    return _distribute(unpickle(*arguments), options._replace(process_set=global_process_set), factor, None, None)


class _Plain(_Copied):
    """Of Keras 3. Its own methods call _clip_gradients() with what has been accumulated."""

    _coordd_variables: Any = None

    def _backend_apply_gradients(self, grads, trainable_variables):
        object.__setattr__(self, "_coordd_variables", trainable_variables)
        try:
            return super()._backend_apply_gradients(grads, trainable_variables)  # type: ignore[misc]
        finally:
            object.__setattr__(self, "_coordd_variables", None)

    def _coordd_reduced(self, gradients, variables) -> List:
        known = self._trainable_variables  # type: ignore[attr-defined]
        if not variables or len(variables) == len(known):
            return super()._coordd_reduced(gradients, variables)
        # Keras has left those without a gradient away: which, may differ between ranks.
        places = [self._get_variable_index(variable) for variable in variables]  # type: ignore[attr-defined]
        everywhere: List = [None] * len(known)
        for place, gradient in zip(places, gradients):
            everywhere[place] = gradient
        reduced = super()._coordd_reduced(everywhere, known)
        return [reduced[place] for place in places]

    def _clip_gradients(self, grads):
        variables = self._coordd_variables
        steps = self.gradient_accumulation_steps  # type: ignore[attr-defined]
        if steps and BACKEND == "jax":  # whose optimizers clip in each step, and forget the result in all but one
            is_update = (self._iterations + 1) % steps == 0  # type: ignore[attr-defined]
            own = list(grads)
            reduced = keras.ops.cond(is_update, lambda: self._coordd_reduced(own, variables), lambda: own)
        else:
            reduced = self._coordd_reduced(grads, variables)
        return super()._clip_gradients(reduced)  # type: ignore[misc]


class _LossScale(_Copied):
    """Of Keras 3, around another optimizer. Keras calls apply() on TensorFlow and torch, and stateless_apply() on JAX."""

    def apply(self, grads, trainable_variables=None):
        variables = trainable_variables if trainable_variables is not None else self._trainable_variables  # type: ignore[attr-defined]
        return super().apply(self._coordd_reduced(grads, variables), trainable_variables)  # type: ignore[misc]

    def stateless_apply(self, optimizer_variables, grads, trainable_variables):
        reduced = self._coordd_reduced(grads, self._trainable_variables)  # type: ignore[attr-defined]
        return super().stateless_apply(optimizer_variables, reduced, trainable_variables)  # type: ignore[misc]


class _Legacy(Distributed):
    """Of Keras 2."""

    _coordd_accumulated: Optional[Accumulated] = None

    def apply_gradients(self, grads_and_vars, *arguments, **more):
        pairs = list(grads_and_vars)
        gradients, variables = [gradient for gradient, _ in pairs], [variable for _, variable in pairs]
        apply = super().apply_gradients  # type: ignore[misc]

        def update(sums):
            return apply(list(zip(self._coordd_reduced(sums, variables), variables)), *arguments, **more)

        if self._coordd_accumulated is None:
            return update(gradients)
        skip = self.iterations.assign_add  # type: ignore[attr-defined]  # schedules count steps, as with Horovod
        return self._coordd_accumulated.step(gradients, variables, update, lambda: skip(1))


@functools.lru_cache(maxsize=None)
def _distributed_class(base: type) -> type:
    """Under the name of the optimizer's class, and as if in its module: a saved model names the plain one."""
    addition = _Legacy if LEGACY else _LossScale if issubclass(base, _reduce.loss_scale_class()) else _Plain
    distributed = type(base.__name__, (addition, base), {"__module__": base.__module__, "__doc__": base.__doc__})
    package, separator, name = keras.saving.get_registered_name(base).partition(">")
    if separator:  # a class of the program's own
        for kind in (distributed, base):  # the name of both, by which the plain one is found
            keras.saving.register_keras_serializable(package, name)(kind)
    return distributed


def DistributedOptimizer(optimizer, name: Optional[str] = None, device_dense: str = "", device_sparse: str = "",
                         compression=Compression.none, sparse_as_dense: bool = False, gradient_predivide_factor: float = 1.0,
                         op: int = Average, backward_passes_per_step: int = 1, average_aggregated_gradients: bool = False,
                         num_groups: int = 0, groups: Any = None, process_set: ProcessSet = global_process_set,
                         scale_local_gradients: bool = True):
    """The same optimizer, which from now on uses the gradients of all ranks. Every rank makes one, for the same variables.

    compression:               how gradients travel: Compression.none, .fp16, .bf16
    sparse_as_dense:           tf.IndexedSlices, of embeddings, are made dense before they travel; otherwise slices are gathered
    gradient_predivide_factor: an average is divided by it before the sum and multiplied with it afterwards
    op:                        Average or Sum
    backward_passes_per_step:  steps whose gradients add up before they travel; with Keras 3 its gradient_accumulation_steps, which may
                               be given to the optimizer instead. average_aggregated_gradients: they are averaged, as Keras 3 does;
                               Horovod's default is their sum
    groups:                    a number of groups, or lists of variables: gradients of a group travel together (TensorFlow)
    process_set:               the ranks that train together; on a rank outside of it the optimizer is a local one
    scale_local_gradients:     gradients of variables of register_local_var() are divided by the number of ranks
    name, device_dense, device_sparse, num_groups: there for Horovod's sake

    With the policy mixed_float16 the optimizer is put into a keras.optimizers.LossScaleOptimizer first, as compile() would do.
    """
    if isinstance(optimizer, Distributed):
        raise InvalidArgumentError("the optimizer is a DistributedOptimizer already", "INVALID_ARGUMENT")
    _refuse_others(optimizer)
    options = _reduce.checked_options(compression, sparse_as_dense, op, gradient_predivide_factor, num_groups, groups,
                                      process_set, scale_local_gradients)
    backward_passes_per_step = checked_passes(backward_passes_per_step)
    factor = _accumulate(optimizer, backward_passes_per_step, average_aggregated_gradients)
    accumulated = Accumulated(backward_passes_per_step) if LEGACY and backward_passes_per_step > 1 else None
    loss_scale = _reduce.loss_scale_class()
    if _reduce.is_mixed_float16() and not isinstance(optimizer, loss_scale):
        # compile() would wrap ours, which would then be called on those ranks only whose own gradients are finite: a hang.
        optimizer = loss_scale(optimizer)
    return _distribute(optimizer, options, factor, _name_of_gradients(optimizer), accumulated)


def _name_of_gradients(optimizer) -> str:
    return name_of_new(type(optimizer).__name__) + ".gradients"


def _distribute(optimizer, options, factor: float, name: Optional[str], accumulated: Optional[Accumulated]):
    for attribute, value in (("_coordd_options", options), ("_coordd_local", set()), ("_coordd_factor", factor),
                             ("_coordd_name", name), ("_coordd_accumulated", accumulated),
                             ("__class__", _distributed_class(type(optimizer)))):  # type: ignore[arg-type]
        object.__setattr__(optimizer, attribute, value)  # Keras tracks what is set the usual way
    return optimizer


def _refuse_others(optimizer) -> None:
    """compile() makes optimizers of names and of classes; here the object is needed whose class is to change."""
    expected = f"expected an optimizer of {keras.__name__} {keras.__version__}, such as keras.optimizers.Adam(0.001), found "
    if isinstance(optimizer, type):
        raise InvalidArgumentError(f"{expected}the class {optimizer.__name__}: call it", "INVALID_ARGUMENT")
    if isinstance(optimizer, str):
        raise InvalidArgumentError(f"{expected}the name {optimizer!r}: keras.optimizers.get({optimizer!r}) makes one", "INVALID_ARGUMENT")
    if not isinstance(optimizer, keras.optimizers.Optimizer) and not hasattr(optimizer, "apply_gradients"):
        raise InvalidArgumentError(f"{expected}{type(optimizer).__name__}", "INVALID_ARGUMENT")


def _accumulate(optimizer, passes: int, average: bool) -> float:
    """Asks Keras 3 to accumulate; what its mean, or the sum that is kept for Keras 2, is to be multiplied with."""
    if passes == 1:
        return 1.0
    if LEGACY:
        return 1.0 / passes if average else 1.0
    if optimizer.built or getattr(optimizer, "gradient_accumulation_steps", None):
        raise InvalidArgumentError("backward_passes_per_step of an optimizer that is built or accumulates already: give "
                                   "gradient_accumulation_steps to the optimizer instead", "INVALID_ARGUMENT")
    optimizer.gradient_accumulation_steps = passes
    return 1.0 if average else float(passes)


def PartialDistributedOptimizer(optimizer, name: Optional[str] = None, device_dense: str = "", device_sparse: str = "",
                                compression=Compression.none, sparse_as_dense: bool = False,
                                gradient_predivide_factor: float = 1.0, op: int = Average, backward_passes_per_step: int = 1,
                                average_aggregated_gradients: bool = False, groups: Any = None,
                                process_set: ProcessSet = global_process_set, local_layers: Any = None,
                                scale_local_gradients: bool = True):
    """DistributedOptimizer() that leaves the gradients of some layers' trainable weights alone; the layers are built."""
    distributed = DistributedOptimizer(optimizer, name, device_dense, device_sparse, compression, sparse_as_dense,
                                       gradient_predivide_factor, op, backward_passes_per_step, average_aggregated_gradients, 0,
                                       groups, process_set, scale_local_gradients)
    layers = local_layers if isinstance(local_layers, (list, tuple)) else [local_layers] if local_layers is not None else []
    for layer in layers:
        if not layer.built:
            raise InvalidArgumentError(f"local_layers: the layer {layer.name} is not built, so that its weights are not known",
                                       "INVALID_ARGUMENT")
        for variable in layer.trainable_weights:
            distributed.register_local_var(variable)
    return distributed
