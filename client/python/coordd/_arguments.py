"""Arguments of collectives that mean the same for every framework."""

from typing import Sequence

from coordd import _basics
from coordd.exceptions import InvalidArgumentError, UnsupportedError
from coordd.process_sets import ProcessSet


def set_number(process_set: ProcessSet) -> int:
    """ValueError: the set is not registered."""
    number = process_set.process_set_id
    if number is None:
        raise InvalidArgumentError(f"{process_set} is not registered: give it to init() or to add_process_set()",
                                   "INVALID_ARGUMENT")
    return number


def check_optimizer(op: int, ops: Sequence[int], gradient_predivide_factor: float, process_set: ProcessSet) -> None:
    """Of an optimizer or a tape that knows the reductions `ops`. ValueError: an argument does not fit."""
    if op == _basics.Adasum:
        raise UnsupportedError("Adasum is not in this version of coordd: use op=Average with a scaled learning rate",
                               "UNIMPLEMENTED")
    if op not in ops:
        names = [name for name in ("Average", "Sum", "Min", "Max", "Product") if getattr(_basics, name) in ops]
        raise InvalidArgumentError(f"op is {op!r}: expected {', '.join(names[:-1])} or {names[-1]}", "INVALID_ARGUMENT")
    if gradient_predivide_factor != 1.0 and op != _basics.Average:
        raise InvalidArgumentError("gradient_predivide_factor is for op=Average: with another operator it would change the "
                                   "result", "INVALID_ARGUMENT")
    set_number(process_set)
