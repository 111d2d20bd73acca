"""DistributedOptimizer against the same training in one process, over the whole batch. Run by ranks.py."""

import copy
import inspect
import warnings

import torch

import coordd.torch as hvd
from ranks import on_sizes

STEPS = 4
BATCH = 12  # of all ranks together; divides by 1, 2, 3, 4


def raises(kind, call, *parts):
    try:
        call()
    except kind as error:
        missing = [part for part in parts if part not in str(error)]
        assert not missing, f"{error!r} does not say {missing}"
        return
    raise AssertionError(f"no {kind.__name__}")


def network(dtype=torch.float64):
    torch.manual_seed(7)
    return torch.nn.Sequential(torch.nn.Linear(3, 5), torch.nn.Tanh(), torch.nn.Linear(5, 4), torch.nn.Tanh(),
                               torch.nn.Linear(4, 2)).to(dtype)


def batch(step, dtype=torch.float64):
    generator = torch.Generator().manual_seed(100 + step)
    return (torch.randn(BATCH, 3, generator=generator, dtype=torch.float64).to(dtype),
            torch.randn(BATCH, 2, generator=generator, dtype=torch.float64).to(dtype))


def own(tensor):
    return tensor.chunk(hvd.size())[hvd.rank()]


def loss_of(model, inputs, targets):
    return (model(inputs) - targets).pow(2).mean()


def train_alone(make, model=None, steps=STEPS):
    model = model or network()
    optimizer = make(model.parameters())
    for step in range(steps):
        inputs, targets = batch(step)

        def closure():
            optimizer.zero_grad()
            loss = loss_of(model, inputs, targets)
            loss.backward()
            return loss

        optimizer.step(closure)
    return model


def train_together(make, steps=STEPS, use_closure=False, **options):
    model = network()
    optimizer = hvd.DistributedOptimizer(make(model.parameters()), model.named_parameters(), **options)
    for step in range(steps):
        inputs, targets = map(own, batch(step))

        def closure():
            optimizer.zero_grad()
            loss = loss_of(model, inputs, targets)
            loss.backward()
            return loss

        if use_closure:
            optimizer.step(closure)
        else:
            closure()
            optimizer.step()
    return model


def assert_equal_models(found, expected, tolerance=1e-9):
    for (name, a), b in zip(found.named_parameters(), expected.parameters()):
        assert torch.allclose(a, b, rtol=tolerance, atol=tolerance), f"{name} differs by {(a - b).abs().max()}"


def sgd(parameters):
    return torch.optim.SGD(parameters, lr=0.1, momentum=0.9)


def optimizers_of_torch():
    return [one for one in vars(torch.optim).values()
            if inspect.isclass(one) and issubclass(one, torch.optim.Optimizer) and one is not torch.optim.Optimizer]


def matrices_only(parameters):
    return [parameter for parameter in parameters if parameter.dim() == 2]


# --- every optimizer -------------------------------------------------------------------------------------------------


def check_every_optimizer_of_torch_trains_as_one_process():
    seen = set()
    for kind in optimizers_of_torch():
        seen.add(kind.__name__)
        if kind is torch.optim.SparseAdam:
            continue  # check_sparse_adam
        make, tolerance = kind, 1e-9
        if kind.__name__ == "Muon":  # takes matrices, computes in bfloat16
            continue  # check_muon
        if kind is torch.optim.SGD:
            make = sgd
        if kind is torch.optim.LBFGS:  # more iterations of it magnify the last bit of the sum until nothing is equal
            make = lambda parameters: torch.optim.LBFGS(parameters, max_iter=5)  # noqa: E731
        try:
            assert_equal_models(train_together(make, use_closure=kind is torch.optim.LBFGS), train_alone(make), tolerance)
        except Exception as error:
            raise AssertionError(f"with {kind.__name__}") from error
    assert {"SGD", "Adam", "AdamW", "LBFGS", "Rprop", "ASGD", "NAdam", "RAdam"} <= seen, seen


def check_muon():
    if not hasattr(torch.optim, "Muon"):
        return

    def make(parameters):
        return torch.optim.Muon(matrices_only(parameters), lr=0.01)

    model = network()
    names = [(name, parameter) for name, parameter in model.named_parameters() if parameter.dim() == 2]
    optimizer = hvd.DistributedOptimizer(make(model.parameters()), names)
    for step in range(STEPS):
        optimizer.zero_grad()
        loss_of(model, *map(own, batch(step))).backward()
        optimizer.step()
    assert_equal_models(model, train_alone(make), 1e-2)


def check_sparse_adam():

    def train(wrap, part):
        torch.manual_seed(1)
        table = torch.nn.Embedding(10, 3, sparse=True).double()
        optimizer = wrap(torch.optim.SparseAdam(list(table.parameters()), lr=0.1), table)
        for step in range(STEPS):
            rows = part(torch.arange(BATCH) * (step + 3) % 10)
            optimizer.zero_grad()
            table(rows).pow(2).mean().backward()
            optimizer.step()
        return table

    together = train(lambda optimizer, table: hvd.DistributedOptimizer(optimizer, table.named_parameters()), own)
    assert_equal_models(together, train(lambda optimizer, table: optimizer, lambda rows: rows))


def check_closures_are_averaged_for_every_optimizer():
    assert_equal_models(train_together(sgd, use_closure=True), train_alone(sgd))
    line_search = lambda parameters: torch.optim.LBFGS(parameters, max_iter=3, line_search_fn="strong_wolfe")  # noqa: E731
    assert_equal_models(train_together(line_search, use_closure=True), train_alone(line_search), 1e-7)


# --- options ---------------------------------------------------------------------------------------------------------


def check_options_that_change_how_gradients_travel_and_not_the_result():
    alone = train_alone(sgd)
    assert_equal_models(train_together(sgd, groups=2), alone)
    assert_equal_models(train_together(sgd, groups=100), alone)
    assert_equal_models(train_together(sgd, groups=0), alone)
    assert_equal_models(train_together(sgd, gradient_predivide_factor=3.0), alone)
    assert_equal_models(train_together(sgd, compression=hvd.Compression.fp16), alone, 5e-3)
    assert_equal_models(train_together(sgd, compression=hvd.Compression.bf16), alone, 3e-2)
    assert_equal_models(train_together(sgd, compression=hvd.Compression.fp16, groups=3), alone, 5e-3)
    assert_equal_models(train_together(sgd, sparse_as_dense=True), alone)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert_equal_models(train_together(sgd, num_groups=2), alone)
    assert any(issubclass(one.category, DeprecationWarning) for one in caught)


def check_groups_by_lists():
    model = network()
    parameters = list(model.parameters())
    groups = [[parameters[5], parameters[0]], [parameters[2]]]
    optimizer = hvd.DistributedOptimizer(sgd(parameters), model.named_parameters(), groups=groups)
    for step in range(STEPS):
        optimizer.zero_grad()
        loss_of(model, *map(own, batch(step))).backward()
        optimizer.step()
    assert_equal_models(model, train_alone(sgd))


def check_sum_adds_gradients():
    expected = train_alone(lambda parameters: torch.optim.SGD(parameters, lr=0.01 * hvd.size()))
    assert_equal_models(train_together(lambda parameters: torch.optim.SGD(parameters, lr=0.01), op=hvd.Sum), expected)


def check_names_are_optional():
    model = network()
    optimizer = hvd.DistributedOptimizer(sgd(model.parameters()))
    for step in range(STEPS):
        optimizer.zero_grad()
        loss_of(model, *map(own, batch(step))).backward()
        optimizer.step()
    assert_equal_models(model, train_alone(sgd))


def check_several_passes_add_up_before_a_step():
    for options in ({}, {"groups": 2}, {"compression": hvd.Compression.none}):
        model = network()
        optimizer = hvd.DistributedOptimizer(sgd(model.parameters()), model.named_parameters(), backward_passes_per_step=2,
                                             **options)
        for step in range(STEPS):
            optimizer.zero_grad()
            inputs, targets = map(own, batch(step))
            for half_inputs, half_targets in zip(inputs.chunk(2), targets.chunk(2)):
                (loss_of(model, half_inputs, half_targets) * len(half_inputs) / len(inputs)).backward()
            optimizer.step()
        assert_equal_models(model, train_alone(sgd))


@on_sizes(2)
def check_number_of_passes_can_change():
    model = network()
    optimizer = hvd.DistributedOptimizer(sgd(model.parameters()), model.named_parameters())
    for step in range(STEPS):
        passes = 1 + step % 2
        optimizer.set_backward_passes_per_step(passes)
        optimizer.zero_grad()
        for _ in range(passes):
            (loss_of(model, *map(own, batch(step))) / passes).backward()
        optimizer.step()
    assert_equal_models(model, train_alone(sgd))
    raises(ValueError, lambda: optimizer.set_backward_passes_per_step(0), "backward_passes_per_step is 0")


@on_sizes(2)
def check_a_step_before_all_passes_reduces_what_is_there():
    model = network()
    optimizer = hvd.DistributedOptimizer(sgd(model.parameters()), model.named_parameters(), backward_passes_per_step=3)
    for step in range(STEPS):
        optimizer.zero_grad()
        loss_of(model, *map(own, batch(step))).backward()
        optimizer.step()
    assert_equal_models(model, train_alone(sgd))


@on_sizes(2, 3)
def check_a_process_set_trains_and_the_others_do_not():
    if not has_process_sets():
        return
    members = hvd.add_process_set([0, 1]) if hvd.size() > 2 else hvd.global_process_set
    model = network()
    optimizer = hvd.DistributedOptimizer(sgd(model.parameters()), model.named_parameters(), process_set=members)
    for step in range(STEPS):
        inputs, targets = batch(step)
        if members.included():
            inputs, targets = inputs.chunk(2)[members.rank()], targets.chunk(2)[members.rank()]
        optimizer.zero_grad()
        loss_of(model, inputs, targets).backward()
        optimizer.step()
    assert_equal_models(model, train_alone(sgd))
    if hvd.size() > 2:
        hvd.remove_process_set(members)


def has_process_sets():
    from coordd import _library
    return hasattr(_library.library().quick, "coordd_process_set_add")


# --- a step by hand --------------------------------------------------------------------------------------------------


def check_clipping_between_synchronize_and_step():

    def clip(model):
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1)

    alone = network()
    plain = sgd(alone.parameters())
    model = network()
    optimizer = hvd.DistributedOptimizer(sgd(model.parameters()), model.named_parameters())
    for step in range(STEPS):
        plain.zero_grad()
        loss_of(alone, *batch(step)).backward()
        clip(alone)
        plain.step()
        optimizer.zero_grad()
        loss_of(model, *map(own, batch(step))).backward()
        optimizer.synchronize()
        clip(model)
        with optimizer.skip_synchronize():
            optimizer.step()
    assert_equal_models(model, alone)


@on_sizes(2)
def check_a_second_synchronization_is_warned_of():
    model = network()
    optimizer = hvd.DistributedOptimizer(sgd(model.parameters()), model.named_parameters())
    loss_of(model, *map(own, batch(0))).backward()
    optimizer.synchronize()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        optimizer.step()
    assert any("skip_synchronize" in str(one.message) for one in caught)
    assert_equal_models(model, train_alone(sgd, steps=1))


@on_sizes(2)
def check_races_are_errors():
    model = network()
    optimizer = hvd.DistributedOptimizer(sgd(model.parameters()), model.named_parameters())
    loss_of(model, *map(own, batch(0))).backward()
    raises(AssertionError, optimizer.zero_grad, "zero_grad() was called between")
    raises(AssertionError, loss_of(model, *map(own, batch(0))).backward, "backward_passes_per_step=1")
    optimizer.synchronize()
    optimizer.zero_grad()


def check_zero_grad_takes_set_to_none():
    model = network()
    optimizer = hvd.DistributedOptimizer(sgd(model.parameters()), model.named_parameters())
    for set_to_none in (True, False, True):
        loss_of(model, *map(own, batch(0))).backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=set_to_none)
        gradients = [parameter.grad for parameter in model.parameters()]
        assert all((gradient is None) == set_to_none for gradient in gradients)


@on_sizes(1, 2)
def check_state_dicts_are_those_of_the_optimizer():
    model = network()
    optimizer = hvd.DistributedOptimizer(sgd(model.parameters()), model.named_parameters())
    loss_of(model, *map(own, batch(0))).backward()
    optimizer.step()
    saved_model, saved = copy.deepcopy(model.state_dict()), copy.deepcopy(optimizer.state_dict())
    loss_of(model, *map(own, batch(1))).backward()
    optimizer.load_state_dict(saved)  # forgets what is in flight
    model.load_state_dict(saved_model)
    for step in range(1, STEPS):
        optimizer.zero_grad()
        loss_of(model, *map(own, batch(step))).backward()
        optimizer.step()
    assert_equal_models(model, train_alone(sgd))
    plain = sgd(network().parameters())
    plain.load_state_dict(optimizer.state_dict())


# --- which parameters ------------------------------------------------------------------------------------------------


@on_sizes(2)
def check_a_parameter_that_one_rank_leaves_out_gets_the_others_gradient():
    model = network()
    extra = torch.nn.Linear(3, 2).double()
    torch.nn.init.ones_(extra.weight)
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD([*model.parameters(), *extra.parameters()], lr=0.1))
    inputs, targets = map(own, batch(0))
    output = model(inputs)
    if hvd.rank() == 1:
        output = output + extra(inputs)
    (output - targets).pow(2).mean().backward()
    expected = torch.zeros(2, 3, dtype=torch.float64) if extra.weight.grad is None else extra.weight.grad.clone()
    expected = hvd.allreduce(expected, op=hvd.Average)
    optimizer.step()
    assert torch.allclose(extra.weight, 1 - 0.1 * expected)
    assert expected.abs().sum() > 0


@on_sizes(2)
def check_ranks_may_compute_gradients_in_different_orders():
    torch.manual_seed(3)
    branches = torch.nn.ModuleList([torch.nn.Linear(3, 2) for _ in range(6)])
    alone = copy.deepcopy(branches)
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(branches.parameters(), lr=0.1), branches.named_parameters())
    plain = torch.optim.SGD(alone.parameters(), lr=0.1)
    for step in range(STEPS):
        inputs, _ = batch(step, torch.float32)
        order = list(branches) if hvd.rank() == 0 else list(branches)[::-1]
        optimizer.zero_grad()
        for branch in order:
            branch(own(inputs)).pow(2).mean().backward()
        optimizer.step()
        plain.zero_grad()
        for branch in alone:
            branch(inputs).pow(2).mean().backward()
        plain.step()
    assert_equal_models(branches, alone, 1e-5)


@on_sizes(2)
def check_sparse_gradients():
    for options in ({}, {"sparse_as_dense": True}):

        def train(wrap, part):
            torch.manual_seed(1)
            table = torch.nn.Embedding(10, 3, sparse=True).double()
            optimizer = wrap(torch.optim.SGD(table.parameters(), lr=0.5), table)
            for step in range(STEPS):
                rows = torch.arange(BATCH) * (step + 3) % 10
                optimizer.zero_grad()
                table(part(rows)).pow(2).mean().backward()
                optimizer.step()
            return table

        together = train(lambda optimizer, table: hvd.DistributedOptimizer(optimizer, table.named_parameters(), **options),
                         own)
        assert_equal_models(together, train(lambda optimizer, table: optimizer, lambda rows: rows))


@on_sizes(2)
def check_a_rank_without_a_sparse_gradient_contributes_none():
    torch.manual_seed(1)
    table = torch.nn.Embedding(10, 3, sparse=True).double()
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(table.parameters(), lr=0.5), table.named_parameters())
    rows = torch.tensor([1, 2])
    table(rows).sum().backward()
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    before = table.weight.detach().clone()
    if hvd.rank() == 0:
        table(rows).sum().backward()
    optimizer.step()
    before[1:3] -= 0.5 / hvd.size()
    assert torch.allclose(table.weight, before)


@on_sizes(2)
def check_parameters_that_thaw_or_are_added_later():
    model = network()
    for parameter in model[0].parameters():
        parameter.requires_grad_(False)
    alone = copy.deepcopy(model)
    optimizer = hvd.DistributedOptimizer(sgd(model[2:].parameters()))
    plain = sgd(alone[2:].parameters())
    for step in range(STEPS):
        if step == 1:
            optimizer.add_param_group({"params": list(model[0].parameters())})
            plain.add_param_group({"params": list(alone[0].parameters())})
        if step == 2:
            for parameter in [*model[0].parameters(), *alone[0].parameters()]:
                parameter.requires_grad_(True)
        for one, who, part in ((optimizer, model, own), (plain, alone, lambda whole: whole)):
            one.zero_grad()
            loss_of(who, *map(part, batch(step))).backward()
            one.step()
    assert_equal_models(model, alone)


@on_sizes(2)
def check_gradients_in_another_order_in_memory():
    torch.manual_seed(2)
    model = torch.nn.Conv2d(2, 4, 3).double().to(memory_format=torch.channels_last)
    alone = copy.deepcopy(model)
    images = torch.randn(4, 2, 6, 6, dtype=torch.float64).contiguous(memory_format=torch.channels_last)
    optimizer = hvd.DistributedOptimizer(sgd(model.parameters()), model.named_parameters())
    plain = sgd(alone.parameters())
    model(own(images)).pow(2).mean().backward()
    optimizer.step()
    alone(images).pow(2).mean().backward()
    plain.step()
    assert_equal_models(model, alone)
