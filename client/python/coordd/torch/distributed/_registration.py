"""Makes the backend known to torch, also under the name of another."""

import sys
from types import SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist

from coordd.torch.distributed import _group, _store, _works
from coordd.torch.distributed._group import NAME


def register() -> None:
    """Called by torch itself through the entry point "torch.distributed.backends", or by the import of the package."""
    _works.answer_for_holders()
    _store.register()
    if NAME.upper() in getattr(dist.Backend, "_plugins", {}):
        return
    dist.Backend.register_backend(NAME, _group.create, extended_api=True, devices=["cpu", "cuda"])


def replace(name: str = "gloo") -> None:
    """Has another backend's name mean coordd in this process, for programs that accept only names that they know. Before
    init_process_group. ValueError: a name that cannot be taken."""
    if name not in ("gloo", "mpi", "ucc"):
        raise ValueError(f"replace({name!r}): expected \"gloo\", \"mpi\" or \"ucc\", which serve host memory")
    if not _group.HAS_BACKEND and name != "gloo":
        raise ValueError(f"replace({name!r}): torch {torch.__version__} lets \"gloo\" alone be replaced; expected that, or torch 2.14 or later")
    register()
    if not _group.HAS_BACKEND:
        return _take_gloos_class()
    dist.Backend._plugins[name.upper()] = dist.Backend._BackendPlugin(_group.create, True)
    # torch's C++ takes a group of a type that it knows for its own class.
    dist.Backend.backend_type_map[name] = dist.ProcessGroup.BackendType.CUSTOM  # type: ignore[attr-defined]


class _Taken(type):
    """Of a class that stands in the place of another, for everything but the making of groups."""

    taken: Any

    def __instancecheck__(cls, one: Any) -> bool:
        return isinstance(one, (cls.taken, _group.WholeGroup))

    def __getattr__(cls, name: str) -> Any:
        return getattr(cls.taken, name)


def _take_gloos_class() -> None:
    """torch before 2.14 looks at no plugin for this name: it makes a ProcessGroupGloo, and asks whether it is one."""
    module = dist.distributed_c10d
    if isinstance(getattr(module, "ProcessGroupGloo", None), _Taken):
        return

    class ProcessGroupGloo(metaclass=_Taken):
        taken = getattr(module, "ProcessGroupGloo", ())

        def __new__(cls, store, rank, size, *args, timeout=None, **kwargs):
            caller = sys._getframe(1)
            if caller.f_code.co_name != "_new_process_group_helper":  # a helper of torch's own, with TORCH_DISTRIBUTED_DEBUG
                return cls.taken(store, rank, size, *args, **({} if timeout is None else {"timeout": timeout}), **kwargs)
            place = caller.f_locals
            return _group.create(SimpleNamespace(store=store, group_rank=rank, group_size=size, timeout=timeout or (args[0] if args else None),
                                                 group_id=place.get("group_name") or "", global_ranks_in_group=place["global_ranks_in_group"]))

    module.ProcessGroupGloo = ProcessGroupGloo  # type: ignore[misc,assignment]
