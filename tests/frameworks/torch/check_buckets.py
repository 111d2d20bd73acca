"""The buckets in which gradients travel after the first step. Run by ranks.py."""

import contextlib
import copy
import gc
import os
import unittest.mock
import weakref

import torch

import coordd.torch as hvd
from check_optimizer import STEPS, assert_equal_models, batch, loss_of, network, own, sgd, train_alone, train_together
from coordd.exceptions import HorovodInternalError
from coordd.torch import _gradients, _streams, _units
from coordd.torch.mpi_ops import allreduce_async_
from ranks import on_sizes


@contextlib.contextmanager
def small_buckets():
    """So that a small network has several."""
    before = _gradients.FIRST_BUCKET_BYTES, _gradients.BUCKET_BYTES
    _gradients.FIRST_BUCKET_BYTES, _gradients.BUCKET_BYTES = 40, 100
    try:
        yield
    finally:
        _gradients.FIRST_BUCKET_BYTES, _gradients.BUCKET_BYTES = before


def buckets_of(optimizer):
    units = dict.fromkeys(optimizer._coordd_exchange._units.values())
    return [unit for unit in units if isinstance(unit, (_units.Bucket, _units.InPlace))]


def wrap(model, **options):
    return hvd.DistributedOptimizer(sgd(model.parameters()), model.named_parameters(), **options)


def step(model, optimizer, number):
    loss_of(model, *map(own, batch(number))).backward()
    optimizer.step()


@on_sizes(2, 3)
def check_several_buckets_train_as_one_process():
    with small_buckets():
        alone = train_alone(sgd)
        assert_equal_models(train_together(sgd), alone)
        assert_equal_models(train_together(sgd, compression=hvd.Compression.bf16), alone, 3e-2)
        assert_equal_models(train_together(sgd, gradient_predivide_factor=2.0), alone)
        for set_to_none in (True, False):
            model = network()
            optimizer = wrap(model)
            for number in range(STEPS):
                optimizer.zero_grad(set_to_none=set_to_none)
                step(model, optimizer, number)
            assert_equal_models(model, alone)
            buckets = buckets_of(optimizer)
            assert len(buckets) > 1 and sum(len(bucket.parameters) for bucket in buckets) == 6
            prefix = optimizer._coordd_exchange._prefix  # of what is not the first optimizer of these names
            assert prefix + "bucket0[4.bias..4.weight]" in [bucket.name for bucket in buckets]
            assert all(parameter.grad is bucket._views[parameter] for bucket in buckets for parameter in bucket.parameters)


@on_sizes(2, 3)
def check_gradients_that_are_no_views_train_as_one_process():
    alone = train_alone(sgd)
    with small_buckets():
        assert_equal_models(train_together(sgd, gradient_as_bucket_view=False, compression=hvd.Compression.bf16), alone, 3e-2)
        for set_to_none in (True, False):
            model = network()
            optimizer = wrap(model, gradient_as_bucket_view=False)
            for number in range(STEPS):
                optimizer.zero_grad(set_to_none=set_to_none)
                step(model, optimizer, number)
            assert_equal_models(model, alone)
            assert len(buckets_of(optimizer)) > 1


@on_sizes(2)
def check_gradients_that_are_no_views_are_reduced_where_torch_has_put_them():
    model = network()
    optimizer = wrap(model, gradient_as_bucket_view=False)
    places = []
    for number in range(STEPS):
        optimizer.zero_grad(set_to_none=False)
        loss_of(model, *map(own, batch(number))).backward()
        submitted = [tensor for bucket in buckets_of(optimizer) for tensor, _ in bucket._submitted]
        places.append(sorted(parameter.grad.data_ptr() for parameter in model.parameters()))
        assert number == 0 or sorted(tensor.data_ptr() for tensor in submitted) == places[-1]
        optimizer.step()
    assert places[0] == places[-1]


@on_sizes(2)
def check_gradients_in_an_order_of_their_own_and_of_frozen_parameters():
    for set_to_none in (True, False):
        parameters = [torch.nn.Parameter(torch.zeros(4, 3)), torch.nn.Parameter(torch.zeros(5, 2).t()),
                      torch.nn.Parameter(torch.zeros(7))]
        optimizer = hvd.DistributedOptimizer(torch.optim.SGD(parameters, lr=1.0), gradient_as_bucket_view=False)
        for number in range(4):
            optimizer.zero_grad(set_to_none=set_to_none)
            for index, parameter in enumerate(parameters):
                parameter.requires_grad_(index < 2 or number < 2)
            factors = [torch.arange(12.0).reshape(3, 4).t(), torch.arange(10.0).reshape(2, 5), torch.arange(7.0)]
            loss = (hvd.rank() + 1) * sum((parameter * factor).sum() for parameter, factor in zip(parameters, factors)
                                          if parameter.requires_grad)
            loss.backward()
            optimizer.step()
            for index, (parameter, factor) in enumerate(zip(parameters, factors)):
                steps = number + 1 if index < 2 else min(number + 1, 2)
                assert torch.equal(parameter.detach(), -1.5 * steps * factor), (number, index, parameter)
        assert len(buckets_of(optimizer)) == 1


@on_sizes(2)
def check_views_are_in_the_order_in_which_gradients_were_there():
    model = network()
    optimizer = wrap(model)
    for number in range(2):
        optimizer.zero_grad()
        step(model, optimizer, number)
    bucket, = buckets_of(optimizer)
    places = [parameter.grad.data_ptr() for parameter in bucket.parameters]
    assert places == sorted(places) and places[0] == bucket._flat.data_ptr()
    last = {id(parameter) for parameter in model[4].parameters()}  # of the last layer: there first
    assert {id(parameter) for parameter in bucket.parameters[:2]} == last


@on_sizes(2)
def check_several_passes_add_up_in_views():
    alone = train_alone(sgd)
    for views in (True, False):
        for set_to_none in (True, False):
            model = network()
            optimizer = wrap(model, gradient_as_bucket_view=views, backward_passes_per_step=3)
            for number in range(STEPS):
                optimizer.zero_grad(set_to_none=set_to_none)
                for _ in range(3):
                    (loss_of(model, *map(own, batch(number))) / 3).backward()
                optimizer.step()
            assert_equal_models(model, alone)
            bucket, = buckets_of(optimizer)
            if views:
                assert all(parameter.grad is bucket._views[parameter] for parameter in bucket.parameters)


@on_sizes(2)
def check_groups_of_zero_have_no_buckets():
    model = network()
    optimizer = wrap(model, groups=0)
    for number in range(3):
        optimizer.zero_grad()
        step(model, optimizer, number)
    assert not buckets_of(optimizer)


@on_sizes(2)
def check_what_one_rank_leaves_out_of_a_bucket_is_zero_there():
    for views in (True, False):
        for set_to_none in (True, False):
            leave_out(views, set_to_none)


def leave_out(views, set_to_none):
    model, extra = network(), torch.nn.Linear(3, 2).double()
    parameters = [*model.parameters(), *extra.parameters()]
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(parameters, lr=0.1), gradient_as_bucket_view=views)
    for number in range(STEPS):
        optimizer.zero_grad(set_to_none=set_to_none)
        inputs, targets = map(own, batch(number))
        output = model(inputs)
        if hvd.rank() == number % 2:
            output = output + extra(inputs)
        loss = (output - targets).pow(2).mean()
        mine, = torch.autograd.grad(loss, extra.weight, retain_graph=True, allow_unused=True)
        assert (mine is not None) == (hvd.rank() == number % 2)
        mine = torch.zeros(2, 3, dtype=torch.float64) if mine is None else mine
        loss.backward()
        optimizer.step()
        assert torch.allclose(extra.weight.grad, hvd.allreduce(mine, op=hvd.Average))
    assert len(buckets_of(optimizer)) == 1


@on_sizes(2)
def check_frozen_parameters_keep_no_gradient():
    model = network()
    optimizer = wrap(model)
    step(model, optimizer, 0)
    for parameter in model[0].parameters():
        parameter.requires_grad_(False)
    frozen = copy.deepcopy(model[0].state_dict())
    for number in range(1, STEPS):
        optimizer.zero_grad(set_to_none=True)
        step(model, optimizer, number)
        assert model[0].weight.grad is None
    assert torch.equal(model[0].weight, frozen["weight"])


@on_sizes(2)
def check_dtypes_and_layouts_have_what_they_need():
    torch.manual_seed(2)
    model = torch.nn.ModuleDict({"image": torch.nn.Conv2d(2, 4, 3).to(memory_format=torch.channels_last),
                                 "narrow": torch.nn.Linear(3, 3).to(torch.bfloat16), "wide": torch.nn.Linear(3, 3).double(),
                                 "table": torch.nn.Embedding(5, 2, sparse=True)})
    alone = copy.deepcopy(model)
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters())
    plain = torch.optim.SGD(alone.parameters(), lr=0.1)
    for number in range(STEPS):
        torch.manual_seed(number)
        images = torch.randn(4, 2, 6, 6).contiguous(memory_format=torch.channels_last)
        vectors, rows = torch.randn(4, 3, dtype=torch.float64), torch.arange(4)
        for one, who, part in ((optimizer, model, own), (plain, alone, lambda whole: whole)):
            one.zero_grad()
            (who["image"](part(images)).pow(2).mean() + who["narrow"](part(vectors).bfloat16()).pow(2).mean()
             + who["wide"](part(vectors)).pow(2).mean() + who["table"](part(rows)).pow(2).mean()).backward()
            one.step()
    for name, tolerance in (("image", 1e-5), ("narrow", 3e-2), ("wide", 1e-9), ("table", 1e-5)):
        assert_equal_models(model[name], alone[name], tolerance)
    assert len(buckets_of(optimizer)) == 3  # float32, bfloat16, float64
    assert model["image"].weight.grad.stride() == model["image"].weight.stride()


@on_sizes(2)
def check_ranks_agree_where_only_one_has_seen_a_sparse_gradient():
    torch.manual_seed(2)
    table = torch.nn.Embedding(5, 2, sparse=True)
    dense = torch.nn.Linear(2, 2)
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD([*table.parameters(), *dense.parameters()], lr=0.1))
    dense(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    assert len(buckets_of(optimizer)[0].parameters) == 3  # nobody has seen one yet
    optimizer.zero_grad()
    before = table.weight.detach().clone()
    table(torch.tensor([1])).sum().backward()  # and now: it becomes dense
    dense(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    before[1] -= 0.1
    assert torch.allclose(table.weight, before)


@on_sizes(2)
def check_models_that_are_gone_are_freed():
    model = network()
    optimizer = wrap(model)
    for number in range(3):
        optimizer.zero_grad()
        step(model, optimizer, number)
    gone = weakref.ref(model[0].weight)
    del model, optimizer
    gc.collect()
    assert gone() is None


@on_sizes(2)
def check_a_forked_child_needs_no_gradients():
    model = network()
    optimizer = wrap(model)
    for number in range(3):
        optimizer.zero_grad()
        step(model, optimizer, number)
    assert buckets_of(optimizer)
    child = os.fork()
    if child == 0:  # as a data loader: it has the model, and lets go of it or not
        try:
            copies = copy.deepcopy(model.state_dict())
            optimizer.zero_grad(set_to_none=True)
            del model, optimizer, copies
            gc.collect()
            os._exit(0)
        finally:
            os._exit(1)
    _, status = os.waitpid(child, 0)
    assert status == 0, status
    step(model, optimizer, 3)


@on_sizes(2)
def check_a_step_whose_gradients_are_there_needs_no_mapped_memory():
    for code in ("RESOURCE_EXHAUSTED", "GENERATION_CHANGED"):  # the others have left after their last step

        def refuse(*_, **__):
            raise HorovodInternalError("refused", code)

        model, before = network(), _units.mapped_zeros
        optimizer = wrap(model)
        _units.mapped_zeros = refuse
        try:
            step(model, optimizer, 0)
        finally:
            _units.mapped_zeros = before
        for number in range(1, STEPS):
            optimizer.zero_grad()
            step(model, optimizer, number)
        assert_equal_models(model, train_alone(sgd))


class StandInCuda:
    """torch.cuda's streams and events, as far as who waits for what: a journal."""

    def __init__(self):
        self.journal = []
        self.now = None

    def stream(self, name):
        journal = self.journal

        class Stream:
            device = "cuda:0"

            def wait_event(self, event):
                journal.append(f"{name} waits for {event.at}")

            def __str__(self):
                return name

        return Stream()

    def current_stream(self, device):
        return self.now

    def Event(self):
        journal = self.journal

        class Event:
            at = None

            def record(self, stream):
                self.at = str(stream)
                journal.append(f"event on {stream}")

        return Event()


@contextlib.contextmanager
def gradients_on_streams():
    """As if all gradients were on a GPU, each on the stream that is current then."""
    cuda = StandInCuda()
    with unittest.mock.patch.object(_streams, "_is_on_gpu", lambda tensor: True), \
            unittest.mock.patch.object(torch.cuda, "current_stream", cuda.current_stream), \
            unittest.mock.patch.object(torch.cuda, "Event", cuda.Event):
        yield cuda


@on_sizes(1, 2)
def check_a_unit_waits_for_every_stream_on_which_its_gradients_were_made():
    options = _units.Options(hvd.Compression.none, hvd.Sum, 1.0, False, hvd.global_process_set)
    parameters = [torch.nn.Parameter(torch.ones(3)) for _ in range(4)]
    for make in (_units.Bucket, _units.Group):
        with gradients_on_streams() as cuda:
            unit = make("unit", parameters, options)
            first, second, last = map(cuda.stream, ("first", "second", "last"))
            for _ in range(2):
                for parameter, stream in zip(parameters, (first, second, first, last)):
                    parameter.grad = torch.ones(3)
                    cuda.now = stream
                    unit.arrived(parameter)
                # The last one's stream is the one on which it is submitted; events are behind the newest gradient of a stream.
                unit.join_streams()
                assert cuda.journal == ["event on first", "event on second", "event on first", "event on last",
                                        "last waits for first", "last waits for second"], cuda.journal
                cuda.journal.clear()
                unit.begin_step()
            cuda.now = first
            unit.join_streams()  # nothing of this step
            assert not cuda.journal


@on_sizes(2)
def check_the_optimizer_joins_the_streams_of_a_unit_before_it_submits():
    with gradients_on_streams() as cuda:
        cuda.now = cuda.stream("one")
        model = network()
        optimizer = wrap(model)
        for number in range(3):
            cuda.journal.clear()
            optimizer.zero_grad()
            loss = loss_of(model, *map(own, batch(number)))
            with unittest.mock.patch.object(_streams.Streams, "join", lambda streams: cuda.journal.append("join")):
                with unittest.mock.patch.object(_gradients.mpi_ops, "allreduce_async_",
                                                lambda *arguments, **named: cuda.journal.append(
                                                    "event: host memory" if "optimizer.used" in named["name"] else "submit")
                                                or allreduce_async_(*arguments, **named)):
                    loss.backward()
                    optimizer.step()
            steps = [entry for entry in cuda.journal if not entry.startswith("event")]
            assert steps[:2] == ["join", "submit"] and steps.count("join") == steps.count("submit") > 0, cuda.journal


@on_sizes(1, 2)
def check_tensors_in_mapped_memory():
    for tensor, shape, dtype in ((hvd.mapped_zeros(5), (5,), torch.float32),
                                 (hvd.mapped_zeros(300, 1000, dtype=torch.float64), (300, 1000), torch.float64),
                                 (hvd.mapped_zeros((2, 3), dtype=torch.int64), (2, 3), torch.int64),
                                 (hvd.mapped_zeros(0, 4), (0, 4), torch.float32),
                                 (hvd.mapped_zeros(()), (), torch.float32)):
        assert tensor.shape == shape and tensor.dtype == dtype and not tensor.any()
        ones = torch.ones(shape, dtype=dtype)
        tensor.add_(ones)
        assert torch.equal(hvd.allreduce(tensor, op=hvd.Sum), ones * hvd.size())
        hvd.allreduce_(tensor, op=hvd.Sum)
        assert torch.equal(tensor, ones * hvd.size())
    rows = hvd.mapped_zeros(4, 10)[2:]  # a part of it keeps the whole
    gc.collect()
    hvd.broadcast_(rows.fill_(hvd.rank()), root_rank=hvd.size() - 1)
    assert torch.equal(rows, torch.full((2, 10), float(hvd.size() - 1)))
