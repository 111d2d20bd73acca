#!/usr/bin/env python3
"""Doxygen's input filter: turns the plain comments of our public headers into Doxygen's. Usage: doxygen_filter.py FILE

A comment before a declaration becomes its description, one behind a member that member's, the first of a file the file's. What
is indented in a comment is code or a table and stays as it is. Everything else is text: nothing in it is a command of Doxygen's.
"""

import re
import sys

SPECIAL = re.compile(r"[\\@<>&#%\"]")
RULE = re.compile(r"^-{3}.*-{3,}$")


def escaped(text):
    return SPECIAL.sub(r"\\\g<0>", text)


def described(lines):
    """Lines of text as lines of a description."""
    out, verbatim = [], False
    for line in lines:
        indented = line.startswith("  ")
        if indented and not verbatim:
            out.append("@verbatim")
            verbatim = True
        elif verbatim and line and not indented:
            out.append("@endverbatim")
            verbatim = False
        out.append(line if verbatim else escaped(line))
    return out + (["@endverbatim"] if verbatim else [])


def comment(lines, first_of_file):
    """A whole comment, without its marks, as Doxygen's; a line that only rules off a section stays out of it."""
    title = lines[0].strip()
    if title.startswith("---"):
        if not any(line.strip() for line in lines[1:]):
            return f"/* {title} */"
        lines = [title.strip("- ").capitalize() + "."] + lines[1:]
        first_of_file = True  # a section's text is about no single declaration
    return "/** " + ("@file\n" if first_of_file else "") + "\n".join(described(lines)) + " */"


def undress(block, start):
    """The lines of a C comment without its marks and the column that they stand in."""
    lines = block[2:-2].rstrip().split("\n")
    out = [lines[0].strip()]
    for line in lines[1:]:
        bare = re.sub(r"^\s*\*", "", line) if re.match(r"^\s*\*", line) else line[start + 2:]
        out.append(bare[1:].rstrip() if bare.startswith(" ") else bare.rstrip())
    return out


def filter_c(text):
    first = True

    def replace(match):
        nonlocal first
        start = text.rfind("\n", 0, match.start()) + 1
        before = text[start:match.start()]
        after = text[match.end():text.find("\n", match.end())]
        if before.lstrip().startswith("#") or after.strip() in ("\\",):
            return match.group()
        if before.strip():
            return "/**< " + " ".join(described([line.strip() for line in undress(match.group(), len(before))])) + " */"
        of_file, first = first, False
        return comment(undress(match.group(), len(before)), of_file)

    return re.sub(r"/\*.*?\*/", replace, text, flags=re.DOTALL)


def filter_cpp(text):
    out, block, first = [], [], True
    text = re.sub(r"^inline namespace cpp \{$|^\}\s*// namespace cpp$", "", text, flags=re.MULTILINE)
    for line in text.split("\n") + [None]:
        alone = re.match(r"^\s*//(?: (.*)|)$", line) if line is not None else None
        if alone:
            block.append(alone.group(1) or "")
            continue
        if block and RULE.match(block[0].strip()) and not any(block[1:]):
            block = []
        if block:
            out.append(comment(block, first))
            first, block = False, []
        if line is not None:
            line = re.sub(r"\s*// NOLINT.*$", "", line)  # for clang-tidy, not for readers
            behind = re.match(r"^(.*[;,{}].*?)\s+// (?!namespace)(.*)$", line)
            out.append(f"{behind.group(1)} /**< {escaped(behind.group(2))} */" if behind else line)
    return "\n".join(out)


def main():
    path = sys.argv[1]
    with open(path, encoding="utf-8") as source:
        text = source.read()
    sys.stdout.write(filter_cpp(text) if path.endswith(".hpp") else filter_c(text))


if __name__ == "__main__":
    main()
