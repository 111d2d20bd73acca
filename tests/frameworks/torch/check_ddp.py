"""coordd as the communication hook of torch's DistributedDataParallel, beside the same without it. Run by ranks.py."""

import shutil
import tempfile

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import coordd.torch as hvd
from check_optimizer import own
from ranks import on_sizes

STEPS = 4


class gloo:
    """torch's own process group over the ranks of this job."""

    def __enter__(self):
        folder = hvd.broadcast_object(tempfile.mkdtemp(prefix="coordd-ddp-") if hvd.rank() == 0 else None)
        self.folder = folder
        dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=hvd.rank(), world_size=hvd.size())

    def __exit__(self, *_):
        hvd.barrier()
        dist.destroy_process_group()
        if hvd.rank() == 0:
            shutil.rmtree(self.folder, ignore_errors=True)  # some versions of torch remove their file themselves


def train(register=None, name=None):
    torch.manual_seed(11)
    model = torch.nn.Sequential(torch.nn.Linear(6, 300), torch.nn.Tanh(), torch.nn.Linear(300, 300), torch.nn.Tanh(),
                                torch.nn.Linear(300, 2)).double()
    model = DistributedDataParallel(model, bucket_cap_mb=0.3)  # several buckets
    if register:
        register(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for step in range(STEPS):
        generator = torch.Generator().manual_seed(step)
        inputs = torch.randn(12, 6, generator=generator, dtype=torch.float64)
        optimizer.zero_grad()
        model(own(inputs)).pow(2).mean().backward()
        optimizer.step()
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])


@on_sizes(2, 3)
def check_the_hook_trains_as_ddp_itself():
    with gloo():
        plain = train()
        assert torch.allclose(train(hvd.ddp_hook.register), plain, rtol=1e-12, atol=1e-12)
        assert torch.allclose(train(lambda model: model.register_comm_hook(None, hvd.ddp_hook.allreduce_hook)), plain,
                              rtol=1e-12, atol=1e-12)
        narrow = train(lambda model: hvd.ddp_hook.register(model, "narrow", compression=hvd.Compression.bf16))
        assert torch.allclose(narrow, plain, atol=1e-2) and not torch.equal(narrow, plain)


@on_sizes(2)
def check_a_failure_surfaces_in_the_backward_pass():
    with gloo():
        model = DistributedDataParallel(torch.nn.Linear(3, 2))
        hvd.ddp_hook.register(model, name=f"model-of-rank-{hvd.rank()}")
        taken = hvd.allreduce_async_(torch.zeros(6 + 2), name=f"model-of-rank-{hvd.rank()}.bucket.0")
        try:
            model(torch.ones(1, 3)).sum().backward()
        except RuntimeError as error:
            assert "bucket.0" in str(error) and "cast" not in str(error), error
        else:
            raise AssertionError("no error")
        hvd.barrier()  # else the other rank's submission could complete `taken` before this rank's backward pass asks for it
        other = hvd.allreduce_async_(torch.zeros(6 + 2), name=f"model-of-rank-{1 - hvd.rank()}.bucket.0")
        hvd.synchronize(taken)
        hvd.synchronize(other)
