"""Equal starting points and small exchanges: variables, and any object."""

from typing import Any, List, Optional

import numpy
import tensorflow as tf

from coordd import _arrays
from coordd.exceptions import UnsupportedError
from coordd.process_sets import ProcessSet, global_process_set
from coordd.tensorflow import mpi_ops

__all__ = ["broadcast_variables", "broadcast_object", "broadcast_object_fn", "allgather_object"]


@tf.autograph.experimental.do_not_convert
def broadcast_variables(variables, root_rank: int, process_set: ProcessSet = global_process_set, inplace: bool = False):
    """Gives everyone the root's values of all variables, TensorFlow's or Keras's, in the same order on all ranks. `inplace` is there
    for Horovod's sake."""
    variables = list(variables)
    if not tf.executing_eagerly():
        return mpi_ops.broadcast_(variables, root_rank, process_set=process_set)
    arrays = [numpy.array(tf.convert_to_tensor(variable).numpy()) for variable in variables]
    _arrays.broadcast([(f"broadcast_variables.{index}", array) for index, array in enumerate(arrays)], root_rank, process_set)
    for variable, array in zip(variables, arrays):
        variable.assign(array)
    return variables


def _require_eager(what: str, session: Any) -> None:
    if session is not None or not tf.executing_eagerly():
        raise UnsupportedError(f"{what} inside a tf.function or with a session: call it in eager mode", "UNIMPLEMENTED")


@tf.autograph.experimental.do_not_convert
def broadcast_object(obj: Any, root_rank: int = 0, session=None, name: Optional[str] = None,
                     process_set: ProcessSet = global_process_set) -> Any:
    """The root's object, of any size; in eager mode. What the root cannot pickle is its error there, and HorovodInternalError on the
    others."""
    _require_eager("broadcast_object", session)
    return _arrays.broadcast_object(obj, root_rank, name, process_set)


def broadcast_object_fn(root_rank: int = 0, session=None, name: Optional[str] = None,
                        process_set: ProcessSet = global_process_set):
    """broadcast_object() as a function of the object."""
    _require_eager("broadcast_object_fn", session)
    return lambda obj: broadcast_object(obj, root_rank, None, name, process_set)


@tf.autograph.experimental.do_not_convert
def allgather_object(obj: Any, session=None, name: Optional[str] = None,
                     process_set: ProcessSet = global_process_set) -> List[Any]:
    """The objects of all ranks, in rank order; in eager mode."""
    _require_eager("allgather_object", session)
    return _arrays.allgather_object(obj, name, process_set)
