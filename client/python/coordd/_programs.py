"""coordd, coordd-relay, coordrun, coordctl and coordd-worker as commands of a Python environment: the programs lie in the package,
or in the build of the source tree that this package is part of."""

import os
import sys
from typing import List

PACKAGE = os.path.dirname(os.path.abspath(__file__))


def candidates(name: str) -> List[str]:
    """Where a program is looked for, in this order."""
    repository = os.path.dirname(os.path.dirname(os.path.dirname(PACKAGE)))
    return [os.path.join(PACKAGE, "bin", name), os.path.join(repository, "build", "bin", name)]


def run(name: str) -> None:
    """Becomes the program, with this process's arguments; exits with a sentence when it is not there."""
    for path in candidates(name):
        if os.path.exists(path):
            os.execv(path, [path, *sys.argv[1:]])
    sys.exit(f"{name}: the program was found nowhere; looked at {', '.join(candidates(name))}; install a wheel of "
             "tools/build-wheel, or build coordd")


def coordd() -> None:
    """The daemon."""
    run("coordd")


def coordd_relay() -> None:
    """One session for the workers of a node."""
    run("coordd-relay")


def coordrun() -> None:
    """The launcher."""
    run("coordrun")


def coordctl() -> None:
    """The operators' tool."""
    run("coordctl")


def coordd_worker() -> None:
    """A worker without a program, with the self-test."""
    run("coordd-worker")
