"""python -m coordd.torch.distributed SCRIPT [ARGUMENTS] | -m MODULE [ARGUMENTS] | -c TEXT [ARGUMENTS] | - [ARGUMENTS]

Runs a program as python would, whose torch.distributed uses coordd where it says "gloo", or nothing: replace("gloo"). So does
`coordrun --torch-backend coordd -np 4 -- python SCRIPT`.
"""

from coordd import _program
from coordd.torch import distributed


def main() -> None:
    arguments = _program.arguments_or_help(__doc__)
    distributed.replace("gloo")
    _program.run(arguments, "coordd.torch.distributed")


if __name__ == "__main__":
    main()
