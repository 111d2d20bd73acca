"""Arguments of collectives that mean the same for every framework."""

import math
import operator
from typing import Any, Optional, Sequence

from coordd import _basics
from coordd.exceptions import InvalidArgumentError, UnsupportedError
from coordd.process_sets import ProcessSet


def set_number(process_set: ProcessSet) -> int:
    """ValueError: the set is not registered, or is none."""
    try:
        number = process_set.process_set_id
    except AttributeError:
        raise InvalidArgumentError(f"process_set is {process_set!r}: expected a ProcessSet, as global_process_set or what "
                                   "add_process_set() returns", "INVALID_ARGUMENT") from None
    if number is None:
        raise InvalidArgumentError(f"{process_set} is not registered: give it to init() or to add_process_set()",
                                   "INVALID_ARGUMENT")
    return number


def whole_number(value: Any) -> Optional[int]:
    """Also of NumPy's integers; None: it is none."""
    if isinstance(value, bool):
        return None
    try:
        return operator.index(value)
    except TypeError:
        return None


def checked_workers(name: str, count: Any) -> int:
    """ValueError: the argument `name` is no number of workers."""
    number = whole_number(count)
    if number is None or number < 1:
        raise InvalidArgumentError(f"{name} is {count!r}: expected a number of workers, a whole one from 1", "INVALID_ARGUMENT")
    return number


def workers_if_given(name: str, count: Any) -> Optional[int]:
    """None stays None. ValueError: the argument `name` is something else that is no number of workers."""
    return None if count is None else checked_workers(name, count)


def check_on_failure(on_failure: Any) -> None:
    """ValueError: it is none of COORDD_ON_FAILURE's."""
    if on_failure not in ("end", "raise", "continue"):
        raise InvalidArgumentError(f"on_failure is {on_failure!r}: expected end, raise or continue", "INVALID_ARGUMENT")


def checked_passes(passes: Any) -> int:
    """ValueError: no number of backward passes for one step."""
    number = whole_number(passes)
    if number is None or number < 1:
        raise InvalidArgumentError(f"backward_passes_per_step is {passes!r}: expected a whole number from 1", "INVALID_ARGUMENT")
    return number


def checked_groups(groups: Any, num_groups: Any) -> Any:
    """A number from 1, or lists of variables; None: no groups, as 0 says, too. ValueError: something else."""
    name, given = ("num_groups", num_groups) if groups is None else ("groups", groups)
    if groups is not None and isinstance(given, (list, tuple)) and all(isinstance(group, (list, tuple)) for group in given):
        return given
    number = whole_number(given)
    if number is None or number < 0:
        lists = "" if groups is None else ", or a list of lists of variables"
        raise InvalidArgumentError(f"{name} is {given!r}: expected a number of groups from 0{lists}", "INVALID_ARGUMENT")
    return number or None


def checked_root(root_rank: Any) -> int:
    """ValueError: no whole number. Whether there is such a rank, the job knows."""
    number = whole_number(root_rank)
    if number is None:
        raise InvalidArgumentError(f"root_rank is {root_rank!r}: expected a whole number, the rank whose value all get", "INVALID_ARGUMENT")
    return number


def check_compression(compression: Any) -> None:
    """ValueError: no compressor."""
    if not callable(getattr(compression, "compress", None)) or not callable(getattr(compression, "decompress", None)):
        raise InvalidArgumentError(f"compression is {compression!r}: expected Compression.none, Compression.fp16, Compression.bf16, or a "
                                   "class of the program's own with compress() and decompress()", "INVALID_ARGUMENT")


def _check_predivide_factor(factor: Any, op: int) -> None:
    try:
        number = math.nan if isinstance(factor, str) else float(factor)
    except (TypeError, ValueError):
        number = math.nan
    if not 0 < number < math.inf:
        raise InvalidArgumentError(f"gradient_predivide_factor is {factor!r}: expected a number above 0", "INVALID_ARGUMENT")
    if number != 1.0 and op != _basics.Average:
        raise InvalidArgumentError("gradient_predivide_factor is for op=Average: with another operator it would change the "
                                   "result", "INVALID_ARGUMENT")


def check_optimizer(op: int, ops: Sequence[int], gradient_predivide_factor: float, process_set: ProcessSet, compression: Any) -> None:
    """Of an optimizer or a tape that knows the reductions `ops`. ValueError: an argument does not fit."""
    if op == _basics.Adasum:
        raise UnsupportedError("Adasum is not in this version of coordd: use op=Average with a scaled learning rate",
                               "UNIMPLEMENTED")
    if op not in ops:
        names = [name for name in ("Average", "Sum", "Min", "Max", "Product") if getattr(_basics, name) in ops]
        raise InvalidArgumentError(f"op is {op!r}: expected {', '.join(names[:-1])} or {names[-1]}", "INVALID_ARGUMENT")
    _check_predivide_factor(gradient_predivide_factor, op)
    check_compression(compression)
    set_number(process_set)
