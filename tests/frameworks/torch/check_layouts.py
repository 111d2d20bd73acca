"""Tensors whose memory does not say what their elements are: other formats, views that are negated when they are read, complex
numbers, many dimensions, none at all. Every collective gives what it gives for a plain copy of them."""

import os
import re
import warnings

import torch

import coordd.torch as hvd
from ranks import ROOT, on_sizes
from values import expect_error, reduced


def _number(shape, dtype=torch.float32, rank=None):
    """Every rank knows every rank's."""
    generator = torch.Generator().manual_seed(17 + (hvd.rank() if rank is None else rank))
    if dtype.is_complex:
        parts = torch.randint(-4, 5, (*shape, 2), generator=generator).to(torch.float32 if dtype == torch.complex64
                                                                            else torch.float64)
        return torch.view_as_complex(parts)
    return torch.randint(-4, 5, shape, generator=generator).to(dtype)


def _transposed(values):
    return values.transpose(0, -1).contiguous().transpose(0, -1)


def _every_second(values):
    wide = torch.full((*values.shape[:-1], 2 * values.shape[-1]), 99, dtype=values.dtype)
    wide[..., ::2] = values
    return wide[..., ::2]


def _channels_last(values):
    return values.contiguous(memory_format=torch.channels_last)


def _negated(values):
    return torch._neg_view(-values)


def _imaginary(values):
    """Both negated and strided: the imaginary part of a conjugate."""
    return torch.complex(torch.zeros_like(values), -values).conj().imag


def _conjugated(values):
    return values.conj().resolve_conj().conj()


VIEWS = [_transposed, _every_second, _channels_last, _negated, _imaginary]
SHAPE = (6, 4, 2, 2)


def _views(dtype=torch.float32):
    """(name, function from values to a tensor with these values that says it otherwise)."""
    views = [_transposed, _every_second, _channels_last] + ([_conjugated] if dtype.is_complex else [_negated, _imaginary])
    for view in views:
        made = view(_number(SHAPE, dtype))
        assert not made.is_contiguous() or made.is_neg() or made.is_conj(), view
        assert torch.equal(made.resolve_neg().resolve_conj(), _number(SHAPE, dtype)), view
        yield view


def _all(dtype=torch.float32, shape=SHAPE):
    return [_number(shape, dtype, rank) for rank in range(hvd.size())]


def _same(found, expected, what):
    assert found.shape == expected.shape and found.dtype == expected.dtype, (what, found.shape, found.dtype)
    found, expected = found.resolve_neg().resolve_conj(), expected.resolve_neg().resolve_conj()
    assert torch.allclose(found, expected, rtol=1e-6, atol=0.0), (what, found, expected)


def _sum(tensors):
    return torch.stack(tensors).sum(0)


def _own_part(tensor):
    return torch.tensor_split(tensor, hvd.size())[hvd.rank()] if tensor.shape[0] % hvd.size() == 0 else None


def check_no_other_module_asks_for_an_address():
    package = os.path.join(ROOT, "client", "python", "coordd")
    found = []
    for folder, _, files in os.walk(package):
        for name in files:
            path = os.path.join(folder, name)
            # torch.distributed's rules are others: it gives dense tensors, or its calls say that they have to be. _arrays.py makes
            # the arrays whose addresses it takes.
            inside = os.path.relpath(path, package)
            if name.endswith(".py") and inside not in ("torch/_layout.py", "_arrays.py") and not inside.startswith("torch/distributed/"):
                with open(path, encoding="utf-8") as file:
                    found += [f"{path}: {line}" for line in file
                              if re.search(r"data_ptr|__array_interface__\[|\.ctypes\.data|storage\(\)", line)]
    assert not found, found


def check_reductions_in_every_layout():
    tensors = _all()
    for op in (hvd.Sum, hvd.Average, hvd.Max, hvd.Min, hvd.Product):
        expected = reduced(tensors, op)
        for view in _views():
            tensor = view(_number(SHAPE))
            what = (op, view.__name__)
            _same(hvd.allreduce(tensor, op=op), expected, what)
            _same(tensor, _number(SHAPE), (what, "input"))
            _same(hvd.synchronize(hvd.allreduce_async(tensor, op=op)), expected, what)
            for call in (lambda one: hvd.allreduce_(one, op=op), lambda one: hvd.synchronize(hvd.allreduce_async_(one, op=op)),
                         lambda one: hvd.grouped_allreduce_([torch.ones(3), one], op=op)[1]):
                tensor = view(_number(SHAPE))
                result = call(tensor)
                assert result is tensor, what
                _same(tensor, expected, (what, "in place"))
            plain, other = hvd.grouped_allreduce([_number(SHAPE), view(_number(SHAPE))], op=op)
            _same(plain, expected, what)
            _same(other, expected, what)


def check_in_place_changes_what_the_view_is_of():
    values = _number((4, 3))
    base = torch.complex(values, values + 1)
    hvd.allreduce_(base.conj().imag, op=hvd.Sum)
    _same(base, torch.complex(values, _sum([_number((4, 3), rank=rank) + 1 for rank in range(hvd.size())])), "imag of conj")
    base = torch.full((8, 3), 7.0)
    base[::2] = values
    hvd.broadcast_(base[::2], 0)
    _same(base[::2], _number((4, 3), rank=0), "every second row")
    _same(base[1::2], torch.full((4, 3), 7.0), "the others")


def check_exchanges_in_every_layout():
    for dtype in (torch.float32, torch.int64, torch.complex64, torch.complex128):
        tensors = _all(dtype)
        for view in (_views(dtype) if dtype != torch.int64 else (_transposed, _every_second, _channels_last)):
            tensor, what = view(_number(SHAPE, dtype)), (dtype, view.__name__)
            root = hvd.size() - 1
            _same(hvd.broadcast(tensor, root), tensors[root], what)
            _same(hvd.allgather(tensor), torch.cat(tensors), what)
            _same(hvd.grouped_allgather([tensor, tensor])[1], torch.cat(tensors), what)
            gathered = hvd.gather(tensor, root)
            if hvd.rank() == root:
                _same(gathered, torch.cat(tensors), what)
            if SHAPE[0] % hvd.size() == 0:
                _same(hvd.alltoall(tensor), torch.cat([_own_part(one) for one in tensors]), what)
            splits = [SHAPE[0]] + [0] * (hvd.size() - 1)
            output, received = hvd.alltoall(tensor, splits)
            _same(output, torch.cat(tensors) if hvd.rank() == 0 else tensors[0][:0], what)
            assert received.tolist() == [SHAPE[0] if hvd.rank() == 0 else 0] * hvd.size()
            in_place = view(_number(SHAPE, dtype))
            assert hvd.broadcast_(in_place, root) is in_place
            _same(in_place, tensors[root], (what, "in place"))


def check_scatters_in_every_layout():
    for dtype in (torch.float32, torch.complex64):
        expected = _own_part(_sum(_all(dtype)))
        for view in _views(dtype):
            tensor, what = view(_number(SHAPE, dtype)), (dtype, view.__name__)
            if expected is not None:
                _same(hvd.reducescatter(tensor, op=hvd.Sum), expected, what)
                _same(hvd.grouped_reducescatter([tensor], op=hvd.Sum)[0], expected, what)
            found = hvd.reduce(tensor, 0, op=hvd.Sum)
            if hvd.rank() == 0:
                _same(found, _sum(_all(dtype)), what)
    flat = torch._neg_view(-_number((12,)))
    if 12 % hvd.size() == 0:
        output = torch._neg_view(torch.zeros(12 // hvd.size()))
        _same(hvd.reduce_scatter_tensor(output, flat), _own_part(_sum(_all(shape=(12,)))), "reduce_scatter_tensor")
    output = torch._neg_view(torch.zeros(12 * hvd.size()))
    _same(hvd.allgather_into_tensor(output, flat), torch.cat(_all(shape=(12,))), "allgather_into_tensor")


@on_sizes(2, 3, 4)
def check_messages_in_every_layout():
    for dtype in (torch.float32, torch.complex64):
        for view in _views(dtype):
            if hvd.rank() == 0:
                hvd.send(view(_number(SHAPE, dtype)), 1)
            elif hvd.rank() == 1:
                room = view(torch.zeros(SHAPE, dtype=dtype))
                assert hvd.recv(room, 0) is room
                _same(room, _number(SHAPE, dtype, 0), view.__name__)


@on_sizes(2, 3, 4)
def check_ranks_may_have_different_memory_formats():
    ways = [lambda one: one, _channels_last, _transposed, _imaginary]
    own = ways[hvd.rank() % len(ways)]
    # Equal sizes of all dimensions: nothing but the order in memory tells the formats apart.
    for shape in (SHAPE, (4, 4, 4, 4)):
        expected = _sum(_all(shape=shape))
        tensor = own(_number(shape))
        _same(hvd.allreduce(tensor, op=hvd.Sum), expected, "allreduce")
        _same(hvd.grouped_allreduce([tensor], op=hvd.Sum)[0], expected, "grouped")
        _same(hvd.allreduce_(tensor, op=hvd.Sum), expected, "in place")
        _same(hvd.broadcast_(own(_number(shape)), 0), _number(shape, rank=0), "broadcast")


def check_results_keep_the_memory_format():
    tensor = _channels_last(_number(SHAPE))
    for result in (hvd.allreduce(tensor), hvd.broadcast(tensor, 0), hvd.grouped_allreduce([tensor])[0]):
        assert result.stride() == tensor.stride(), result.stride()


def check_gradients_of_other_layouts():
    for view in (_transposed, _channels_last, _negated):
        leaf = _number(SHAPE).requires_grad_()
        weight = _imaginary(_number(SHAPE))
        (hvd.allreduce(view(leaf), op=hvd.Sum) * weight).sum().backward()
        _same(leaf.grad, _sum(_all()), view.__name__)


def check_complex_numbers():
    for dtype in (torch.complex64, torch.complex128):
        for shape in ((), (5,), (4, 3)):
            tensor, tensors = _number(shape, dtype), _all(dtype, shape)
            _same(hvd.allreduce(tensor, op=hvd.Sum), _sum(tensors), shape)
            mean = hvd.allreduce(tensor)
            assert mean.dtype == dtype and torch.allclose(mean, _sum(tensors) / hvd.size()), (mean, shape)
            _same(hvd.allreduce_(tensor.clone(), op=hvd.Sum, prescale_factor=2.0), 2 * _sum(tensors), shape)
            _same(hvd.grouped_allreduce([tensor, tensor.real], op=hvd.Sum)[0], _sum(tensors), shape)
            _same(hvd.broadcast(tensor, 0), tensors[0], shape)
        leaf = _number((3,), dtype).requires_grad_()
        hvd.allreduce(leaf, op=hvd.Sum).abs().sum().backward()
        assert leaf.grad.dtype == dtype
        for op, name in ((hvd.Min, "Min"), (hvd.Max, "Max"), (hvd.Product, "Product")):
            for call in (lambda: hvd.allreduce(tensor, op=op), lambda: hvd.allreduce_async_(tensor, op=op),
                         lambda: hvd.grouped_allreduce([torch.ones(4), tensor], op=op), lambda: hvd.reduce(tensor, 0, op=op),
                         lambda: hvd.reducescatter(tensor, op=op)):
                expect_error(ValueError, call, name, "complex", "Sum or Average")
        for call in (hvd.allgather, hvd.alltoall, hvd.reducescatter, lambda one: hvd.gather(one, 0)):
            expect_error(ValueError, lambda: call(torch.tensor(1j, dtype=dtype)), "dimension")
    _same(hvd.allreduce(torch.ones(2)), torch.ones(2), "still in step")


def check_many_dimensions():
    shape = (6, 1, 2, 1, 2, 1, 1, 3, 1, 2)
    for dtype in (torch.float32, torch.complex64):
        tensor, tensors = _number(shape, dtype), _all(dtype, shape)
        _same(hvd.allreduce(tensor, op=hvd.Sum), _sum(tensors), dtype)
        _same(hvd.allreduce(_transposed(tensor), op=hvd.Sum), _sum(tensors), dtype)
        _same(hvd.grouped_allreduce_([tensor.clone()], op=hvd.Sum)[0], _sum(tensors), dtype)
        _same(hvd.broadcast(tensor, 0), tensors[0], dtype)
        _same(hvd.allgather(tensor), torch.cat(tensors), dtype)
        if 6 % hvd.size() == 0:
            _same(hvd.reducescatter(tensor, op=hvd.Sum), _own_part(_sum(tensors)), dtype)
            _same(hvd.alltoall(tensor), torch.cat([_own_part(one) for one in tensors]), dtype)
        _same(hvd.allgather(tensor[:0]), torch.cat(tensors)[:0], dtype)
    if hvd.size() > 1:  # what is flattened is still compared
        wrong = torch.ones((1,) * 9 + (1 + (hvd.rank() == 0),))
        expect_error(hvd.HorovodInternalError, lambda: hvd.allreduce(wrong, name="dims"), "shape")


def check_long_names():
    for letter in ("x", "\u00fc", "\u6f22"):
        one, other = letter * 700 + ".a", letter * 700 + ".b"
        handles = [hvd.allreduce_async(torch.ones(2) * number, name=name, op=hvd.Sum) for name, number in ((one, 1), (other, 2))]
        _same(hvd.synchronize(handles[1]), torch.full((2,), 2.0 * hvd.size()), "b")
        _same(hvd.synchronize(handles[0]), torch.full((2,), 1.0 * hvd.size()), "a")
        _same(hvd.allreduce(torch.ones(2), name=one), torch.ones(2), "waits")
        _same(hvd.grouped_allreduce([torch.ones(2)] * 11, name=one)[10], torch.ones(2), "group")
        if hvd.size() > 1:
            wrong = torch.ones(2 + (hvd.rank() == 0))
            error = expect_error(hvd.HorovodInternalError, lambda: hvd.allreduce(wrong, name=one), "shape",
                                 f"allreduce.{letter * 10}", "...")
            assert error.tensor == f"allreduce.{one}", error.tensor


@on_sizes(1, 2)
def check_what_shares_its_memory_is_not_written():
    shared = torch.ones(3, 1).expand(3, 4)
    _same(hvd.allreduce(shared), torch.ones(3, 4), "a copy")
    for call in (hvd.allreduce_, hvd.allreduce_async_, lambda one: hvd.broadcast_(one, 0),
                 lambda one: hvd.grouped_allreduce_([torch.ones(2), one])):
        expect_error(ValueError, lambda: call(shared), "in place", "share memory", "(3, 4)")
        expect_error(ValueError, lambda: call(torch.ones(9).as_strided((3, 4), (2, 1))), "share memory")
    once = torch.ones(1, 4).expand(1, 4)
    _same(hvd.allreduce_(once, op=hvd.Sum), torch.full((1, 4), 1.0 * hvd.size()), "one row is no overlap")
    zeros = torch._efficientzerotensor(3)
    _same(hvd.allreduce(zeros), torch.zeros(3), "zeros without memory")
    expect_error(ValueError, lambda: hvd.allreduce_(zeros), "zeros")
    _same(hvd.allreduce(torch.zeros(0, 3).t()), torch.zeros(3, 0), "nothing")


class _Wrapper(torch.Tensor):
    """A tensor whose elements are another's."""

    @staticmethod
    def __new__(cls, inner):
        return torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype, device=inner.device)

    __torch_function__ = torch._C._disabled_torch_function_impl

    @classmethod
    def __torch_dispatch__(cls, function, types, args=(), kwargs=None):
        with torch.no_grad():
            return function(*[torch.empty(arg.shape) if isinstance(arg, cls) else arg for arg in args], **(kwargs or {}))


@on_sizes(1, 2)
def check_tensors_without_memory_are_refused():
    freed = torch.ones(100)
    (freed.untyped_storage() if hasattr(freed, "untyped_storage") else freed.storage().untyped()).resize_(0)
    nested = getattr(torch.nested, "nested_tensor", None) or torch.nested_tensor
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        refused = [(freed, "freed"), (_Wrapper(torch.ones(3)), "_Wrapper"), (nested([torch.ones(2), torch.ones(3)]), "nested"),
                   (torch.empty(3, device="meta"), "meta"), (torch.eye(3).to_mkldnn(), "layout"),
                   (torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.quint8), "quint8"), (torch.eye(3).to_sparse(), "sparse")]
        for tensor, word in refused:
            for call in (hvd.allreduce_, hvd.allreduce_async_, lambda one: hvd.broadcast_(one, 0), hvd.allgather,
                         lambda one: hvd.grouped_allreduce_([torch.ones(2), one])):
                expect_error(ValueError, lambda: call(tensor), word)
    try:
        from torch.func import vmap
    except ImportError:
        from functorch import vmap
    expect_error(ValueError, lambda: vmap(lambda one: hvd.allreduce_(one))(torch.ones(2, 3)), "vmap")
    _same(hvd.allreduce(torch.ones(2)), torch.ones(2), "still in step")


def check_leaves_and_inference():
    leaf = torch.ones(4, 3).t().requires_grad_()
    hvd.allreduce_(leaf, op=hvd.Sum)
    _same(leaf.detach(), torch.full((3, 4), 1.0 * hvd.size()), "leaf")
    with torch.inference_mode():
        made = torch.ones(4, 3).t()
        _same(hvd.allreduce(made, op=hvd.Sum), torch.full((3, 4), 1.0 * hvd.size()), "inside")
        hvd.allreduce_(leaf, op=hvd.Sum)
    hvd.allreduce_(made, op=hvd.Sum)  # outside of it
    _same(made, torch.full((3, 4), 1.0 * hvd.size()), "inference")
    _same(leaf.detach(), torch.full((3, 4), 1.0 * hvd.size() ** 2), "leaf")


class _Parts(torch.nn.Module):

    def __init__(self, last):
        super().__init__()
        torch.manual_seed(3)
        self.convolution = torch.nn.Conv2d(4, 4, 4)
        self.phases = torch.nn.Parameter(torch.randn(3, dtype=torch.complex64))
        self.deep = torch.nn.Parameter(torch.randn((1,) * 9 + (2,)))
        if last:
            self.convolution.weight.data = _channels_last(self.convolution.weight.data)

    def forward(self, images):
        return (self.convolution(images).sum() * (self.phases.conj() * (2 + 1j)).abs().sum() + self.deep.sum() ** 2)


def check_training_with_mixed_formats():
    """Ranks whose parameters have different memory formats train as one process does, with and without views of buckets."""
    images = torch.randn(2 * hvd.size(), 4, 5, 5, generator=torch.Generator().manual_seed(5))
    for views in (True, False):
        alone = _Parts(False)
        own = _Parts(hvd.rank() % 2 == 1)
        hvd.broadcast_parameters(own.state_dict(), 0)
        alone_optimizer = torch.optim.SGD(alone.parameters(), lr=0.01)
        optimizer = hvd.DistributedOptimizer(torch.optim.SGD(own.parameters(), lr=0.01), own.named_parameters(),
                                             gradient_as_bucket_view=views)
        for _ in range(4):
            for model, one, batches in ((alone, alone_optimizer, images.chunk(hvd.size())),
                                        (own, optimizer, [images.chunk(hvd.size())[hvd.rank()]])):
                one.zero_grad()
                (sum(model(batch) for batch in batches) / len(batches)).backward()
                one.step()
        for (name, found), expected in zip(own.named_parameters(), alone.parameters()):
            assert torch.allclose(found, expected, atol=1e-5), (name, found, expected)
