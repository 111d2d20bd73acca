"""Same names in the unnamed namespaces of two files of a folder. For tools/tidy.

A unity build compiles files of a folder as one, in batches whose size the build chooses: two functions with the same name and the same
parameters are then an error, or one of them is needless.
"""

import os
import re

_SPACE = re.compile(r"^namespace \{$", re.MULTILINE)
_FUNCTION = re.compile(r"^(?!struct|class|enum|using|return|namespace|template)[A-Za-z_][^;{}=()]*?\b([A-Za-z_]\w*)\(([^;{}]*?)\)[^;{}()]*\{",
                       re.MULTILINE)
_CONSTANT = re.compile(r"^(?:static |inline )*const(?:expr)? [^;={}()]*?\b(k\w+)(?:\[\w*\])?\s*[={(]", re.MULTILINE)
_TYPE = re.compile(r"^(?:struct|class|enum class) (\w+)\b[^;]*?\{", re.MULTILINE)


def _types(parameters):
    """Parameters without their names and defaults, which make no other function."""
    kept = []
    for part in re.split(r",(?![^<(]*[>)])", re.sub(r"\s+", " ", parameters)):
        part = re.sub(r"=.*", "", part).strip()
        kept.append(re.sub(r"(?<=[\s&*])\w+$", "", part).replace("const ", "").strip() or part)
    return ", ".join(kept)


def _block(code, begin):
    """What stands between this place behind a brace and the brace that closes it."""
    depth = 1
    for match in re.finditer(r"[{}]", code[begin:]):
        depth += 1 if match.group() == "{" else -1
        if depth == 0:
            return code[begin:begin + match.start()]
    return code[begin:]


def _defined(code):
    """(what, line) of each function, type and constant in an unnamed namespace; `code` without comments and literals."""
    for space in _SPACE.finditer(code):
        block, begin = _block(code, space.end()), code.count("\n", 0, space.end()) + 1
        for match in _FUNCTION.finditer(block):
            yield f"{match.group(1)}({_types(match.group(2))})", begin + block.count("\n", 0, match.start())
        for names in (_TYPE, _CONSTANT):
            for match in names.finditer(block):
                yield match.group(1), begin + block.count("\n", 0, match.start())


def check_unnamed(files):
    """(path, line, found, expected) of each that an earlier file of the folder has, too. `files`: (path, code)."""
    known = {}
    for path, code in sorted(files):
        if not path.endswith(".cc"):
            continue
        for what, line in _defined(code):
            first = known.setdefault((os.path.dirname(path), what), path)
            if first != path:
                yield path, line, f"{what} in an unnamed namespace, as in {first}", "one of them, or two names: unity builds join files"
