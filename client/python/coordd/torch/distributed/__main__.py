"""python -m coordd.torch.distributed SCRIPT [ARGUMENTS] | -m MODULE [ARGUMENTS] | -c TEXT [ARGUMENTS] | - [ARGUMENTS]

Runs a program as python would, whose torch.distributed uses coordd where it says "gloo", or nothing: replace("gloo"). So does
`coordrun --torch-backend coordd -np 4 -- python SCRIPT`.
"""

import sys

from coordd import _program
from coordd.torch import distributed


def main() -> None:
    arguments = sys.argv[1:]
    if arguments[:1] == ["--"]:
        del arguments[0]
    if not arguments or arguments[0] in ("-h", "--help") or (arguments[0] in ("-m", "-c") and len(arguments) < 2):
        print(__doc__.strip())
        sys.exit(0 if arguments[:1] in (["-h"], ["--help"]) else 2)
    distributed.replace("gloo")
    _program.run(arguments, "coordd.torch.distributed")


if __name__ == "__main__":
    main()
