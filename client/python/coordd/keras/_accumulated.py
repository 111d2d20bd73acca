"""Gradients of several steps for one update, for optimizers of Keras 2, which do not accumulate by themselves."""

from typing import Any, Callable, List, Optional, Sequence

from coordd.exceptions import InvalidArgumentError


class Accumulated:
    """The sums of an optimizer's gradients since its last update; eager, in graphs and under XLA."""

    def __init__(self, steps: int):
        self._steps = steps
        self._sums: Optional[List[Any]] = None  # None where a variable has no gradient
        self._count: Any = None

    def step(self, gradients: Sequence, variables: Sequence, update: Callable[[List], Any], skip: Callable[[], Any]):
        """Adds this step's gradients; every so many steps calls update(sums), otherwise skip(). All ranks count alike, so that what
        update() reduces is called by all of them."""
        import tensorflow as tf  # behind coordd.keras, which may run on another backend
        if self._sums is None:
            with tf.init_scope():  # outside of the function that is being traced
                self._sums = [None if gradient is None else tf.Variable(tf.zeros_like(variable), trainable=False)
                              for gradient, variable in zip(gradients, variables)]
                self._count = tf.Variable(0, trainable=False, dtype=tf.int64)
        sums = self._sums
        for total, gradient, variable in zip(sums, gradients, variables):
            if total is None and gradient is not None:
                raise InvalidArgumentError(f"variable {variable.name} has a gradient, and had none when the first ones were added up: "
                                           "expected the same variables in each step", "INVALID_ARGUMENT")
        pairs = [(total, gradient) for total, gradient in zip(sums, gradients) if total is not None and gradient is not None]
        for total, gradient in pairs:
            total.assign_add(tf.convert_to_tensor(gradient))
        self._count.assign_add(1)

        def now():
            update([None if total is None else tf.convert_to_tensor(total) for total in sums])
            for total, _ in pairs:
                total.assign(tf.zeros_like(total))
            return tf.constant(True)

        def later():
            skip()
            return tf.constant(False)

        return tf.cond(tf.equal(self._count % self._steps, 0), now, later)
