"""python -m coordd.horovod SCRIPT [ARGUMENTS] | -m MODULE [ARGUMENTS] | -c TEXT [ARGUMENTS] | - [ARGUMENTS]
python -m coordd.horovod HOROVODRUN'S-FLAGS python SCRIPT [ARGUMENTS]

Runs a program as python would, with ``import horovod`` finding coordd: in it, and in processes that it starts. With horovodrun's
flags (-np 4, -H, --min-np, --host-discovery-script, ...) it is `coordrun --horovod`, which takes them.
"""

import os
import socket
from typing import MutableMapping

import coordd.horovod
from coordd import _program
from coordd._function_run import find_coordrun


def _tell_the_place(environment: MutableMapping[str, str]) -> None:
    """Horovod's variables, which some scripts read before they call init()."""
    for name in ("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE"):
        if f"COORDD_{name}" in environment:
            environment[f"HOROVOD_{name}"] = environment[f"COORDD_{name}"]
    environment.setdefault("HOROVOD_HOSTNAME", socket.gethostname())
    try:
        rank, size, local_rank, local_size = (int(environment[f"COORDD_{name}"])
                                              for name in ("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE"))
    except (KeyError, ValueError):
        return
    # Only init() knows of all nodes. Where they may have equally many ranks, they have: otherwise nothing is said.
    if 0 < local_size and size % local_size == 0 and rank % local_size == local_rank:
        environment["HOROVOD_CROSS_RANK"] = str(rank // local_size)
        environment["HOROVOD_CROSS_SIZE"] = str(size // local_size)


def main() -> None:
    arguments = _program.arguments_or_help(__doc__)
    if arguments[0].startswith("-") and arguments[0] not in ("-m", "-c", "-"):
        coordrun = find_coordrun()
        os.execv(coordrun, [coordrun, "--horovod", *arguments])
    coordd.horovod.install()
    paths = [coordd.horovod.SEARCH_PATH, *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    os.environ["PYTHONPATH"] = os.pathsep.join(dict.fromkeys(paths))
    _tell_the_place(os.environ)
    _program.run(arguments, "coordd.horovod")


if __name__ == "__main__":
    main()
