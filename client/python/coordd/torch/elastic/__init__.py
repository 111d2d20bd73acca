"""Elastic training with torch. What it does and does not do yet: see coordd.elastic.

    state = coordd.torch.elastic.TorchState(model=model, optimizer=optimizer, epoch=0)

    @coordd.torch.elastic.run
    def train(state):
        for state.epoch in range(state.epoch, 10):
            ...
            state.commit()

    train(state)
"""

from typing import Callable

from coordd import _basics
from coordd.elastic import run_fn
from coordd.torch.elastic.sampler import ElasticSampler
from coordd.torch.elastic.state import TorchState

__all__ = ["run", "TorchState", "ElasticSampler"]


def _reset() -> None:
    _basics.shutdown()
    _basics.init()


def run(func: Callable) -> Callable:
    """Decorates a training function whose first argument is a state: all ranks start from rank 0's. After a failure it is
    rolled back to its last commit and HorovodInternalError is raised: this version does not go on by itself."""
    return run_fn(func, _reset)
