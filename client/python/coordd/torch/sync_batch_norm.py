"""Batch normalisation over the batches of all ranks, on any device: statistics are computed and exchanged where the input is.

    model = coordd.torch.SyncBatchNorm.convert_sync_batchnorm(model)

Forward and backward are those of torch.nn.BatchNorm over the concatenated batch. Ranks may have batches of different sizes,
also empty ones. Ioffe & Szegedy, ICML 2015; means and variances are combined as in Chan, Golub & LeVeque, 1979.
"""

from typing import Any, Dict, Set

import torch
from torch.autograd.function import once_differentiable
from torch.nn.modules.batchnorm import _BatchNorm

from coordd.process_sets import ProcessSet, global_process_set
from coordd.torch import mpi_ops
from coordd.torch._handles import names

__all__ = ["SyncBatchNorm"]


class SyncBatchNorm(_BatchNorm):
    """As torch.nn.BatchNorm1d, 2d and 3d: input (N, C) or (N, C, ...), over the batches of all ranks of the process set
    while training. Forward and backward wait for the other ranks, which therefore run the same layers in the same order.
    In evaluation, or with one rank, nothing is exchanged. Gradients of weight and bias are this rank's part of the sum over
    ranks, as for every other layer.

    ValueError: fewer than two values per channel over all ranks. On a GPU that is not looked at, since this thread would have
    to wait for the device: the results are not numbers then.
    """

    def __init__(self, num_features: int, eps: float = 1e-5, momentum: float = 0.1, affine: bool = True,
                 track_running_stats: bool = True, process_set: ProcessSet = global_process_set, device=None, dtype=None):
        super().__init__(num_features, eps, momentum, affine, track_running_stats, device=device, dtype=dtype)
        self.process_set = process_set

    @classmethod
    def convert_sync_batchnorm(cls, module: torch.nn.Module,
                               process_set: ProcessSet = global_process_set) -> torch.nn.Module:
        """Replaces every batch normalisation layer inside `module` by one of these with the same parameters and state, and
        returns the module (or its replacement, when it is such a layer itself)."""
        result = module
        if isinstance(module, _BatchNorm) and not isinstance(module, cls):
            momentum: Any = module.momentum  # None: a cumulative average
            result = cls(module.num_features, module.eps, momentum, module.affine, module.track_running_stats, process_set)
            result.training = module.training
            for name in ("weight", "bias", "running_mean", "running_var", "num_batches_tracked"):
                setattr(result, name, getattr(module, name))
        for name, child in module.named_children():
            setattr(result, name, cls.convert_sync_batchnorm(child, process_set))
        return result

    def _check_input_dim(self, input):
        if input.dim() < 2:
            raise ValueError(f"expected an input of at least 2 dimensions (N, C, ...), found {input.dim()}")

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        self._check_input_dim(input)
        if not self.training or self.process_set.size() == 1:
            return self._forward_alone(input)
        tracking = None if self.running_mean is None else (self._factor(), self)
        return _SyncBatchNorm.apply(input, self.weight, self.bias, self.eps, self.process_set, tracking)

    def _factor(self) -> float:
        """How much of the running statistics this batch replaces; counts the batch."""
        batches = self.num_batches_tracked
        if batches is not None:
            batches.add_(1)
        if self.momentum is not None:
            return self.momentum
        return 0.0 if batches is None else 1.0 / float(batches)  # a cumulative average

    def _forward_alone(self, input: torch.Tensor) -> torch.Tensor:
        factor = self._factor() if self.training and self.running_mean is not None else 0.0
        return torch.nn.functional.batch_norm(input, self.running_mean, self.running_var, self.weight, self.bias,
                                              self.training or self.running_mean is None, factor, self.eps)

    def track(self, factor: float, mean: torch.Tensor, unbiased_variance: torch.Tensor) -> None:
        """Called by the forward pass with the statistics of the whole batch."""
        assert self.running_mean is not None and self.running_var is not None
        with torch.no_grad():
            self.running_mean.lerp_(mean.to(self.running_mean.dtype), factor)
            self.running_var.lerp_(unbiased_variance.to(self.running_var.dtype), factor)


class _Order:
    """Numbers the layers' passes, so that each exchange of a step has a name of its own, the same in every step. All ranks run
    the same passes in the same order; a forward pass after a backward pass begins anew."""

    MAX = 1024  # forward passes without a backward pass have finitely many names too

    def __init__(self):
        self._next: Dict[int, int] = {}  # by process set
        self._in_backward: Set[int] = set()

    def forward(self, process_set: ProcessSet) -> int:
        number = process_set.process_set_id or 0
        if number in self._in_backward:
            self._in_backward.discard(number)
            self._next[number] = 0
        index = self._next.get(number, 0)
        self._next[number] = (index + 1) % self.MAX
        return index

    def backward(self, process_set: ProcessSet) -> None:
        self._in_backward.add(process_set.process_set_id or 0)

    def reset(self) -> None:
        self._next.clear()
        self._in_backward.clear()


_order = _Order()
names.at_reset.append(_order.reset)


def _per_channel(values: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    return values.view(1, -1, *([1] * (like.dim() - 2)))


def _all_but_channels(tensor: torch.Tensor):
    return [dimension for dimension in range(tensor.dim()) if dimension != 1]


class _SyncBatchNorm(torch.autograd.Function):
    """Statistics travel as one row per rank: count, means, sums of squared deviations, all in float64, so that the result
    does not depend on how the batch is divided."""

    @staticmethod
    def forward(ctx, input, weight, bias, eps, process_set, tracking):
        channels = input.shape[1]
        count = input.numel() // channels
        x = input.detach().to(torch.float32) if input.dtype in (torch.float16, torch.bfloat16) else input.detach()
        row = torch.zeros(1 + 2 * channels, dtype=torch.float64, device=input.device)
        if count:
            variance, mean = torch.var_mean(x, dim=_all_but_channels(x), unbiased=False)
            row[0] = count
            row[1:1 + channels] = mean
            row[1 + channels:] = variance.double() * count
        ctx.index = _order.forward(process_set)
        rows = mpi_ops.allgather(row.unsqueeze(0), name=f"sync_batch_norm.{ctx.index}.forward", process_set=process_set)
        counts, means, deviations = rows[:, :1], rows[:, 1:1 + channels], rows[:, 1 + channels:]
        total = counts.sum()
        if input.device.type == "cpu" and total < 2:
            raise ValueError("batch normalisation needs more than one value per channel over all ranks when training, found "
                             f"{int(total)}")
        mean = (counts * means).sum(0) / total
        deviation = (deviations + counts * (means - mean) ** 2).sum(0)
        if tracking:
            factor, layer = tracking
            layer.track(factor, mean, deviation / (total - 1))
        mean = mean.to(x.dtype)
        inverse = torch.rsqrt(deviation / total + eps).to(x.dtype)

        normalised = (x - _per_channel(mean, x)) * _per_channel(inverse, x)
        ctx.process_set = process_set
        ctx.save_for_backward(normalised, inverse, weight, total)
        ctx.has_bias = bias is not None
        output = normalised
        if weight is not None:
            output = output * _per_channel(weight.detach().to(x.dtype), x)
        if bias is not None:
            output = output + _per_channel(bias.detach().to(x.dtype), x)
        return output.to(input.dtype) if output is not normalised else normalised.to(input.dtype).clone()

    @staticmethod
    @once_differentiable
    def backward(ctx, gradient):
        normalised, inverse, weight, total = ctx.saved_tensors
        g = gradient.to(normalised.dtype)
        dimensions = _all_but_channels(g)
        sums = torch.stack([g.sum(dimensions), (g * normalised).sum(dimensions)])
        weight_gradient = sums[1].to(weight.dtype) if weight is not None and ctx.needs_input_grad[1] else None
        bias_gradient = sums[0].to(weight.dtype) if ctx.has_bias and ctx.needs_input_grad[2] else None
        input_gradient = None
        # Also where this rank needs no gradient of its input: another may, and waits for this one's sums.
        _order.backward(ctx.process_set)
        everywhere = mpi_ops.allreduce(sums.double().contiguous(), op=mpi_ops.Sum, process_set=ctx.process_set,
                                       name=f"sync_batch_norm.{ctx.index}.backward")
        if ctx.needs_input_grad[0]:
            mean_gradient, mean_product = (everywhere / total).to(g.dtype)
            scale = inverse if weight is None else inverse * weight.to(inverse.dtype)
            input_gradient = ((g - _per_channel(mean_gradient, g) - normalised * _per_channel(mean_product, g))
                              * _per_channel(scale, g)).to(gradient.dtype)
        return input_gradient, weight_gradient, bias_gradient, None, None, None
