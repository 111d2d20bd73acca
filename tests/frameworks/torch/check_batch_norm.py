"""SyncBatchNorm against torch's BatchNorm over the concatenated batch. Run by ranks.py."""

import types
import unittest.mock

import torch

import coordd.torch as hvd
from check_optimizer import raises
from coordd.torch import sync_batch_norm
from ranks import on_sizes

BATCH = 12


def parts(batch, even=True):
    """How many rows each rank gets."""
    if even or hvd.size() == 1:
        return [batch // hvd.size()] * hvd.size()
    return [batch - hvd.size() + 2, 0, *[1] * (hvd.size() - 2)]  # the second rank has none


def pair(channels, dtype=torch.float64, **options):
    torch.manual_seed(5)
    reference = torch.nn.BatchNorm1d(channels, **options).to(dtype)
    reference._check_input_dim = lambda input: None
    ours = hvd.SyncBatchNorm(channels, **options).to(dtype)
    if reference.affine:
        with torch.no_grad():
            for layer in (reference, ours):
                layer.weight.copy_(torch.linspace(0.5, 2, channels))
                layer.bias.copy_(torch.linspace(-1, 1, channels))
    return ours, reference


def compare(shape, dtype=torch.float64, tolerance=1e-9, even=True, steps=2, **options):
    ours, reference = pair(shape[1], dtype, **options)
    for step in range(steps):
        generator = torch.Generator().manual_seed(step)
        whole = (torch.randn(*shape, generator=generator, dtype=torch.float64) * 3 + 2).to(dtype).requires_grad_()
        weights = torch.randn(*shape, generator=generator, dtype=torch.float64).to(dtype)
        counts = parts(shape[0], even)
        mine = whole.detach().split(counts)[hvd.rank()].clone().requires_grad_()
        expected = reference(whole)
        found = ours(mine)
        close = lambda a, b: torch.allclose(a.double(), b.double(), rtol=tolerance, atol=tolerance)  # noqa: E731
        assert found.dtype == expected.dtype
        assert close(found, expected.split(counts)[hvd.rank()]), "output"
        for layer in (ours, reference):
            layer.zero_grad()
        (expected * weights).sum().backward()
        (found * weights.split(counts)[hvd.rank()]).sum().backward()
        assert close(mine.grad, whole.grad.split(counts)[hvd.rank()]), "gradient of the input"
        if reference.affine:
            for name in ("weight", "bias"):
                total = hvd.allreduce(getattr(ours, name).grad, op=hvd.Sum)
                assert close(total, getattr(reference, name).grad), f"gradient of {name}"
        if reference.track_running_stats:
            assert close(ours.running_mean, reference.running_mean) and close(ours.running_var, reference.running_var)
            assert ours.num_batches_tracked == reference.num_batches_tracked
    ours.eval()
    reference.eval()
    if reference.track_running_stats:
        assert close(ours(whole), reference(whole)), "evaluation"


def check_every_number_of_dimensions():
    for rest in ((), (3,), (3, 2), (2, 2, 2)):
        compare((BATCH, 5, *rest))
        compare((BATCH, 5, *rest), even=False)


def check_options():
    for affine in (True, False):
        for track_running_stats in (True, False):
            for momentum in (0.3, None):
                compare((BATCH, 3), affine=affine, track_running_stats=track_running_stats, momentum=momentum)
    compare((BATCH, 3), eps=0.1)


def check_dtypes():
    compare((BATCH, 4, 3), torch.float32, 1e-4)
    ours, _ = pair(4, torch.float32)
    images = torch.randn(6, 4, 3)
    found = ours(images.bfloat16())
    assert found.dtype == torch.bfloat16 and torch.allclose(found.float(), ours(images), atol=0.1)


@on_sizes(2)
def check_what_is_too_small_is_said():
    layer = hvd.SyncBatchNorm(2)
    raises(ValueError, lambda: layer(torch.ones(4)), "at least 2 dimensions")
    raises(ValueError, lambda: layer(torch.ones(1 - hvd.rank(), 2)), "more than one value per channel")


@on_sizes(2)
def check_a_model_is_converted():
    torch.manual_seed(1)
    model = torch.nn.Sequential(torch.nn.Conv2d(2, 3, 1), torch.nn.BatchNorm2d(3, momentum=0.4),
                                torch.nn.Sequential(torch.nn.BatchNorm2d(3, affine=False), torch.nn.Flatten(),
                                                    torch.nn.Linear(12, 4), torch.nn.BatchNorm1d(4)))
    parameters = [id(parameter) for parameter in model.parameters()]
    converted = hvd.SyncBatchNorm.convert_sync_batchnorm(model)
    assert converted is model and [id(parameter) for parameter in model.parameters()] == parameters
    assert all(isinstance(layer, hvd.SyncBatchNorm) for layer in (model[1], model[2][0], model[2][3]))
    assert model[1].momentum == 0.4 and not model[2][0].affine
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters())
    for _ in range(2):
        optimizer.zero_grad()
        model(torch.randn(3, 2, 2, 2)).pow(2).sum().backward()
        optimizer.step()
    assert len(set(hvd.allgather_object(model[1].running_mean.tolist().__repr__()))) == 1


@on_sizes(1)
def check_on_a_device_nothing_goes_through_the_host():
    """A tensor on torch's device "meta" has no values: whatever asks for one, or for a copy on the host, fails."""
    exchanged = []

    def allgather(row, name, process_set):
        exchanged.append(("allgather", row.device.type, tuple(row.shape), row.dtype))
        return row.expand(process_set.size(), -1)

    def allreduce(sums, op, process_set, name):
        exchanged.append(("allreduce", sums.device.type, tuple(sums.shape), sums.dtype))
        return sums.clone()

    ops = types.SimpleNamespace(allgather=allgather, allreduce=allreduce, Sum=hvd.Sum)
    two = types.SimpleNamespace(size=lambda: 2, process_set_id=0)
    for dtype in (torch.float32, torch.bfloat16):
        layer = hvd.SyncBatchNorm(4, process_set=two, device="meta")
        inputs = torch.empty(6, 4, 3, dtype=dtype, device="meta", requires_grad=True)
        with unittest.mock.patch.object(sync_batch_norm, "mpi_ops", ops):
            output = layer(inputs)
            output.sum().backward()
        assert output.dtype == dtype and output.device.type == inputs.grad.device.type == "meta"
        assert layer.weight.grad.shape == layer.bias.grad.shape == (4,)
    assert exchanged == 2 * [("allgather", "meta", (1, 9), torch.float64), ("allreduce", "meta", (2, 4), torch.float64)]


@on_sizes(2)
def check_frozen_layers_still_pass_gradients_on():
    ours, _ = pair(3)
    for parameter in ours.parameters():
        parameter.requires_grad_(False)
    inputs = torch.randn(4, 3, dtype=torch.float64, requires_grad=True)
    ours(inputs).pow(3).sum().backward()
    assert inputs.grad is not None and ours.weight.grad is None
    copy_in_eval = ours.eval()
    copy_in_eval(inputs)
