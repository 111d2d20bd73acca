"""Arguments of collectives that mean the same for every framework."""

from coordd.exceptions import InvalidArgumentError
from coordd.process_sets import ProcessSet


def set_number(process_set: ProcessSet) -> int:
    """ValueError: the set is not registered."""
    number = process_set.process_set_id
    if number is None:
        raise InvalidArgumentError(f"{process_set} is not registered: give it to init() or to add_process_set()",
                                   "INVALID_ARGUMENT")
    return number
