"""Makes the backend known to torch, also under the name of another."""

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
    register()
    dist.Backend._plugins[name.upper()] = dist.Backend._BackendPlugin(_group.create, True)
    # torch's C++ takes a group of a type that it knows for its own class.
    dist.Backend.backend_type_map[name] = dist.ProcessGroup.BackendType.CUSTOM  # type: ignore[attr-defined]
