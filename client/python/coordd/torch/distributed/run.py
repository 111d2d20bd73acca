"""python -m coordd.torch.distributed.run ARGUMENTS: torchrun, which knows --rdzv-backend coordd with every torch from 2.1."""

from torch.distributed.run import main

from coordd.torch.distributed import _rendezvous

if __name__ == "__main__":
    _rendezvous.register()
    main()
