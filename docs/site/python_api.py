"""A directive of Sphinx, `{python-module} coordd.torch`: what a module offers, from its source and without importing it.

Importing coordd.torch needs torch, which the machine that builds the site may not have. Names come from __all__ and are followed
through imports; where there is none, everything without a leading underscore counts. Docstrings are text: a block that is
indented stays as it is, ``x`` is code in a line, and nothing else has a meaning.
"""

import ast
import inspect
import os
import re

from docutils import nodes
from docutils.statemachine import StringList
from sphinx import addnodes
from sphinx.util.docutils import SphinxDirective

FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


class Modules:
    """Parsed modules of the package, by dotted name."""

    def __init__(self, root):
        self._root, self._trees = root, {}

    def tree(self, module):
        if module not in self._trees:
            stem = os.path.join(self._root, *module.split("."))
            path = os.path.join(stem, "__init__.py") if os.path.isdir(stem) else stem + ".py"
            with open(path, encoding="utf-8") as source:
                self._trees[module] = (ast.parse(source.read()), path)
        return self._trees[module][0]

    def path(self, module):
        self.tree(module)
        return self._trees[module][1]

    def exists(self, module):
        stem = os.path.join(self._root, *module.split("."))
        return os.path.isdir(stem) or os.path.isfile(stem + ".py")

    def names(self, module):
        """The public names of a module, in its order."""
        for node in ast.walk(self.tree(module)):  # some are made when they are first used, and listed for type checkers
            if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", None) == "__all__":
                return self._listed(module, node.value)
        return [node.name for node in self.tree(module).body
                if isinstance(node, (*FUNCTIONS, ast.ClassDef)) and not node.name.startswith("_")]

    def _listed(self, module, value):
        names = []
        for element in value.elts:
            if isinstance(element, ast.Starred):  # __all__ of another module, imported under a name
                other = next(node.module for node in ast.walk(self.tree(module)) if isinstance(node, ast.ImportFrom)
                             for alias in node.names if alias.asname == element.value.id)
                names += self.names(other)
            else:
                names.append(element.value)
        return names

    def find(self, module, name):
        """What defines a name: a function or a class, a module's dotted name, or None for a value."""
        for node in self.tree(module).body:
            if isinstance(node, (*FUNCTIONS, ast.ClassDef)) and node.name == name:
                return node
        for node in ast.walk(self.tree(module)):
            if not isinstance(node, ast.ImportFrom) or not (node.module or "").startswith("coordd"):
                continue
            for alias in node.names:
                if (alias.asname or alias.name) == name:
                    inner = f"{node.module}.{alias.name}"
                    return inner if self.exists(inner) else self.find(node.module, alias.name)
                if alias.name == "*" and name in self.names(node.module):
                    return self.find(node.module, name)
        return None


def inline(text):
    parts = re.split(r"``(.+?)``|(?<!`)`([^`]+)`(?!`)", text, flags=re.DOTALL)
    return [nodes.literal(part, part) if number % 3 else nodes.Text(part) for number, part in enumerate(parts) if part]


def described(docstring):
    """A docstring as nodes."""
    out = []
    for block in re.split(r"\n\s*\n", inspect.cleandoc(docstring or "")):
        if not block.strip():
            continue
        if all(line.startswith("  ") for line in block.split("\n")):
            text = inspect.cleandoc(block)
            if out and isinstance(out[-1], nodes.literal_block):
                text = out.pop().astext() + "\n\n" + text
            out.append(nodes.literal_block(text, text, language="none"))
        else:
            out.append(nodes.paragraph("", "", *inline(block)))
    return out


def signature(function, is_method):
    arguments = ast.parse(ast.unparse(function)).body[0].args
    decorators = {getattr(decorator, "id", "") for decorator in function.decorator_list}
    if is_method and "staticmethod" not in decorators:
        (arguments.posonlyargs or arguments.args)[:1] = []
    returns = f" -> {ast.unparse(function.returns)}" if function.returns else ""
    return f"({ast.unparse(arguments)}){returns}"


class PythonModule(SphinxDirective):
    required_arguments = 1

    def run(self):
        modules = Modules(self.config.python_api_root)
        module = self.arguments[0]
        self.env.note_dependency(modules.path(module))
        out = described(ast.get_docstring(modules.tree(module)))
        for name in dict.fromkeys(modules.names(module)):
            found = modules.find(module, name)
            elsewhere = self.home(modules, module, name)
            if elsewhere:
                text = f"``{name}`` is described below, as ``{elsewhere}.{name}``."
                out.append(nodes.paragraph("", "", *inline(text)))
            elif isinstance(found, FUNCTIONS):
                out += self.entry("function", module, name + signature(found, False), found)
            elif isinstance(found, ast.ClassDef):
                out += self.class_entry(module, name, found)
            elif found is None:
                out += self.entry("data", module, name, None)
        return out

    def home(self, modules, module, name):
        """The module of the page that defines a name itself, when it is another one than `module`."""
        return next((other for other in self.config.python_api_modules
                     if other != module and any(getattr(node, "name", None) == name for node in modules.tree(other).body)), None)

    def entry(self, kind, module, text, node):
        """The nodes of one entry, with the docstring as its content."""
        lines = [f"```{{py:{kind}}} {text}", f":module: {module}", "```"]
        container = nodes.container()
        self.state.nested_parse(StringList(lines, self.get_source_info()[0]), self.content_offset, container)
        description = next(iter(container.findall(addnodes.desc)))
        content = next(iter(description.findall(addnodes.desc_content)))
        if node is not None:
            content += described(ast.get_docstring(node))
        return container.children

    def class_entry(self, module, name, node):
        initial = next((child for child in node.body if isinstance(child, FUNCTIONS) and child.name == "__init__"), None)
        entry = self.entry("class", module, name + (signature(initial, True) if initial else ""), node)
        description = next(child for child in entry if isinstance(child, addnodes.desc))
        content = next(iter(description.findall(addnodes.desc_content)))
        if initial is not None:
            content += described(ast.get_docstring(initial))
        for child in node.body:
            if isinstance(child, FUNCTIONS) and not child.name.startswith("_") and ast.get_docstring(child):
                is_property = any(getattr(decorator, "id", "") == "property" for decorator in child.decorator_list)
                text = f"{name}.{child.name}" + ("" if is_property else signature(child, True))
                content += self.entry("property" if is_property else "method", module, text, child)
        return entry


def setup(app):
    app.add_config_value("python_api_root", None, "env")
    app.add_config_value("python_api_modules", [], "env")
    app.add_directive("python-module", PythonModule)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
