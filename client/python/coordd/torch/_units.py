"""Gradients that travel together. coordd.torch._gradients says which do, and when."""

from typing import Any, Dict, List, NamedTuple, Optional, Set, Tuple

import torch

from coordd import _basics
from coordd.exceptions import HorovodInternalError, InvalidArgumentError
from coordd.process_sets import ProcessSet
from coordd.torch import mpi_ops
from coordd.torch._layout import is_same_memory
from coordd.torch._sparse import KNOWN_TO_BE_VALID
from coordd.torch._streams import Streams
from coordd.torch._submit import mapped_zeros
from coordd.torch._usage import ABSENT, DENSE, Flags

_ALIGNMENT_BYTES = 64  # of each gradient in its bucket


class Options(NamedTuple):
    """How everything is reduced."""
    compression: Any
    op: int
    predivide_factor: float
    sparse_as_dense: bool
    process_set: ProcessSet
    bucket_views: bool = True

    def reduction(self) -> dict:
        """Arguments of an allreduce."""
        averaging = self.op == mpi_ops.Average
        return {"op": self.op, "prescale_factor": 1.0 / self.predivide_factor if averaging else 1.0,
                "postscale_factor": self.predivide_factor if averaging else 1.0, "process_set": self.process_set}


def is_wanted(parameter: torch.Tensor) -> bool:
    """Whether its gradient counts: not that of a parameter that was frozen, which has none."""
    return parameter.requires_grad or parameter.grad is not None


class Unit:
    """Gradients that travel together. `submit` sends them, `finish` waits and leaves the result in parameter.grad."""

    def __init__(self, name: str, parameters: List[torch.Tensor], options: Options):
        self.name = name
        self.parameters = parameters
        self.options = options
        self.ready: Set[int] = set()  # those of this step, by id
        self.handle: Any = None  # of mpi_ops, while it is in flight
        self._streams = Streams()

    def begin_step(self) -> None:
        self.ready.clear()

    def arrived(self, parameter: torch.Tensor) -> None:
        """parameter.grad is complete."""
        self.ready.add(id(parameter))
        self._streams.note(parameter)

    def join_streams(self) -> None:
        """Before submit(), on the stream on which that happens."""
        self._streams.join()

    def is_complete(self) -> bool:
        return len(self.ready) == len(self.parameters)

    def submit(self) -> None:
        raise NotImplementedError

    def finish(self) -> None:
        raise NotImplementedError


class Single(Unit):
    """One gradient, dense or sparse. Where this rank has none, others have to say what theirs is before it is submitted."""

    def __init__(self, name, parameter, options):
        super().__init__(name, [parameter], options)
        self.sparse_dimensions: Optional[int] = None  # of its gradients, once one was sparse
        self._kind = ABSENT

    def kind(self) -> int:
        """Of this rank's gradient."""
        gradient = self.parameters[0].grad
        if gradient is None:
            return ABSENT
        return DENSE + gradient.sparse_dim() if gradient.is_sparse else DENSE

    def submit(self):
        self.submit_as(self.kind())

    def submit_as(self, kind: int) -> None:
        """submit(), with what changes nothing in the place of a gradient that is not there."""
        self._kind = kind
        if kind > DENSE:
            self.sparse_dimensions = kind - DENSE
        options, gradient = self.options, self._gradient(kind)
        if gradient.is_sparse:
            if options.predivide_factor != 1.0:
                raise InvalidArgumentError(f"the gradient of {self.name} is sparse: gradient_predivide_factor is for dense "
                                           "ones, see sparse_as_dense", "INVALID_ARGUMENT")
            self._submitted = self._context = None
            self.handle = mpi_ops.sparse_allreduce_async(gradient, self.name, options.op, options.process_set)
            return
        submitted, self._context = options.compression.compress(gradient)
        self._submitted = submitted.contiguous()
        self.handle = mpi_ops.allreduce_async_(self._submitted, name=self.name, **options.reduction())

    def _gradient(self, kind: int) -> torch.Tensor:
        parameter, as_dense = self.parameters[0], self.options.sparse_as_dense
        if parameter.grad is None:
            if kind == DENSE or as_dense:
                return torch.zeros_like(parameter, requires_grad=False)
            return _empty_sparse(parameter, kind - DENSE)
        return parameter.grad.to_dense() if parameter.grad.is_sparse and as_dense else parameter.grad

    def finish(self):
        handle, self.handle = self.handle, None
        result = mpi_ops.synchronize(handle)
        parameter = self.parameters[0]
        if not is_wanted(parameter):
            return
        if self._submitted is None:
            parameter.grad = result
        elif self._kind > DENSE:
            parameter.grad = self.options.compression.decompress(result, self._context).to_sparse(self._kind - DENSE)
        else:
            _write_back(parameter, self._submitted, self._context, self.options.compression)


class _Together(Unit):
    """Several gradients, of which `_flags` tell the others which there are."""

    _flags: Flags

    def __init__(self, name, parameters, options):
        super().__init__(name, parameters, options)
        self._sparse: Dict[int, int] = {}  # sparse dimensions of those of this step that were made dense, by id
        self._absent: List[torch.Tensor] = []  # those that this rank has none of

    def begin_step(self):
        super().begin_step()
        if self.handle is None:  # else finish() needs them
            self._sparse = {}

    def _dense(self, parameter: torch.Tensor) -> torch.Tensor:
        """Its gradient, which is there."""
        gradient = parameter.grad
        assert gradient is not None
        if not gradient.is_sparse:
            return gradient
        self._sparse[id(parameter)] = gradient.sparse_dim()
        return gradient.to_dense()

    def _say_what_is_there(self) -> None:
        """Before it is submitted."""
        if self.is_complete() and not self._sparse:
            self._absent = []
            self._flags.write(None)
            return
        self._absent = [parameter for parameter in self.parameters if parameter.grad is None]
        self._flags.write([ABSENT if parameter.grad is None else DENSE + (id(parameter) in self._sparse)
                           for parameter in self.parameters])

    def _hear_what_others_have(self) -> Tuple[Set[int], Dict[int, int]]:
        """Once it is complete, by id: parameters that no rank has a gradient for, and the sparse dimensions of those whose
        gradients are sparse."""
        nobodys: Set[int] = set()
        sparse, self._sparse = self._sparse, {}
        if any(parameter.requires_grad for parameter in self._absent):
            kinds = {id(parameter): kind for parameter, kind in zip(self.parameters, self._flags.read())}
            for parameter in self._absent:
                kind = kinds[id(parameter)]
                if kind == ABSENT:
                    nobodys.add(id(parameter))
                elif kind > DENSE and parameter.requires_grad:
                    sparse[id(parameter)] = kind - DENSE
        return nobodys, sparse


class _Listed(_Together):
    """Each gradient is a tensor of a grouped allreduce, and so are the flags."""

    def __init__(self, name, parameters, options):
        super().__init__(name, parameters, options)
        first = parameters[0]
        dtype = first.dtype if first.is_floating_point() else torch.float32
        self._said = torch.zeros(Flags.elements_for(len(parameters)), dtype=dtype, device=first.device)
        self._flags = Flags(self._said, options.op)

    def _submit(self, gradients: List[torch.Tensor]) -> None:
        """`gradients`: contiguous ones, for all parameters."""
        self._say_what_is_there()
        self._submitted = [self.options.compression.compress(gradient) for gradient in gradients]
        self.handle = mpi_ops.grouped_allreduce_async_([*[tensor for tensor, _ in self._submitted], self._said],
                                                       name=self.name, **self.options.reduction())

    @torch.no_grad()
    def finish(self):
        handle, self.handle = self.handle, None
        mpi_ops.synchronize(handle)
        submitted, self._submitted = self._submitted, []
        nobodys, sparse = self._hear_what_others_have()
        for parameter, (tensor, context) in zip(self.parameters, submitted):
            if not is_wanted(parameter) or id(parameter) in nobodys:
                continue
            is_sparse = id(parameter) in sparse
            if not is_sparse and parameter.grad is not None and is_same_memory(tensor, parameter.grad):
                continue
            result = self._in_shape(self.options.compression.decompress(tensor, context), parameter)
            if is_sparse:
                parameter.grad = result.to_sparse(sparse[id(parameter)])
            elif parameter.grad is None:
                parameter.grad = result
            else:
                parameter.grad.copy_(result)

    def _in_shape(self, result: torch.Tensor, parameter: torch.Tensor) -> torch.Tensor:
        raise NotImplementedError


class Group(_Listed):
    """A group of the program's: one operation of several tensors."""

    @torch.no_grad()
    def submit(self):
        gradients = []
        for parameter in self.parameters:
            if parameter.grad is None:
                gradients.append(torch.zeros_like(parameter, memory_format=torch.contiguous_format))
                continue
            if parameter.grad.is_sparse and not self.options.sparse_as_dense:
                raise InvalidArgumentError(f"group {self.name} has a parameter with a sparse gradient: expected "
                                           "sparse_as_dense=True", "INVALID_ARGUMENT")
            gradients.append(self._dense(parameter).contiguous())
        self._submit(gradients)

    def _in_shape(self, result, parameter):
        return result


class InPlace(_Listed):
    """Dense gradients in memory of torch's that travel as a group, which nobody packs: a bucket without a buffer."""

    @torch.no_grad()
    def submit(self):
        self._submit([self._in_order_of(parameter) for parameter in self.parameters])

    def _in_order_of(self, parameter: torch.Tensor) -> torch.Tensor:
        """The elements of its gradient in one dimension, in the order in which those of the parameter lie in memory: the
        gradient's own memory, if it has that order; zeros where there is none."""
        gradient = None if parameter.grad is None else self._dense(parameter)
        if gradient is None or gradient.stride() != parameter.stride():
            ordered = torch.empty_strided(parameter.shape, parameter.stride(), dtype=parameter.dtype, device=parameter.device)
            gradient = ordered.zero_() if gradient is None else ordered.copy_(gradient)
        return gradient.as_strided((gradient.numel(),), (1,))

    def _in_shape(self, result, parameter):
        return result.as_strided(parameter.shape, parameter.stride())


class Bucket(_Together):
    """Dense gradients that share one buffer, which travels as one tensor: views of it, or copied into it and back."""

    def __init__(self, name, parameters, options):
        super().__init__(name, parameters, options)
        first = parameters[0]
        offsets, elements = [], 0
        for parameter in parameters:
            offsets.append(elements)
            elements += _padded_elements(parameter)
        self._flat = _zeros(elements + Flags.elements_for(len(parameters)), first)
        self._flags = Flags(self._flat[elements:], options.op)
        self._views = {parameter: self._flat.as_strided(parameter.shape, parameter.stride(), offset)
                       for parameter, offset in zip(parameters, offsets)}
        self._are_views = options.bucket_views
        self._reduction = options.reduction()
        self._divisor = 1
        # Inside one node the library divides while it adds. (What decides has to be the same on all ranks: not whether this
        # buffer is mapped.)
        in_passing = first.device.type == "cpu" and _basics.local_size() == _basics.size()
        if (options.op == mpi_ops.Average and options.predivide_factor == 1.0 and not in_passing
                and first.dtype in (torch.float32, torch.float64)):
            # Dividing what is in the cache anyway spares a pass over the result. Narrower types would lose small values.
            self._divisor = options.process_set.size()
            self._reduction["op"] = mpi_ops.Sum

    @torch.no_grad()
    def arrived(self, parameter):
        gradient, view = parameter.grad, self._views[parameter]
        if gradient is view:
            if self._divisor != 1:
                view.div_(self._divisor)
        else:  # the first one since zero_grad(set_to_none=True), or no view
            torch.div(self._dense(parameter), self._divisor, out=view)
            if self._are_views:
                parameter.grad = view
        super().arrived(parameter)

    @torch.no_grad()
    def submit(self):
        if not self.is_complete():
            for parameter in self.parameters:
                if id(parameter) in self.ready:
                    continue
                if parameter.grad is not None:
                    self.arrived(parameter)
                else:
                    self._views[parameter].zero_()
        self._say_what_is_there()
        self._submitted, self._context = self.options.compression.compress(self._flat)
        self.handle = mpi_ops.allreduce_async_(self._submitted, name=self.name, **self._reduction)

    @torch.no_grad()
    def finish(self):
        handle, self.handle = self.handle, None
        mpi_ops.synchronize(handle)
        if self._submitted is not self._flat:
            self._flat.copy_(self.options.compression.decompress(self._submitted, self._context))
        nobodys, sparse = self._hear_what_others_have()
        for parameter, view in self._views.items():
            if id(parameter) in sparse:
                parameter.grad = view.to_sparse(sparse[id(parameter)])
            elif parameter.grad is view or not is_wanted(parameter) or id(parameter) in nobodys:
                continue
            elif self._are_views:
                parameter.grad = view
            elif parameter.grad is None:
                parameter.grad = view.clone(memory_format=torch.preserve_format)
            else:
                parameter.grad.copy_(view)


def _zeros(elements: int, like: torch.Tensor) -> torch.Tensor:
    """Of the parameter's type and device; in host memory that the node's ranks have mapped, if there is such memory."""
    if like.device.type == "cpu":
        try:
            return mapped_zeros(elements, dtype=like.dtype)
        except HorovodInternalError:
            # There is none, or the generation has just ended: whoever still needs the others will hear of that from them.
            pass
    return torch.zeros(elements, dtype=like.dtype, device=like.device)


def _write_back(parameter, submitted, context, compression) -> None:
    if submitted is parameter.grad:
        return
    result = compression.decompress(submitted, context)
    if parameter.grad is None:
        parameter.grad = result
        return
    with torch.no_grad():
        parameter.grad.copy_(result)


def _empty_sparse(parameter: torch.Tensor, sparse_dimensions: int) -> torch.Tensor:
    indices = torch.zeros((sparse_dimensions, 0), dtype=torch.int64, device=parameter.device)
    values = torch.zeros((0, *parameter.shape[sparse_dimensions:]), dtype=parameter.dtype, device=parameter.device)
    return torch.sparse_coo_tensor(indices, values, parameter.shape, **KNOWN_TO_BE_VALID)


def _padded_elements(parameter: torch.Tensor) -> int:
    step = max(1, _ALIGNMENT_BYTES // parameter.element_size())
    return -(-parameter.numel() // step) * step
