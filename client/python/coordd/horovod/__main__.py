"""python -m coordd.horovod SCRIPT [ARGUMENTS] | -m MODULE [ARGUMENTS] | -c TEXT [ARGUMENTS] | - [ARGUMENTS]
python -m coordd.horovod HOROVODRUN'S-FLAGS python SCRIPT [ARGUMENTS]

Runs a program as python would, with ``import horovod`` finding coordd: in it, and in processes that it starts. With horovodrun's
flags (-np 4, -H, --min-np, --host-discovery-script, ...) it is `coordrun --horovod`, which takes them.
"""

import io
import os
import runpy
import socket
import sys
import types
from typing import MutableMapping

import coordd.horovod
from coordd.horovod.runner import _find_coordrun


def _new_main(path=None) -> types.ModuleType:
    main = types.ModuleType("__main__")
    vars(main)["__builtins__"] = __builtins__
    if path is not None:
        main.__file__ = path
    sys.modules["__main__"] = main
    return main


def _run_script(path: str) -> None:
    sys.path[0] = os.path.dirname(os.path.realpath(path))
    if os.path.isdir(path) or path.endswith((".zip", ".pyz")):
        sys.path.pop(0)
        runpy.run_path(path, run_name="__main__")
        return
    try:
        with io.open_code(os.path.abspath(path)) as script:
            source = script.read()
    except OSError as error:
        sys.exit(f"coordd.horovod: cannot open {path}: {error.strerror}")
    exec(compile(source, path, "exec"), vars(_new_main(path)))


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
    arguments = sys.argv[1:]
    if arguments[:1] == ["--"]:
        del arguments[0]
    if not arguments or arguments[0] in ("-h", "--help") or (arguments[0] in ("-m", "-c") and len(arguments) < 2):
        print(__doc__.strip())
        sys.exit(0 if arguments[:1] in (["-h"], ["--help"]) else 2)
    if arguments[0].startswith("-") and arguments[0] not in ("-m", "-c", "-"):
        coordrun = _find_coordrun()
        os.execv(coordrun, [coordrun, "--horovod", *arguments])
    coordd.horovod.install()
    paths = [coordd.horovod.SEARCH_PATH, *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    os.environ["PYTHONPATH"] = os.pathsep.join(dict.fromkeys(paths))
    _tell_the_place(os.environ)
    if arguments[0] == "-m":
        sys.argv = arguments[1:]
        sys.path[0] = os.getcwd()
        runpy.run_module(arguments[1], run_name="__main__", alter_sys=True)
    elif arguments[0] == "-c":
        sys.argv = ["-c", *arguments[2:]]
        sys.path[0] = ""
        exec(compile(arguments[1], "<string>", "exec"), vars(_new_main()))
    elif arguments[0] == "-":
        sys.argv = arguments
        sys.path[0] = ""
        exec(compile(sys.stdin.buffer.read(), "<stdin>", "exec"), vars(_new_main()))
    else:
        sys.argv = arguments
        _run_script(arguments[0])


if __name__ == "__main__":
    main()
