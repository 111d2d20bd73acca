"""The small functions of horovod.common.util that scripts use."""

import contextlib
import functools
import os
from collections.abc import Iterable
from typing import Any, Dict, Iterator, List, Optional, Sequence

from coordd import _basics
from coordd._basics import check_extension

__all__ = ["ccl_built", "check_extension", "ddl_built", "env", "extension_available", "gloo_built", "gpu_available", "is_iterable",
           "mpi_built", "nccl_built", "num_rank_is_power_2", "split_list"]

_cache = functools.lru_cache(maxsize=None)  # Horovod's programs import it


@contextlib.contextmanager
def env(**kwargs: Optional[str]) -> Iterator[None]:
    """Inside, these variables are in the environment; those that are None stay as they are."""
    values: Dict[str, str] = {name: value for name, value in kwargs.items() if value is not None}
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def mpi_built(verbose: bool = False) -> bool:
    """As coordd.torch.mpi_built(); so the next ones."""
    del verbose
    return _basics.mpi_built()


def gloo_built(verbose: bool = False) -> bool:
    del verbose
    return _basics.gloo_built()


def nccl_built(verbose: bool = False) -> bool:
    del verbose
    return bool(_basics.nccl_built())


def ddl_built(verbose: bool = False) -> bool:
    del verbose
    return _basics.ddl_built()


def ccl_built(verbose: bool = False) -> bool:
    del verbose
    return _basics.ccl_built()


def extension_available(ext_base_name: str, verbose: bool = False) -> bool:
    """Whether there is support for a framework, which is torch."""
    del verbose
    return ext_base_name == "torch"


def gpu_available(ext_base_name: str, verbose: bool = False) -> bool:
    """Whether tensors in the framework's GPU memory can be reduced: not in this version."""
    del ext_base_name, verbose
    return False


def is_iterable(value: Any) -> bool:
    return isinstance(value, Iterable)


def num_rank_is_power_2(num_rank: int) -> bool:
    return num_rank > 0 and num_rank & (num_rank - 1) == 0


def split_list(items: Sequence[Any], count: int) -> List[Sequence[Any]]:
    """`count` parts in order, whose lengths differ by one at most, the longer ones first."""
    each, longer = divmod(len(items), count)
    ends = [0]
    for index in range(count):
        ends.append(ends[-1] + each + (index < longer))
    return [items[begin:end] for begin, end in zip(ends, ends[1:])]
