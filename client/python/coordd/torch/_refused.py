"""Calls without a name that this rank's process refuses before they are submitted: a wrong argument, say.

The other ranks may have made the call, and would wait for this one, or meet its next call, which has the same name. So a refused
call counts as a call, is named like any other, and coordd is told: what the others have submitted under this name fails at once,
with a sentence that names this rank and the error. If all ranks refuse it, nothing is left of it. Calls with names are not told:
a program may repeat such a call with the right arguments, and the others wait for that.
"""

from typing import Any, Callable, Optional, TypeVar

from coordd import _basics, _library, _native
from coordd.exceptions import CoorddError, HorovodInternalError
from coordd.process_sets import ProcessSet
from coordd.torch._graphs import capturing
from coordd.torch._handles import Unnamed, names

_ANSWER_S = 5.0  # coordd's answer takes a round trip; while coordd is away the program need not wait for it

_Result = TypeVar("_Result")


def refuse(error: BaseException, full_name: str, unnamed: Optional[Unnamed], process_set: int,
           group_size: Optional[int] = None) -> None:
    """After a call that has taken this name and has failed before it was submitted. `group_size`: tensors of the group that it
    would have been; None: one tensor. Never raises on its own account."""
    if unnamed is None:
        return
    # What the others capture meets this call by its place in the graph, not by its name (check_graphs).
    if isinstance(error, HorovodInternalError) or not isinstance(error, Exception) or group_size == 0 or capturing():
        names.withdraw(unnamed)
        return
    try:
        _tell(error, full_name, process_set, group_size).wait()
    except CoorddError:
        pass  # its answer is always one
    finally:
        names.release(unnamed)


def checked(operation: str, name: Optional[str], process_set: ProcessSet, check: Callable[..., _Result], *arguments: Any,
            group_size: Optional[int] = None) -> _Result:
    """check(*arguments), which belongs to a call that has not taken its name; what it raises is a refusal."""
    try:
        return check(*arguments)
    except Exception as error:
        number = process_set.process_set_id
        if name is None and number is not None:
            full_name, unnamed = names.take(operation, None, number)
            refuse(error, full_name, unnamed, number, group_size)
        raise


def _tell(error: BaseException, full_name: str, process_set: int, group_size: Optional[int]) -> _native.Work:
    why = str(error) if isinstance(error, CoorddError) else f"{type(error).__name__}: {error}"
    own = [full_name] if group_size is None else [f"{full_name}_{index + 1}of{group_size}" for index in range(group_size)]
    prepared = _native.PreparedGroup(full_name, own, [()] * len(own), [_library.DTYPES["uint8"]] * len(own))
    return prepared.refuse(_library.library().function("coordd_refuse_async"), _basics.worker().pointer, group_size is not None,
                           why, _native.call_options(process_set, 1.0, 1.0, _ANSWER_S))
