"""What is needed of TensorFlow beside its public interface, each thing with a sentence for the day on which it is not there."""

import re
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
    """A name that nothing else in the tf.function that is being traced has, the same on all ranks that trace the same program. A function
    inside of another one counts for itself: TensorFlow traces it once more where it has made variables, in which ranks may differ."""
    graph = _function_of(tf.compat.v1.get_default_graph())
    # Not graph.unique_name(): it puts scopes in front, whose names Keras counts since the process began.
    taken = _taken.setdefault(graph, {})
    number = taken.get(base, 0)
    taken[base] = number + 1
    around = [graph]
    while _outside(around[0]) is not None:
        around.insert(0, _outside(around[0]))
    names = [_name_inside(around[0], one) if one is not around[0] else getattr(one, "name", None) for one in around]
    return ".".join([*filter(None, names), base if number == 0 else f"{base}_{number}"])


_COUNTED = re.compile(r"_\d+$")  # by the process, of some functions that TensorFlow makes
_kinds: "weakref.WeakKeyDictionary" = weakref.WeakKeyDictionary()  # signatures of the functions inside of a function, by their name


def _name_inside(root, graph) -> str:
    """Of a function inside of another one: its own, and a number for each signature but the first."""
    name = _COUNTED.sub("", getattr(graph, "name", None) or "function")
    kinds = _kinds.setdefault(root, {}).setdefault(name, [])
    signature = repr(getattr(graph, "structured_input_signature", None))
    if signature not in kinds:
        kinds.append(signature)
    number = kinds.index(signature)
    return name if number == 0 else f"{name}_{number}"


def _outside(graph):
    """The function around this one, or None."""
    outer = getattr(graph, "outer_graph", None)
    return _function_of(outer) if hasattr(outer, "outer_graph") else None


def _function_of(graph):
    """The function whose branch or loop this is."""
    while isinstance(graph, _control_flow()) and hasattr(graph.outer_graph, "outer_graph"):
        graph = graph.outer_graph
    return graph


def _control_flow() -> tuple:
    try:
        from tensorflow.python.ops import control_flow_v2_func_graphs as graphs
        return (graphs.CondBranchFuncGraph, graphs.WhileCondFuncGraph, graphs.WhileBodyFuncGraph)
    except (ImportError, AttributeError):
        raise _private("control_flow_v2_func_graphs") from None
