"""The environment variables of coordd: what the sources read and what the documents name, beside the page of all of them.

The page, docs/reference/environment.md, is made of worker/api/environment_table.cc, with which a unit test compares it. Here it is
held together with everything else; tools/tidy runs this.
"""

import re

PAGE = "docs/reference/environment.md"
NAME = r"COORDD_[A-Z][A-Z0-9_]*"
ANY_NAME = re.compile(rf"\b{NAME}")
LITERAL = re.compile(rf"""["']({NAME})["']""")  # the whole of a string: it is read, or set for others

# Where the sources of those are whom the page names as readers.
READERS = {
    "workers": ("worker/", "common/"),
    "coordd": ("server/",),
    "coordd-relay": ("relay/",),
    "coordctl": ("client/coordctl/",),
    "coordrun": ("client/coordrun/",),
    "Python": ("client/python/coordd/",),
    "deploy/systemd/coordd.service": ("deploy/systemd/",),
}
# These name a variable only to read it; coordrun also sets variables, and common/ serves all.
READ_ONLY = {reader: READERS[reader] for reader in ("coordd", "coordd-relay", "coordctl", "Python")}

SOURCES = re.compile(r"^(common|server|worker|relay|client)/.*\.(cc|h|hpp|py)$")
DOCUMENTS = re.compile(r"^(docs/.*\.md|[A-Z_]+\.md|deploy/.*|client/.*\.md|bench/.*\.md|tests/.*\.md)$")
NO_DOCUMENT = ("CHANGELOG.md", "docs/images/")  # of the past; of no words
# Names of other kinds: CMake's variables, and what the C headers and our macros define.
DEFINED_IN = re.compile(r"(^|/)CMakeLists\.txt$|\.cmake$|^CMakePresets\.json$|^client/(c_api|cpp)/.*\.(h|hpp)$")
DEFINITION = re.compile(rf"^\s*({NAME})\s*(?:=|,|$)|\b(?:set|option|cmake_parse_arguments)\(\s*({NAME})|-D({NAME})",
                        re.MULTILINE)
MACRO = re.compile(rf"#\s*define\s+({NAME})")
# Of tests, of benchmarks, and of the build; users need none of them.
NOT_FOR_USERS = re.compile(r"COORDD_(TEST_|BENCH_|WHEEL_(FOLDER|PLATFORM)$|BUILD_DIR$|SANITIZE$|PRECOMPILE$|OS_RELEASE$)")


def variables_of(page):
    """{name: (line, list of its readers)} of the page's text."""
    found, name = {}, None
    for number, line in enumerate(page.split("\n"), 1):
        heading = re.match(rf"### `({NAME})`$", line)
        if heading:
            name = heading.group(1)
            found[name] = (number, [])
        elif name and line.startswith("- Read by: "):
            found[name] = (found[name][0], line[len("- Read by: "):].split(", "))
    return found


def names_of_other_kinds(texts):
    """Names of CMake's variables and of C macros and enumerators."""
    names = set()
    for path, text in texts.items():
        if SOURCES.match(path):
            names |= set(MACRO.findall(text))
        if DEFINED_IN.search(path):
            for groups in DEFINITION.findall(text):
                names |= set(filter(None, groups))
    return names


def check_readers(variables, literals):
    for name, (line, readers) in sorted(variables.items()):
        for reader in readers:
            folders = READERS.get(reader)
            if folders is None:
                yield PAGE, line, f"{reader} as a reader of {name}", f"one of {', '.join(READERS)}"
            elif not any(path.startswith(folders) for path, _ in literals.get(name, ())):
                yield PAGE, line, f"{name}, read by {reader}, of which {' and '.join(folders)} knows nothing", "who reads it"


def check_literals(variables, literals):
    for name, places in sorted(literals.items()):
        if NOT_FOR_USERS.match(name):
            continue
        for path, line in places:
            if name not in variables:
                yield path, line, f"the variable {name}", f"a row of worker/api/environment_table.cc, and so of {PAGE}"
                continue
            for reader, folders in READ_ONLY.items():
                if path.startswith(folders) and reader not in variables[name][1]:
                    yield path, line, f"{name} read by {reader}", f"{reader} among its readers in worker/api/environment_table.cc"


def check_mentions(variables, texts, others):
    for path, text in sorted(texts.items()):
        is_document = DOCUMENTS.match(path) and not path.startswith(NO_DOCUMENT)
        if not is_document and not SOURCES.match(path):
            continue
        for number, line in enumerate(text.split("\n"), 1):
            for name in ANY_NAME.findall(line):
                is_known = name in variables or name in others or NOT_FOR_USERS.match(name)
                if not is_known and not (name.endswith("_") and any(known.startswith(name) for known in variables | others)):
                    yield path, number, f"{name}, which nothing reads or defines", f"a name of {PAGE}, or of CMake or C"


def check_variables(texts):
    """Yields (path, line, what was found, what is expected); `texts`: those of all files by path."""
    if PAGE not in texts:
        return
    variables = variables_of(texts[PAGE])
    literals = {}
    for path, text in texts.items():
        if not SOURCES.match(path) and not path.startswith("deploy/systemd/"):
            continue
        pattern = LITERAL if SOURCES.match(path) else re.compile(rf"\b({NAME})\b")
        if path.startswith("worker/api/environment_table"):
            continue
        for number, line in enumerate(text.split("\n"), 1):
            for name in pattern.findall(line):
                literals.setdefault(name, []).append((path, number))
    others = names_of_other_kinds(texts)
    yield from check_readers(variables, literals)
    yield from check_literals(variables, literals)
    yield from check_mentions(set(variables), texts, others)
