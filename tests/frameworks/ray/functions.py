"""What the workers do. NumPy is enough for it: an import of torch in each of them would take most of the time."""

import os
import signal
import time

import numpy

from coordd import HorovodInternalError, _arrays, _basics, elastic


def ranks():
    _basics.init()
    total = _arrays.allreduce("sum", numpy.array([float(_basics.rank())]), _basics.Sum).item()
    return _basics.rank(), _basics.size(), total, _basics.place().generation, os.getpid()


def variable(name):
    return os.environ.get(name)


def raise_on(culprit):
    _basics.init()
    if _basics.rank() == culprit:
        raise KeyError("no such column")
    _arrays.allreduce("sum", numpy.ones(1), _basics.Sum)


def note_error_of(culprit, folder):
    """The others write down what they hear."""
    _basics.init()
    _arrays.allreduce("sum", numpy.ones(1), _basics.Sum)
    if _basics.rank() == culprit:
        os.kill(os.getpid(), signal.SIGKILL)
    try:
        _arrays.allreduce("again", numpy.ones(1), _basics.Sum)
    except HorovodInternalError as error:
        with open(os.path.join(folder, str(_basics.rank())), "w") as file:
            file.write(str(error))
        raise


class Counter:
    def __init__(self, first, step=1):
        self.value, self.step = first, step


def count(counter, times=1):
    counter.value += times * counter.step
    return counter.value


def _state(**values):
    return elastic.ObjectState(lambda value, root_rank=0: _arrays.broadcast_object(value, root_rank, "state"), _basics.rank, **values)


def train(steps, folder, crash_slot=None, crash_at=None, how="kill"):
    """(steps, [(step, size) of each change]) of a loop that commits. In `folder` are the size of now, and a file `crash` once the
    worker of that slot has failed, which it does once. The last steps wait for a file `end`."""
    _basics.init()
    state = _state(step=0, sizes=[])

    def loop(state):
        while state.step < steps or not os.path.exists(os.path.join(folder, "end")):
            _arrays.allreduce("gradient", numpy.ones(100), _basics.Sum)
            time.sleep(0.01)
            if not state.sizes or state.sizes[-1][1] != _basics.size():
                state.sizes.append((state.step, _basics.size()))
                with open(os.path.join(folder, f"size-{_basics.size()}"), "a") as file:
                    file.write(f"{_basics.rank()} {time.time()}\n")
            if os.environ["COORDD_RANK"] == str(crash_slot) and state.step == crash_at and _first(folder):
                if how == "raise":
                    raise ValueError("bad batch")
                with open(os.path.join(folder, "killed"), "w") as file:
                    file.write(str(time.time()))
                os.kill(os.getpid(), signal.SIGKILL)
            state.step += 1
            state.commit()
        return state.step, state.sizes

    return elastic.run_fn(loop, _basics.change_members)(state)


def _first(folder):
    try:
        os.close(os.open(os.path.join(folder, "crash"), os.O_CREAT | os.O_EXCL))
        return True
    except FileExistsError:
        return False


def always_fail():
    _basics.init()
    raise ValueError("always bad")
