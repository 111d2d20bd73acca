"""torch.compile does not look into this package: calls of it are made as they stand, between two compiled parts.

What it would trace are calls of a C library, whose addresses differ from call to call. torch._dynamo is told so when it is
imported, which may be later than this package, and takes seconds.
"""

import importlib.abc
import importlib.util
import sys

_DYNAMO = "torch._dynamo"
_RULES = ("trace_rules", "skipfiles")  # the module's name now, and before torch 2.2


def leave_out(package: str) -> None:
    """Has torch.compile pass over all functions of the package. Does nothing where torch is too old to have it."""
    if _DYNAMO in sys.modules:
        _tell(package)
    elif importlib.util.find_spec(_DYNAMO) is not None:
        sys.meta_path.insert(0, _Import(package))


def _tell(package: str) -> None:
    for name in _RULES:
        add = getattr(sys.modules.get(f"{_DYNAMO}.{name}"), "add", None)
        if add is not None:
            add(package)
            return


class _Import(importlib.abc.MetaPathFinder):
    """Waits for the import of torch._dynamo."""

    def __init__(self, package: str):
        self._package = package

    def find_spec(self, name, path=None, target=None):
        del path, target
        if name != _DYNAMO or self not in sys.meta_path:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.loader is not None:
            execute, package = spec.loader.exec_module, self._package

            def exec_module(module):
                execute(module)
                _tell(package)

            spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec
