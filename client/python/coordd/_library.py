"""Finds libcoordd.so, loads it privately, and gives its functions Python prototypes.

The structures and constants mirror client/c_api/coordd.h. The library is loaded at first use, not at import: a program
that only imports coordd may fork.

Two handles on one library: calls through ``lib.blocking`` release the interpreter's lock (submissions, waits), calls
through ``lib.quick`` keep it (they return at once and take no lock for long).
"""

import ctypes
import os
import threading
from ctypes import (POINTER, Structure, c_char_p, c_double, c_int32, c_int64, c_size_t, c_uint32, c_void_p)
from typing import List, Optional

from coordd.exceptions import UnsupportedError

REQUIRED_ABI_VERSION = 16

STATUS_NAMES = ("OK", "CANCELLED", "UNKNOWN", "INVALID_ARGUMENT", "DEADLINE_EXCEEDED", "NOT_FOUND", "ALREADY_EXISTS",
                "PERMISSION_DENIED", "RESOURCE_EXHAUSTED", "FAILED_PRECONDITION", "ABORTED", "OUT_OF_RANGE",
                "UNIMPLEMENTED", "INTERNAL", "UNAVAILABLE", "DATA_LOSS", "UNAUTHENTICATED")
STATUS = {name: number for number, name in enumerate(STATUS_NAMES)}
STATUS["GENERATION_CHANGED"] = 100

# coordd_dtype_t, by the names that NumPy and torch share.
DTYPES = {"uint8": 1, "int8": 2, "uint16": 3, "int16": 4, "uint32": 5, "int32": 6, "uint64": 7, "int64": 8,
          "float16": 9, "bfloat16": 10, "float32": 11, "float64": 12, "bool": 13,
          "float8_e4m3fn": 14, "float8_e5m2": 15}


def dtypes_of(framework) -> dict:
    """coordd_dtype_t by the dtypes that a framework has of ours: torch 1.13 has no uint16, uint32, uint64 and float8."""
    return {getattr(framework, name): number for name, number in DTYPES.items() if hasattr(framework, name)}


HOST, CUDA = 0, 1  # coordd_device_kind_t


class Tensor(Structure):
    """coordd_tensor_t"""
    _fields_ = [("struct_size", c_size_t), ("name", c_char_p), ("input", c_void_p), ("output", c_void_p),
                ("output_capacity_bytes", c_int64), ("shape", POINTER(c_int64)), ("ndim", c_int32),
                ("dtype", c_int32), ("device_kind", c_int32), ("device_index", c_int32), ("stream", c_void_p)]


class CallOptions(Structure):
    """coordd_call_options_t"""
    _fields_ = [("struct_size", c_size_t), ("timeout_seconds", c_double), ("prescale_factor", c_double),
                ("postscale_factor", c_double), ("process_set", c_int32), ("lane", c_int32)]


class Options(Structure):
    """coordd_options_t"""
    _fields_ = [("struct_size", c_size_t), ("coordinator", c_char_p), ("job", c_char_p), ("token", c_char_p),
                ("token_file", c_char_p), ("tls_ca", c_char_p), ("tls_cert", c_char_p), ("tls_key", c_char_p),
                ("worker_id", c_char_p), ("node_id", c_char_p), ("topology", c_char_p), ("metrics", c_char_p),
                ("transport", c_char_p), ("min_workers", c_int32), ("max_workers", c_int32),
                ("join_timeout_seconds", c_double), ("collective_timeout_seconds", c_double),
                ("ignore_environment", c_int32), ("has_launcher_rank", c_int32), ("launcher_rank", c_int32),
                ("launcher_local_rank", c_int32), ("launcher", c_char_p), ("port_range", c_char_p), ("on_failure", c_char_p),
                ("stack_signal", c_int32), ("stack_fd", c_int32), ("settling_window_seconds", c_double)]


class Launch(Structure):
    """coordd_launch_t"""
    _fields_ = [("struct_size", c_size_t), ("launcher", c_char_p), ("job", c_char_p), ("rank", c_int32),
                ("size", c_int32), ("local_rank", c_int32), ("local_size", c_int32)]


class Placement(Structure):
    """coordd_placement_t"""
    _fields_ = [("struct_size", c_size_t), ("generation", c_int64), ("rank", c_int32), ("size", c_int32),
                ("local_rank", c_int32), ("local_size", c_int32), ("cross_rank", c_int32), ("cross_size", c_int32),
                ("nodes", c_int32), ("homogeneous", c_int32)]


Entered = ctypes.CFUNCTYPE(None, c_void_p, POINTER(Placement))  # coordd_entered_t


class Result(Structure):
    """coordd_result_t"""
    _fields_ = [("struct_size", c_size_t), ("generation", c_int64), ("size", c_int32), ("ndim", c_int32),
                ("output", c_void_p), ("output_bytes", c_int64), ("shape", POINTER(c_int64)),
                ("received_splits", POINTER(c_int64)), ("num_received_splits", c_int32)]


def initialised(structure):
    """The structure with its own size in front, as COORDD_..._INIT does."""
    structure.struct_size = ctypes.sizeof(structure)
    return structure


class Library:
    """The loaded library. Thread-safe, constant after construction."""

    def __init__(self, path: str):
        self.path = path
        local = os.RTLD_LOCAL | os.RTLD_NOW | _own_symbols_first()
        self.blocking = ctypes.CDLL(path, mode=local)
        self.quick = ctypes.PyDLL(path, mode=local)
        self.quick.coordd_abi_version.restype = c_uint32
        self.quick.coordd_version.restype = c_char_p
        found = self.quick.coordd_abi_version()
        if found < REQUIRED_ABI_VERSION:
            raise ImportError(f"{path} is coordd {self.version}, whose interface has revision {found}; this package "
                              f"needs {REQUIRED_ABI_VERSION} or later: install both from one version of coordd")
        try:
            self._declare_quick()
            self._declare_blocking()
        except AttributeError as error:  # of one revision, but built before the last function was added to it
            raise ImportError(f"{path} is older than this package ({error}): build it again") from None

    @property
    def version(self) -> str:
        return self.quick.coordd_version().decode()

    @staticmethod
    def show_environment() -> None:
        """Before a call that reads the environment. An executable may have its own copy of libc's variable `environ`
        (Debian's python3 does); libraries that look for their symbols in libc first find the original, which nobody has
        kept up to date."""
        live = c_void_p.in_dll(ctypes.CDLL(None), "environ")
        c_void_p.in_dll(ctypes.CDLL("libc.so.6"), "environ").value = live.value

    def function(self, name: str):
        """A function that an older library may lack; UnsupportedError says so."""
        try:
            return getattr(self.blocking, name)
        except AttributeError:
            raise UnsupportedError(f"{self.path} (coordd {self.version}) has no {name}: it is older than this package",
                                   "UNIMPLEMENTED") from None

    def last_error(self) -> str:
        return self.quick.coordd_last_error().decode(errors="replace")

    def _declare_quick(self):
        quick = self.quick
        quick.coordd_last_error.restype = c_char_p
        quick.coordd_check_build.restype = c_char_p
        quick.coordd_check_build.argtypes = [c_int32]
        quick.coordd_launch_place.argtypes = [POINTER(Options), POINTER(Launch)]
        quick.coordd_worker_placement.argtypes = [c_void_p, POINTER(Placement)]
        quick.coordd_worker_status.argtypes = [c_void_p]
        quick.coordd_worker_newcomers.argtypes = [c_void_p]
        quick.coordd_worker_on_generation.argtypes = [c_void_p, Entered, c_void_p]
        quick.coordd_worker_drain_seconds.argtypes = [c_void_p]
        quick.coordd_worker_drain_seconds.restype = c_double
        quick.coordd_worker_ask_to_leave.argtypes = [c_void_p, c_double, c_char_p]
        quick.coordd_worker_metrics_address.argtypes = [c_void_p]
        quick.coordd_worker_metrics_address.restype = c_char_p
        quick.coordd_work_poll.argtypes = [c_void_p]
        quick.coordd_work_name.argtypes = [c_void_p]
        quick.coordd_work_name.restype = c_char_p
        quick.coordd_work_result.argtypes = [c_void_p, POINTER(Result)]
        quick.coordd_work_release.argtypes = [c_void_p]
        quick.coordd_work_release.restype = None

    def _declare_blocking(self):
        # The collectives have no prototypes on purpose: their arguments are ctypes objects that are made once, so that a
        # submission converts nothing.
        blocking = self.blocking
        blocking.coordd_worker_start.argtypes = [POINTER(Options), POINTER(c_void_p)]
        blocking.coordd_worker_shutdown.argtypes = [c_void_p, c_double]
        blocking.coordd_worker_await_generation.argtypes = [c_void_p, c_double, POINTER(Placement)]
        blocking.coordd_worker_on_generation.argtypes = [c_void_p, Entered, c_void_p]
        blocking.coordd_worker_change_members_of.argtypes = [c_void_p, c_int64, c_double, POINTER(Placement)]
        blocking.coordd_worker_destroy.argtypes = [c_void_p]
        blocking.coordd_worker_destroy.restype = None
        blocking.coordd_store_set.argtypes = [c_void_p, c_char_p, c_char_p, c_size_t, c_double]
        blocking.coordd_store_get.argtypes = [c_void_p, c_char_p, c_void_p, c_size_t, POINTER(c_size_t), c_double]
        blocking.coordd_alloc.argtypes = [c_void_p, c_int64, POINTER(c_void_p)]
        blocking.coordd_free.argtypes = [c_void_p, c_void_p]
        blocking.coordd_register.argtypes = [c_void_p, c_void_p, c_int64]


def _own_symbols_first() -> int:
    """RTLD_DEEPBIND: libcoordd.so and its libraries use each other's symbols before those that the process offers to all.

    TensorFlow offers 400,000, a Protobuf of another version among them; Abseil and gRPC would meet the same. Where malloc
    is replaced (LD_PRELOAD of jemalloc, say) it has to be the same everywhere, so that it must not be done, and such a
    Protobuf in the process already is an ImportError instead of a crash."""
    process, libc = ctypes.CDLL(None), ctypes.CDLL("libc.so.6")
    # Not malloc itself: an executable may have an address of its own for what it calls.
    if any(_address(process[name]) == _address(libc[name]) for name in ("calloc", "realloc", "posix_memalign")):
        return os.RTLD_DEEPBIND
    if hasattr(process, _A_SYMBOL_OF_PROTOBUF):
        raise ImportError("malloc is replaced in this process (LD_PRELOAD), and a library with a Protobuf of its own, such as "
                          "TensorFlow, is loaded already: call coordd.check_build() before it is imported, so that "
                          "libcoordd.so comes first")
    return 0


_A_SYMBOL_OF_PROTOBUF = "_ZN6google8protobuf14DescriptorPool14generated_poolEv"


def _address(function) -> int:
    return ctypes.cast(function, c_void_p).value or 0


def candidates(package_folder: Optional[str] = None) -> List[str]:
    """Where the library is looked for, in this order, unless COORDD_LIBRARY names it."""
    package = package_folder or os.path.dirname(os.path.abspath(__file__))
    repository = os.path.dirname(os.path.dirname(os.path.dirname(package)))
    return [os.path.join(package, "lib", "libcoordd.so.0"),            # a wheel
            os.path.join(repository, "build", "lib", "libcoordd.so.0"),  # client/python of a source tree
            "libcoordd.so.0"]                                          # what the system's loader finds


def load() -> Library:
    """Loads the library anew. ImportError: one sentence with all the places that were tried."""
    chosen = os.environ.get("COORDD_LIBRARY")
    if chosen:
        try:
            return Library(chosen)
        except OSError as error:
            raise ImportError(f"COORDD_LIBRARY says {chosen}, but it cannot be loaded: {error}") from None
    tried = []
    for path in candidates():
        if os.path.isabs(path) and not os.path.exists(path):
            tried.append(f"{path} (not there)")
            continue
        try:
            return Library(path)
        except OSError as error:
            tried.append(f"{path} ({_reason(path, error)})")
    raise ImportError(f"libcoordd.so was found nowhere; looked at {', '.join(tried)}; build it, install a wheel that "
                      "carries it, or set COORDD_LIBRARY to its path")


def _reason(path: str, error: OSError) -> str:
    text = str(error)
    return text[len(path) + 2:] if text.startswith(path + ": ") else text


_lock = threading.Lock()
_loaded: Optional[Library] = None


def library() -> Library:
    """The library, loaded once in a process. Thread-safe. ImportError: see load()."""
    global _loaded
    if _loaded is None:
        with _lock:
            if _loaded is None:
                _loaded = load()
    return _loaded
