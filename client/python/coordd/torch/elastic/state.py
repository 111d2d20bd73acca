"""TorchState: models, optimizers, samplers and other objects that are committed, rolled back and shared together.

A handler says how a kind of object does that. A program may add its own:

    set_handler_registry([(MyThing, MyThingHandler), *get_handler_registry()])
"""

import copy
import pickle
from typing import Any, Dict, List, Optional, Tuple

import torch

from coordd.elastic import ObjectState
from coordd.torch import mpi_ops
from coordd.torch.elastic.sampler import ElasticSampler
from coordd.torch.functions import (allgather_object, broadcast_object, broadcast_optimizer_state, broadcast_parameters,
                                    restore_dtypes)

__all__ = ["TorchState", "StateHandler", "ModelStateHandler", "OptimizerStateHandler", "SamplerStateHandler",
           "get_handler_registry", "set_handler_registry"]


class StateHandler:
    """How one object is saved, restored and shared."""

    def __init__(self, value: Any):
        self.value = value

    def save(self) -> None:
        raise NotImplementedError

    def restore(self) -> None:
        raise NotImplementedError

    def sync(self) -> None:
        raise NotImplementedError

    def set_value(self, value: Any) -> None:
        """Another object takes the place of the old one, and is saved."""
        self.value = value
        self.save()


class _StateDictHandler(StateHandler):
    travels = True  # with the other objects, where collectives go on when a rank is lost

    def __init__(self, value):
        super().__init__(value)
        self.save()

    def save(self) -> None:
        self._saved = copy.deepcopy(self.value.state_dict())

    def restore(self) -> None:
        self.value.load_state_dict(copy.deepcopy(self._saved))

    def load(self, state_dict: dict) -> None:
        """That of another rank."""
        self.value.load_state_dict(state_dict)


class ModelStateHandler(_StateDictHandler):
    """Of a torch.nn.Module."""

    def sync(self) -> None:
        broadcast_parameters(self.value.state_dict(), root_rank=0)
        self.save()


class OptimizerStateHandler(_StateDictHandler):
    """Of a torch.optim.Optimizer."""

    def sync(self) -> None:
        broadcast_optimizer_state(self.value, root_rank=0)
        self.save()

    def load(self, state_dict: dict) -> None:
        self.value.load_state_dict(state_dict)
        restore_dtypes(self.value, state_dict)


class SamplerStateHandler(_StateDictHandler):
    """Of an ElasticSampler: what any rank has processed has been processed."""

    travels = False

    def sync(self) -> None:
        states = allgather_object(self.value.state_dict())
        epoch = states[0]["epoch"]
        processed = max(state["processed_num"] for state in states if state["epoch"] == epoch)
        self.value.load_state_dict({"epoch": epoch, "processed_num": processed})
        self.save()


_registry: List[Tuple[type, type]] = [
    (torch.nn.Module, ModelStateHandler),
    (torch.optim.Optimizer, OptimizerStateHandler),
    (ElasticSampler, SamplerStateHandler),
]


def get_handler_registry() -> List[Tuple[type, type]]:
    """(class of objects, class of their handler); the first that fits counts."""
    return _registry


def set_handler_registry(registry: List[Tuple[type, type]]) -> None:
    """Replaces them, for states that are made from now on."""
    global _registry
    _registry = registry


_changes = torch.zeros(1, dtype=torch.int32)


class TorchState(ObjectState):
    """state.model, state.optimizer and everything else that it was given by name: objects that a handler knows, and any
    others that can be pickled."""

    _handlers: Dict[str, Any]

    def __init__(self, model: Optional[torch.nn.Module] = None, optimizer: Optional[torch.optim.Optimizer] = None,
                 **kwargs: Any):
        values = {**({} if model is None else {"model": model}),
                  **({} if optimizer is None else {"optimizer": optimizer}), **kwargs}
        handlers = {}
        for name, value in values.items():
            handler = next((handler for known, handler in _registry if isinstance(value, known)), None)
            if handler is not None:
                handlers[name] = handler(value)
        object.__setattr__(self, "_handlers", handlers)
        for name, handler in handlers.items():
            object.__setattr__(self, name, handler.value)
        super().__init__(broadcast_object, mpi_ops.rank,
                         **{name: value for name, value in values.items() if name not in handlers})

    def _agree_on(self, changes: int) -> int:
        _changes[0] = changes
        return int(mpi_ops.allreduce_(_changes, name="coordd.elastic.changes", op=mpi_ops.Max)[0])

    def share(self) -> None:
        super().share()
        for handler in self._handlers.values():
            if not getattr(handler, "travels", False):
                handler.sync()

    def pack(self) -> bytes:
        values = {name: handler.value.state_dict() for name, handler in self._handlers.items()
                  if getattr(handler, "travels", False)}
        return pickle.dumps((values, super().pack()))

    def unpack(self, packed: bytes) -> None:
        values, objects = pickle.loads(packed)
        for name, value in values.items():
            self._handlers[name].load(value)
        super().unpack(objects)

    def save(self) -> None:
        for handler in self._handlers.values():
            handler.save()
        super().save()

    def restore(self) -> None:
        for handler in self._handlers.values():
            handler.restore()
        super().restore()

    def sync(self) -> None:
        for handler in self._handlers.values():
            handler.sync()
        super().sync()

    def __setattr__(self, name: str, value: Any) -> None:
        if name in self._handlers:
            self._handlers[name].set_value(value)
        object.__setattr__(self, name, value)
