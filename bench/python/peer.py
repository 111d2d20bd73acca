"""What a program of this folder measures: coordd.torch, or with --peer horovod the same calls of horovod.torch, which has the
same names. Horovod needs a launcher of its own:

    horovodrun --gloo -np 2 -H localhost:2 python3 bench/python/latency.py --peer horovod

It is measured in processes of its own, since its thread speaks to the other ranks every millisecond, also when it has nothing to do.
"""

import importlib
import os
import sys

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..")
sys.path[:0] = [os.path.join(ROOT, "client", "python"), os.path.join(ROOT, "client", "examples", "python")]

NAME = "horovod" if ("--peer", "horovod") in zip(sys.argv, sys.argv[1:]) else "coordd"
hvd = importlib.import_module(f"{NAME}.torch")


def add_option(parser) -> None:
    parser.add_argument("--peer", choices=["coordd", "horovod"], default="coordd", help="what is measured")
