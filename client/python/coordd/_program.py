"""Runs a program as python would, after something else was done in its process: `-m coordd.horovod train.py`."""

import io
import os
import runpy
import sys
import types
from typing import List


def _new_main(path=None) -> types.ModuleType:
    main = types.ModuleType("__main__")
    vars(main)["__builtins__"] = __builtins__
    if path is not None:
        main.__file__ = path
    sys.modules["__main__"] = main
    return main


def _run_script(path: str, who: str) -> None:
    sys.path[0] = os.path.dirname(os.path.realpath(path))
    if os.path.isdir(path) or path.endswith((".zip", ".pyz")):
        sys.path.pop(0)
        runpy.run_path(path, run_name="__main__")
        return
    try:
        with io.open_code(os.path.abspath(path)) as script:
            source = script.read()
    except OSError as error:
        sys.exit(f"{who}: cannot open {path}: {error.strerror}")
    exec(compile(source, path, "exec"), vars(_new_main(path)))


def arguments_or_help(usage: str) -> List[str]:
    """Those of this process, as run() takes them. Exits behind `usage`: with 0 if it was asked for, with 2 if there are too few."""
    arguments = sys.argv[1:]
    if arguments[:1] == ["--"]:
        del arguments[0]
    if not arguments or arguments[0] in ("-h", "--help") or (arguments[0] in ("-m", "-c") and len(arguments) < 2):
        print(usage.strip())
        sys.exit(0 if arguments[:1] in (["-h"], ["--help"]) else 2)
    return arguments


def run(arguments: List[str], who: str) -> None:
    """SCRIPT, -m MODULE, -c TEXT or -, each with its arguments; in the place of `who`."""
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
        _run_script(arguments[0], who)
