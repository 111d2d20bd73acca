"""What is needed of TensorFlow beside its public interface, each thing with a sentence for the day on which it is not there."""

import weakref

import tensorflow as tf

OLDEST = "2.13"


def _private(what: str):
    return ImportError(f"coordd.tensorflow knows TensorFlow {OLDEST} to 2.21, found {tf.__version__}, which has no {what}")


def run_in_any_order(*op_types: str) -> None:
    """tf.function runs ops with effects one after the other, in the order of the program: ranks whose programs differ in it (gradients
    come in the order of a hash table, say) would wait for each other forever. Ours run as soon as their inputs are there, but
    always: an op without a declared effect could be folded to a constant, or pruned on one rank only."""
    name = "MUST_RUN_ORDER_INSENSITIVE_STATEFUL_OPS"
    try:
        from tensorflow.python.framework import auto_control_deps
        known = getattr(auto_control_deps, name)
    except (ImportError, AttributeError):
        raise _private(f"auto_control_deps.{name}") from None
    setattr(auto_control_deps, name, frozenset(known) | frozenset(op_types))


def xla_custom_call(operands, target: str, configuration: str):
    """Results like the operands, made by a custom call of XLA."""
    try:
        from tensorflow.compiler.tf2xla.ops import gen_xla_ops
        call = gen_xla_ops.xla_custom_call_v2
    except (ImportError, AttributeError):
        raise _private("XlaCustomCallV2: use jit_compile=False") from None
    return list(call(operands=operands, call_target_name=target, backend_config=configuration, has_side_effect=True,
                     result_dtypes=[operand.dtype for operand in operands], result_shapes=[operand.shape for operand in operands]))


def under_xla() -> bool:
    """Whether what is being traced now is compiled by XLA, as tf.function(jit_compile=True) is."""
    if tf.executing_eagerly():
        return False
    try:
        from tensorflow.python.ops import control_flow_util
        in_context = control_flow_util.GraphOrParentsInXlaContext
    except (ImportError, AttributeError):
        raise _private("control_flow_util.GraphOrParentsInXlaContext") from None
    return bool(in_context(tf.compat.v1.get_default_graph()))


_taken: "weakref.WeakKeyDictionary" = weakref.WeakKeyDictionary()  # names by graph


def unique_name(base: str) -> str:
    """A name that nothing else in the tf.function that is being traced has, the same on all ranks that trace the same program."""
    graph = tf.compat.v1.get_default_graph()
    while getattr(graph, "outer_graph", None) is not None and hasattr(graph.outer_graph, "outer_graph"):
        graph = graph.outer_graph  # of a branch or a loop: the function's own
    function = getattr(graph, "name", None)
    # Not graph.unique_name(): it puts scopes in front, whose names Keras counts since the process began.
    taken = _taken.setdefault(graph, {})
    number = taken.get(base, 0)
    taken[base] = number + 1
    name = base if number == 0 else f"{base}_{number}"
    return f"{function}.{name}" if function else name
