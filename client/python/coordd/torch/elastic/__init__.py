"""Elastic training with torch: `coordrun -np 4 --min-np 2 -- python train.py` goes on without ranks that are lost.

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


def run(func: Callable) -> Callable:
    """Decorates a training function whose first argument is a state: all ranks start from rank 0's. When a rank is lost, the
    others go back to their last commit and begin again without it, in a job of `coordrun --min-np`; a rank that is asked to
    leave (`coordctl drain`, SIGTERM) ends with status 0 at a commit; with COORDD_ON_FAILURE=continue nothing is taken back when
    a rank is lost; see coordd.elastic."""
    return run_fn(func, _basics.change_members)
