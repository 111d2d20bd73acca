"""How large a class is: its data members, and the files in which its functions are defined. For tools/tidy."""

import os
import re

MAX_MEMBERS = 20
MAX_SOURCES = 2

# Classes that were larger when the rule was made: their members and sources, which may only become fewer. Nothing is added here: a
# class that grows beyond the rule is divided.
STILL_LARGE = {}

_BEGIN = re.compile(r"(?<!enum )\b(class|struct)\s+(?:\[\[\w+\]\]\s*)?(?:\w+::)*(\w+)(?:\s+final)?\s*(?::(?!:)[^;{()]*)?\{")
_DEFINED = re.compile(r"^(?!\s)(?![^(]*=)[^;#{}]*?\b(\w+)::~?\w+\s*\(", re.MULTILINE)


def _without(text, opening, closing):
    """What stands in these brackets left out, however nested."""
    out, depth = [], 0
    for char in text:
        if char == opening:
            depth += 1
        elif char == closing and depth > 0:
            depth -= 1
        elif depth == 0:
            out.append(char)
    return "".join(out)


def _members(statement):
    """Of `int a_ = 0, b_;` the names; of what is no data member none. Members of classes end in '_' (STYLE)."""
    statement = re.sub(r"\bABSL_\w+\s*\([^()]*\)", "", statement)
    if re.match(r"\s*(using|friend|typedef|static|template|enum)\b", statement):
        return []
    for brackets in ("<>", "()", "[]"):
        statement = _without(statement, *brackets)
    found = []
    for part in statement.split(","):
        match = re.search(r"\b([a-z]\w*_)\s*(=.*)?$", part.strip(), re.DOTALL)
        if match:
            found.append(match.group(1))
    return found


def _statements(text, begin):
    """Statements of the block behind `begin`, without what stands in braces inside of them."""
    depth, current, at = 0, [], begin
    while at < len(text):
        char = text[at]
        if char == "{":
            depth += 1
        elif char == "}":
            if depth == 0:
                return
            depth -= 1
            # The end of a function, or of an initializer, or of a class of its own.
            if depth == 0 and re.search(r"\)[^=]*$", "".join(current)):
                current = []
        elif depth == 0:
            if char == ";" or (char == ":" and re.search(r"\b(public|private|protected)\s*$", "".join(current))):
                if char == ";":
                    yield "".join(current)
                current = []
            else:
                current.append(char)
        at += 1


def classes_of(code):
    """(name, line, data members) of each class of a header; `code` without comments and literals."""
    for match in _BEGIN.finditer(code):
        members = [name for statement in _statements(code, match.end()) for name in _members(statement)]
        yield match.group(2), code.count("\n", 0, match.start()) + 1, members


def sources_of(sources):
    """Of each class the files that define a function of it. `sources`: (path, code)."""
    found = {}
    for path, code in sources:
        for match in _DEFINED.finditer(code):
            found.setdefault(match.group(1), set()).add(path)
    return found


def check_classes(files):
    """(path, line, found, expected) of each class that is too large. `files`: (path, code without comments and literals)."""
    of_folder = {}
    for path, code in files:
        if path.endswith(".cc"):
            of_folder.setdefault(os.path.dirname(path), []).append((path, code))
    sources = {folder: sources_of(there) for folder, there in of_folder.items()}
    for path, code in files:
        if not path.endswith((".h", ".hpp")):
            continue
        for name, line, members in classes_of(code):
            most_members, most_sources = STILL_LARGE.get(name, (MAX_MEMBERS, MAX_SOURCES))
            count = len(sources.get(os.path.dirname(path), {}).get(name, ()))
            if len(members) > most_members:
                yield path, line, f"{name} with {len(members)} data members", f"at most {most_members}: what belongs together is a class"
            if count > most_sources:
                yield path, line, f"{name} in {count} .cc files", f"at most {most_sources}: a topic of its own is a class"
