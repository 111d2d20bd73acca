"""coordd.jax in each rank of a job: coordrun -np 2 -- python3 jax_ranks.py"""

import importlib
import importlib.util
import os
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))
sys.path.insert(0, os.path.join(ROOT, "client", "python"))
os.environ.setdefault("COORDD_TIMEOUT", "60")

if importlib.util.find_spec("jax") is None:
    print(f"SKIPPED: {sys.executable} has no jax; tools/test-frameworks --tensorflow makes an environment that has it", file=sys.stderr)
    sys.exit(77)

os.environ["XLA_FLAGS"] = os.environ.get("XLA_FLAGS", "") + " --xla_force_host_platform_device_count=2"

import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402
import numpy  # noqa: E402

import coordd.jax as hvd  # noqa: E402

hvd.init()
RANK, SIZE = hvd.rank(), hvd.size()
FUTURES = (0, 7)  # the jax since which calls need not wait
TOTAL = sum(range(1, SIZE + 1))


def expect(found, wanted, what=""):
    assert numpy.allclose(numpy.asarray(found, numpy.complex128), numpy.asarray(wanted, numpy.complex128)), (what, found, wanted)


def expect_error(text, call):
    try:
        jax.block_until_ready(call())
    except Exception as error:  # JAX's own class, or ours
        assert text in str(error), error
    else:
        raise AssertionError(f"expected an error with {text!r}")


def check_dtypes():
    for dtype in ("uint8", "int8", "uint16", "int16", "uint32", "int32", "float16", "bfloat16", "float32", "complex64",
                  "float8_e4m3fn", "float8_e5m2"):
        found = hvd.allreduce(jnp.full((3, 2), RANK + 1, dtype=dtype), op=hvd.Sum)
        assert found.dtype == dtype
        expect(found.astype("complex64"), numpy.full((3, 2), TOTAL), dtype)


def check_trees():
    tree = {"a": jnp.full((4,), RANK + 1.0), "b": [jnp.arange(3), jnp.float32(2.0)]}
    found = jax.jit(lambda tree: hvd.allreduce(tree, name="tree", op=hvd.Sum))(tree)
    expect(found["a"], numpy.full(4, TOTAL))
    expect(found["b"][0], SIZE * numpy.arange(3))
    expect(found["b"][1], 2.0 * SIZE)


def check_trees_of_the_root():
    started = {"w": jnp.full((2,), RANK + 1.0), "b": [jnp.float32(RANK), jnp.arange(2) + RANK], "none": None}
    for wrap, name in ((lambda call: call, None), (jax.jit, "start")):
        found = wrap(lambda tree: hvd.broadcast(tree, SIZE - 1, name=name))(started)  # noqa: B023
        expect(found["w"], numpy.full(2, SIZE))
        expect(found["b"][0], SIZE - 1)
        expect(found["b"][1], numpy.arange(2) + SIZE - 1)
        assert found["none"] is None
    expect_error("allgather: expected an array, found dict; jax.tree.map()", lambda: hvd.allgather(started))


def check_exchanges():
    for wrap in (lambda call: call, jax.jit):
        expect(wrap(lambda x: hvd.allgather(x, name="g"))(jnp.full((2, 3), float(RANK))),
               numpy.repeat(numpy.arange(SIZE), 2)[:, None] * numpy.ones(3))
        expect(wrap(lambda x: hvd.broadcast(x, SIZE - 1, name="b"))(jnp.float32(RANK)), SIZE - 1)
        expect(wrap(lambda x: hvd.alltoall(x, name="t"))(jnp.full((SIZE,), RANK)), numpy.arange(SIZE))
        expect(wrap(lambda x: hvd.reducescatter(x, name="r", op=hvd.Sum))(jnp.arange(2.0 * SIZE)),
               SIZE * numpy.arange(2 * RANK, 2 * RANK + 2))


def check_gradients():
    x = jnp.full((SIZE,), RANK + 1.0)
    for name, call, wanted in (
            ("sum", lambda x: hvd.allreduce(x * x, name="gs", op=hvd.Sum), 2 * (RANK + 1.0) * SIZE),
            ("mean", lambda x: hvd.allreduce(x * x, name="gm"), 2 * (RANK + 1.0)),
            ("gather", lambda x: hvd.allgather(3 * x, name="gg"), 3.0),
            ("broadcast", lambda x: hvd.broadcast(x, 0, name="gb"), float(RANK == 0)),
            ("scatter", lambda x: hvd.reducescatter(x, name="gr", op=hvd.Sum), SIZE),
            ("all", lambda x: hvd.alltoall(x, name="ga"), 1.0)):
        expect(jax.jit(jax.grad(lambda x: call(x).sum()))(x), numpy.full(SIZE, wanted), name)  # noqa: B023


def check_gradients_beside_integers():
    """Of a tree with a step count, say."""
    def loss(tree):
        reduced = hvd.allreduce(tree, name="gi", op=hvd.Sum)
        return (reduced["w"] * reduced["step"]).sum() + hvd.allgather(tree["step"], name="gj")[0] * 0.0

    tree = {"w": jnp.full((SIZE,), RANK + 1.0), "step": jnp.full((SIZE,), 2)}
    for wrap in (lambda f: f, jax.jit):
        gradients = wrap(jax.grad(loss, allow_int=True))(tree)
        expect(gradients["w"], numpy.full(SIZE, 2.0 * SIZE * SIZE))
        assert gradients["step"].dtype == jax.dtypes.float0, gradients["step"].dtype


def check_batches():
    x = jnp.arange(3.0 * SIZE).reshape(3, SIZE) * (RANK + 1)
    for wrap in (lambda f: f, jax.jit):
        for name, call in (("vs", lambda x: hvd.allreduce(x, name="vs", op=hvd.Sum)), ("vb", lambda x: hvd.broadcast(x, 0, name="vb")),
                           ("vg", lambda x: hvd.allgather(x, name="vg")), ("va", lambda x: hvd.alltoall(x, name="va")),
                           ("vr", lambda x: hvd.reducescatter(x, name="vr", op=hvd.Sum))):
            expect(wrap(jax.vmap(call))(x), jnp.stack([call(row) for row in x]), name)
        expect(wrap(jax.jacrev(lambda x: hvd.allreduce(x * x, name="vj", op=hvd.Sum)))(x[1]), jnp.diag(2.0 * SIZE * x[1]))
        one = jnp.float32(RANK)  # the same for all of a batch
        expect(wrap(jax.vmap(lambda x: hvd.grouped_allreduce([x, one], name="vo", op=hvd.Sum)[1]))(x), numpy.full(3, sum(range(SIZE))))


def check_other_orders():
    """XLA takes the calls in the order of the program's results, which is the same on all ranks: those of one program do not wait for
    each other there. programs_test.py has results in other orders."""
    if tuple(map(int, jax.__version__.split(".")[:2])) < FUTURES or jax.default_backend() != "cpu":
        return  # calls wait there until they are on the device, in the order of the program
    order = list(range(32))[::(1 if RANK == 0 else -1)]

    @jax.jit
    def step(x):
        done = {i: hvd.allreduce(x * i, name=f"o{i}", op=hvd.Sum) for i in order}
        return [done[i] for i in range(32)]

    for i, one in enumerate(step(jnp.ones(1000))):
        expect(one, numpy.full(1000, i * SIZE))


def check_forward_mode_is_refused():
    x = jnp.arange(SIZE * 1.0)
    for what, call in (("allreduce", lambda x: hvd.allreduce(x, name="fr")), ("allgather", lambda x: hvd.allgather(x, name="fg"))):
        named = f"{what} in JAX's forward mode"
        expect_error(named, lambda: jax.jvp(call, (x,), (x,)))  # noqa: B023
        expect_error(named, lambda: jax.jacfwd(call)(x))  # noqa: B023
        # JAX finds it later, behind the call of the collective.
        expect_error("forward-mode", lambda: jax.linearize(call, x)[1](x))  # noqa: B023
        expect_error("forward-mode", lambda: jax.jit(lambda x: jax.jvp(call, (x,), (x,)))(x))  # noqa: B023


def check_arrays_on_several_devices():
    if len(jax.local_devices()) < 2:
        return
    mesh = jax.sharding.Mesh(numpy.array(jax.local_devices()[:2]), ("d",))
    calls = {"allreduce": lambda x: hvd.allreduce(x, name="sd"), "broadcast": lambda x: hvd.broadcast(x, 0, name="sd"),
             "allgather": lambda x: hvd.allgather(x, name="sd"), "gradient": jax.grad(lambda x: hvd.allreduce(x, name="sd").sum())}
    for parts in (("d",), ()):
        x = jax.device_put(jnp.arange(4.0 * SIZE), jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec(*parts)))
        for what, call in calls.items():
            if what != "gradient":
                expect_error("sd: an array that lies on 2 devices, expected one", lambda: call(x))  # noqa: B023
            expect_error("sd: inside of a program for 2 devices, expected one", lambda: jax.jit(call)(x))  # noqa: B023
        expect_error("sd: inside of a program for 2 devices", lambda: jax.jit(lambda x: (x, calls["allreduce"](jnp.ones(1))))(x))  # noqa: B023
    expect_error("sd: inside of a program for 2 devices", lambda: jax.pmap(calls["allreduce"])(jnp.ones((2, 3))))
    shard_map = jax.shard_map if hasattr(jax, "shard_map") else importlib.import_module("jax.experimental.shard_map").shard_map
    mapped = {"in_specs": jax.sharding.PartitionSpec("d"), "out_specs": jax.sharding.PartitionSpec("d")}
    expect_error("sd: inside of a program for 2 devices", lambda: shard_map(calls["allreduce"], mesh=mesh, **mapped)(jnp.ones(4)))
    alone = jax.sharding.Mesh(mesh.devices[:1], ("d",))
    expect(jax.jit(shard_map(calls["allreduce"], mesh=alone, **mapped))(jnp.ones(4)), numpy.ones(4))
    other = jax.device_put(jnp.ones(3), jax.local_devices()[1])
    for wrap in (lambda call: call, jax.jit):
        expect(wrap(calls["allreduce"])(other), numpy.ones(3))


def check_wrong_roots():
    expect_error("root_rank is 'a': expected a whole number", lambda: hvd.broadcast(jnp.ones(1), "a"))
    expect_error("process_set is None: expected a ProcessSet", lambda: hvd.allreduce(jnp.ones(1), process_set=None))


def check_errors():
    expect_error("multiple of", lambda: hvd.alltoall(jnp.ones(SIZE + 1)) if SIZE > 1 else 1 / 0) if SIZE > 1 else None
    if SIZE > 1:
        expect_error("has shape", lambda: hvd.allreduce(jnp.ones(3 + RANK), name="bad"))
        for wrap in (lambda call: call, jax.jit):
            for count, what, call in ((3 + (RANK > 0), "uneven", lambda x: hvd.allgather(x, name="uneven")),
                                      (SIZE * (1 + (RANK > 0)), "parts", lambda x: hvd.alltoall(x, name="parts"))):
                expect_error(f"the parts of all ranks have to have the same shape in JAX, under jit and outside; this rank's is "
                             f"[{count}, 2]; after", lambda: wrap(call)(jnp.ones((count, 2))))  # noqa: B023
    expect_error("an array of int4 cannot travel, expected one of uint8,", lambda: hvd.allreduce(jnp.ones(3, "int4"), name="narrow"))
    expect_error("an array of int4 cannot travel", lambda: jax.jit(lambda x: hvd.allgather(x, name="narrow"))(jnp.ones(3, "int4")))
    expect_error("Min, Max or Product of complex numbers", lambda: hvd.allreduce(jnp.ones(3, "complex64"), op=hvd.Max))
    expect(hvd.allreduce(jnp.ones(3), op=hvd.Sum), numpy.full(3, SIZE))


if __name__ == "__main__":
    checks = [value for name, value in sorted(vars().items()) if name.startswith("check_")]
    for check in checks:
        check()
    hvd.shutdown()
    print(f"{len(checks)} checks of coordd.jax on {SIZE} ranks, jax {jax.__version__}", flush=True)
