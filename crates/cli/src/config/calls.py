"""Reads a Python script from standard input and prints its calls as JSON. The script is parsed, but not executed.

A call is {"name", "method", "line", "arguments"}. The name is the function's own: `trl.GRPOConfig` is `GRPOConfig`, and
so is `Cfg` after `import GRPOConfig as Cfg` or `Cfg = GRPOConfig`. `method` is whether the name follows a dot. Each
argument is a pair of a keyword ("" for a positional argument) and a value: {"value": …} for a literal, {"none": null},
or {"text": "the expression"} for any other expression. A variable has the literal that was last assigned to it before
the call.
"""

import ast
import json
import math
import sys


def main():
    source = sys.stdin.buffer.read()
    try:
        tree = ast.parse(source)
        text = source.decode("utf-8", "replace")
        scope = Scope(tree)
        nodes = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
        nodes = [node for node in nodes if isinstance(node.func, (ast.Name, ast.Attribute))]
        nodes.sort(key=lambda node: place(node.func))
        answer = {"calls": [call(node, scope, text) for node in nodes]}
    except SyntaxError as error:
        answer = {"error": error.msg, "line": error.lineno or 0}
    except (ValueError, RecursionError, MemoryError) as error:
        answer = {"error": str(error) or type(error).__name__, "line": 0}
    json.dump(answer, sys.stdout)


def place(function):
    """Returns the end of the function's name. In a chain of methods, each name may be on its own line."""
    return function.end_lineno, function.end_col_offset


class Scope:
    """The names in a script: aliases of functions, and variables with the lines and values of their assignments."""

    def __init__(self, tree):
        self.aliases, self.values = {}, {}
        literal_targets = set()
        for node in ast.walk(tree):
            if isinstance(node, (ast.Import, ast.ImportFrom)):
                self.aliases.update({name.asname: name.name.rpartition(".")[2] for name in node.names if name.asname})
            elif isinstance(node, (ast.Assign, ast.AnnAssign)):
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                for target in targets:
                    if isinstance(target, ast.Name) and node.value is not None:
                        literal_targets.add(target)
                        self.bind(target.id, node.lineno, node.value)
                        if isinstance(node.value, (ast.Name, ast.Attribute)):
                            self.aliases[target.id] = own_name(node.value)
        for node in ast.walk(tree):
            # The value of a name that a loop, a parameter, `+=`, … binds is unknown.
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) and node not in literal_targets:
                self.bind(node.id, node.lineno, None)
            elif isinstance(node, ast.arg):
                self.bind(node.arg, node.lineno, None)

    def bind(self, name, line, value):
        self.values.setdefault(name, []).append((line, value))

    def function(self, name):
        seen = set()
        while name in self.aliases and name not in seen:
            seen.add(name)
            name = self.aliases[name]
        return name

    def value(self, name, line):
        """Returns the value last assigned to `name` before `line`; if all assignments come later, the first one."""
        given = sorted(self.values.get(name, []), key=lambda bound: bound[0])
        before = [bound for bound in given if bound[0] < line]
        at, node = before[-1] if before else given[0] if given else (0, None)
        if node is None:
            raise NoLiteral
        return literal(node, self, at)


class NoLiteral(Exception):
    pass


def own_name(function):
    return function.id if isinstance(function, ast.Name) else function.attr


def call(node, scope, text):
    line, _ = place(node.func)
    arguments = [("", value) for value in node.args] + [(word.arg or "**", word.value) for word in node.keywords]
    arguments.sort(key=lambda argument: (argument[1].lineno, argument[1].col_offset))

    def read(name, value):
        if name == "**":
            return "", {"text": "**" + expression(value, text)}
        try:
            value = literal(value, scope, line)
            return name, {"none": None} if value is None else {"value": value}
        except (NoLiteral, RecursionError):
            return name, {"text": expression(value, text)}

    name = own_name(node.func)
    return {
        "name": scope.function(name) if isinstance(node.func, ast.Name) else name,
        "method": isinstance(node.func, ast.Attribute),
        "line": line,
        "arguments": [read(*argument) for argument in arguments],
    }


def expression(node, text):
    """Returns the source text of an expression. If it has several lines, Python writes it on one line."""
    written = ast.get_source_segment(text, node)
    return ast.unparse(node) if written is None or "\n" in written else written


def literal(node, scope, line, inside=False):
    """Returns the value of a literal in `line`, if TOML can hold it. None is not allowed `inside` a list or a dict."""
    if isinstance(node, ast.Constant):
        value = node.value
        is_known = isinstance(value, (bool, str)) or value is None and not inside
        if isinstance(value, int) and not isinstance(value, bool):
            is_known = abs(value) < 2**63
        elif isinstance(value, float):
            is_known = math.isfinite(value)
        if is_known:
            return value
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, (ast.USub, ast.UAdd)):
        value = literal(node.operand, scope, line, inside)
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            return -value if isinstance(node.op, ast.USub) else value
    elif isinstance(node, (ast.List, ast.Tuple)):
        return [literal(item, scope, line, True) for item in node.elts]
    elif isinstance(node, ast.Dict) and all(isinstance(key, ast.Constant) for key in node.keys):
        if all(isinstance(key.value, str) for key in node.keys):
            return {key.value: literal(value, scope, line, True) for key, value in zip(node.keys, node.values)}
    elif isinstance(node, ast.Name):
        value = scope.value(node.id, line)
        if value is not None or not inside:
            return value
    raise NoLiteral


main()
