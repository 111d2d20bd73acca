"""One process of coordd.run: calls the function and writes what it returned. Argument: the run's folder."""

import multiprocessing.spawn
import os
import pickle
import sys
import traceback

from coordd import _basics, _ends
from coordd.exceptions import HorovodInternalError


def main(folder: str) -> int:
    hint = int(os.environ["COORDD_RANK"])
    failure = value = None
    rank = hint
    try:
        with open(os.path.join(folder, "call"), "rb") as call:
            preparation = pickle.load(call)
            if preparation:
                multiprocessing.spawn.prepare(preparation)
            func, args, kwargs = pickle.load(call)
        value = func(*args, **kwargs)
        if _basics.is_initialized():
            rank = _basics.rank()
        data = pickle.dumps((rank, None, value))
    except Exception as error:  # written down for the caller
        traceback.print_exc()
        failure = f"{type(error).__name__}: {error}"
        _basics.tell_failure(_ends.describe(type(error), error, error.__traceback__))
        data = pickle.dumps((rank, failure, isinstance(error, HorovodInternalError)))  # then another rank failed before
    path = os.path.join(folder, f"result-{hint}")
    with open(path + ".part", "wb") as result:
        result.write(data)
    os.rename(path + ".part", os.path.join(folder, f"result-{hint}"))
    return 0 if failure is None else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
