"""The small functions of horovod.common.util that scripts use."""

from collections.abc import Iterable
from typing import Any, List, Sequence

__all__ = ["check_extension", "extension_available", "gpu_available", "is_iterable", "num_rank_is_power_2", "split_list"]


def check_extension(*_, **__) -> None:
    """Nothing: coordd has no extension per framework that could be missing."""


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
