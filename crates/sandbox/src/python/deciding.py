# Finds the assertions of the tests that look at an answer of the program. A test passes only if one of them was
# evaluated, whatever its form: `assert`, a method of unittest, `pytest.raises`, a `raise` after an `if`. The syntax
# trees show which names may hold an answer (in any order of statements, so rather too many names), and each such
# assertion is compiled with a call that records its evaluation.
import _ast

# These are not identifiers, so tests cannot have such names.
NOTE = " decided"
SAME = " same"
# Attributes that hold what functions printed, or how they were called.
OBSERVED = {"stdout", "stderr", "getvalue", "readouterr", "called", "call_count", "call_args", "mock_calls"}
OBSERVED |= {"call_args_list", "records", "output", "import_module"}
# Functions that may reach what belongs to the program without its name.
REACHING = {"eval", "exec", "globals", "locals", "vars", "__import__"}
# Assertions that check only their first argument.
UNARY = {"assertTrue", "assertFalse", "assertIsNone", "assertIsNotNone", "assert_", "failIf", "failUnless"}
CONTEXTS = {"raises", "warns", "deprecated_call"}
FAILS = {"fail", "exit", "_exit", "quit"}
CODE = (_ast.FunctionDef, _ast.AsyncFunctionDef, _ast.Lambda)
TRY = (_ast.Try, getattr(_ast, "TryStar", _ast.Try))
MATCH = getattr(_ast, "Match", ())
BLOCKS = (_ast.If, _ast.While, _ast.For, _ast.AsyncFor, _ast.With, _ast.AsyncWith) + TRY


def children(node):
    for field in node._fields:
        value = getattr(node, field, None)
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, _ast.AST):
                yield child


def walk(node):
    stack = [node]
    while stack:
        node = stack.pop()
        yield node
        if not isinstance(node, _ast.Constant):
            stack.extend(children(node))


EMPTY = (frozenset(), frozenset())


class Contents(dict):
    """The names and the attributes in each syntax tree, by the tree's `id`. Tests may have megabytes of constants."""

    def of(self, node):
        if isinstance(node, _ast.Constant):
            return EMPTY
        known = self.get(id(node))
        if known is not None:
            return known
        parts = {id(part): part for part in map(self.of, children(node)) if part is not EMPTY}
        names, attributes = set(), set()
        if isinstance(node, _ast.Name):
            names.add(node.id)
        elif isinstance(node, _ast.Attribute):
            attributes.add(node.attr)
        elif isinstance(node, (_ast.Import, _ast.ImportFrom)):
            names |= {name.asname or name.name for name in node.names}
        if len(parts) == 1 and not names and not attributes:
            found = next(iter(parts.values()))
        elif parts or names or attributes:
            for part in parts.values():
                names |= part[0]
                attributes |= part[1]
            found = (frozenset(names), frozenset(attributes))
        else:
            found = EMPTY
        self[id(node)] = found
        return found


def called_name(node):
    """The name of the function in a call: `f` of f(x), `g` of m.g(x)."""
    if not isinstance(node, _ast.Call):
        return None
    return getattr(node.func, "id", None) or getattr(node.func, "attr", None)


def is_assertion(node):
    """Whether an expression is an assertion of unittest, pytest, numpy or a mock."""
    name = called_name(node)
    return name is not None and (name.startswith("assert") or name in CONTEXTS and bool(node.args[1:]))


def is_context(node):
    name = called_name(node)
    return name is not None and (name in CONTEXTS or name.startswith("assert"))


def is_failure(node):
    """Whether a statement or expression can only fail."""
    if isinstance(node, _ast.Raise):
        return True
    if isinstance(node, _ast.Assert):
        return is_constant(node.test) and truth(node.test) is False
    return isinstance(node, _ast.Call) and called_name(node) in FAILS


def is_constant(node):
    """Whether the form of an expression fixes its truth, whatever the program answers."""
    if isinstance(node, (_ast.Constant, _ast.Lambda, _ast.GeneratorExp)):
        return True
    if isinstance(node, _ast.JoinedStr):
        return any(isinstance(part, _ast.Constant) for part in node.values)
    if isinstance(node, (_ast.Tuple, _ast.List, _ast.Set)):
        return True
    if isinstance(node, _ast.Dict):
        return True
    if isinstance(node, _ast.UnaryOp) and isinstance(node.op, _ast.Not):
        return is_constant(node.operand)
    if isinstance(node, _ast.BoolOp):
        ends = isinstance(node.op, _ast.Or)
        fixed = [truth(part) for part in node.values if is_constant(part)]
        return len(fixed) == len(node.values) or ends in fixed
    if isinstance(node, _ast.NamedExpr):
        return is_constant(node.value)
    if isinstance(node, _ast.Call) and called_name(node) == "bool" and len(node.args) == 1:
        return is_constant(node.args[0])
    if isinstance(node, _ast.Call) and called_name(node) == "isinstance" and len(node.args) == 2:
        return getattr(node.args[1], "id", None) == "object"
    return False


def truth(node):
    """The truth of an expression for which `is_constant` holds; None if it is not known."""
    if isinstance(node, _ast.Constant):
        return bool(node.value)
    for field in ("elts", "keys"):
        if hasattr(node, field):
            return bool(getattr(node, field))
    return True if isinstance(node, (_ast.Lambda, _ast.GeneratorExp, _ast.JoinedStr)) else None


def of_pairs(node):
    """The comprehension of `all(a == b for a, b in zip(answers, expected))`, which is true if there is no pair. None
    for any other expression."""
    if called_name(node) in UNARY and node.args or isinstance(node, _ast.UnaryOp):
        node = node.operand if isinstance(node, _ast.UnaryOp) else node.args[0]
    if called_name(node) not in ("all", "any") or len(node.args) != 1 or not hasattr(node.args[0], "generators"):
        return None
    first = node.args[0].generators[0].iter
    while called_name(first) in ("enumerate", "list", "tuple") and first.args:
        first = first.args[0]
    return node.args[0] if called_name(first) == "zip" and hasattr(node.args[0], "elt") else None


def looked_at(node):
    """The parts of an assertion that decide it."""
    if isinstance(node, _ast.Assert):
        return [] if is_constant(node.test) else [node.test]
    receiver = [node.func.value] if isinstance(node.func, _ast.Attribute) else []
    name = called_name(node)
    if name in UNARY:
        parts = node.args[:1] or [keyword.value for keyword in node.keywords if keyword.arg in ("expr", "obj")]
        return [] if any(map(is_constant, parts)) else parts
    if name in CONTEXTS or name.startswith("assertRaises") or name.startswith("assertWarns"):
        return node.args[1:]
    most = 2 if name.startswith("assert") and not name.startswith("assert_") else len(node.args)
    return receiver + node.args[:most] + [keyword.value for keyword in node.keywords if keyword.arg != "msg"]


class Deciding:
    """Finds the assertions in the syntax trees of the tests that look at an answer. `program` are the names that belong
    to the program, `outside` the names that the tests use and do not bind."""

    def __init__(self, trees, program, outside, arrays=False):
        # arrays: whether the tests use numpy.
        self.arrays = arrays
        self.names, self.attributes, self.contents = set(program), set(OBSERVED), Contents()
        self.program, self.outside = frozenset(program), outside
        self.names |= {"capsys", "capfd", "caplog", "recwarn"} | REACHING
        nodes = [node for tree in trees for node in self.walk(tree)]
        self.functions = [node for node in nodes if isinstance(node, CODE)]
        self.classes = {node.name: node for node in nodes if isinstance(node, _ast.ClassDef)}
        kinds = BLOCKS + CODE + (_ast.ClassDef, _ast.Call, _ast.Assign, _ast.AnnAssign, _ast.AugAssign)
        kinds += (_ast.NamedExpr, _ast.comprehension)
        # Names that never hold a value of the program.
        self.never = {"self", "cls"} | {name for name in dir(builtins) if name not in self.names}
        for node in nodes:
            if isinstance(node, (_ast.Import, _ast.ImportFrom)):
                self.never |= {name.asname or name.name.partition(".")[0] for name in node.names} - self.names
        nodes = [node for node in nodes if isinstance(node, kinds)]
        size = -1
        while size != len(self.names) + len(self.attributes):
            size = len(self.names) + len(self.attributes)
            for node in nodes:
                self.spread(node)

    def walk(self, node):
        """The nodes of a tree without those that consist of constants."""
        stack = [node]
        while stack:
            node = stack.pop()
            yield node
            stack.extend(child for child in children(node) if self.contents.of(child) is not EMPTY)

    def depends(self, node):
        """Whether an expression or a block uses an answer of the program."""
        names, attributes = self.contents.of(node)
        return not names.isdisjoint(self.names) or not attributes.isdisjoint(self.attributes)

    def add(self, node, loads=True):
        """Marks the names in a target, or in an argument that the program may change, as dependent on the program."""
        for part in walk(node):
            if isinstance(part, _ast.Name) and (loads or not isinstance(part.ctx, _ast.Load)):
                self.names |= {part.id} - self.never
                if not isinstance(part.ctx, _ast.Load):
                    # In the body of a class, the name is an attribute.
                    self.attributes |= {part.id} - self.never
            elif isinstance(part, _ast.Attribute) and not isinstance(part.ctx, _ast.Load):
                self.attributes.add(part.attr)
            elif isinstance(part, _ast.arg):
                self.names |= {part.arg} - self.never

    def bound(self, node):
        """Marks everything that a block binds or changes."""
        for part in walk(node):
            if isinstance(part, (_ast.Assign, _ast.AnnAssign, _ast.AugAssign, _ast.For, _ast.NamedExpr)):
                for target in getattr(part, "targets", None) or [part.target]:
                    self.add(target)
            elif isinstance(part, _ast.Call) and isinstance(part.func, _ast.Attribute):
                self.add_roots(part.func.value)
            elif isinstance(part, _ast.ExceptHandler) and part.name:
                self.names.add(part.name)

    def methods(self, kind):
        """Marks the arguments of a class's methods."""
        for part in kind.body:
            if isinstance(part, CODE):
                self.add(part.args)

    def add_roots(self, node):
        while isinstance(node, (_ast.Attribute, _ast.Subscript)):
            if isinstance(node, _ast.Attribute) and getattr(node.value, "id", None) == "self":
                self.attributes.add(node.attr)
                return
            node = node.value
        if isinstance(node, _ast.Name):
            self.names |= {node.id} - self.never

    def spread(self, node):
        if isinstance(node, _ast.Call):
            self.spread_call(node)
        elif isinstance(node, CODE + (_ast.ClassDef,)):
            name = getattr(node, "name", None)
            known = name in self.names or name in self.attributes
            if name and not known and any(map(self.depends, node.body)):
                self.names.add(name)
                self.attributes.add(name)
                for part in getattr(node, "decorator_list", ()):
                    # A fixture with another name.
                    for keyword in getattr(part, "keywords", ()):
                        if keyword.arg == "name" and isinstance(keyword.value, _ast.Constant):
                            self.names.add(keyword.value.value)
            if any(map(self.depends, getattr(node, "decorator_list", ()))):
                self.add(node.args if hasattr(node, "args") else node)
        elif isinstance(node, (_ast.Assign, _ast.AnnAssign, _ast.AugAssign, _ast.NamedExpr)):
            if node.value is None:
                return
            targets = getattr(node, "targets", None) or [node.target]
            if self.depends(node.value):
                for target in targets:
                    self.add(target) if isinstance(target, _ast.Name) else self.add(target, loads=False)
                    self.add_roots(target)
            if called_name(node.value) in self.classes and any(map(self.depends, targets)):
                self.methods(self.classes[called_name(node.value)])
            if any(getattr(target, "attr", None) in OBSERVED for target in targets):
                self.add(node.value)
        elif isinstance(node, _ast.comprehension):
            if self.depends(node.iter):
                self.add(node.target)
        elif isinstance(node, (_ast.With, _ast.AsyncWith)):
            if self.depends(node):
                for item in node.items:
                    self.add(item)
            # A context manager of the program may end the block early.
            if any(self.depends(item.context_expr) for item in node.items):
                self.bound(node)
        elif isinstance(node, TRY):
            if any(map(self.depends, node.body)):
                self.bound(node)
        elif isinstance(node, (_ast.If, _ast.While)):
            if self.depends(node.test):
                self.bound(node)
        elif isinstance(node, (_ast.For, _ast.AsyncFor)):
            if self.depends(node.iter):
                self.add(node.target)
                self.bound(node)

    def spread_call(self, node):
        arguments = node.args + [keyword.value for keyword in node.keywords]
        if not self.depends(node):
            return
        for argument in arguments:
            self.add(argument)
        if isinstance(node.func, _ast.Attribute):
            self.add_roots(node.func.value)
        name = called_name(node)
        # The program may call the methods of its arguments.
        for kind in {part.id for argument in arguments for part in walk(argument) if isinstance(part, _ast.Name)}:
            if kind in self.classes and self.depends(node.func):
                self.methods(self.classes[kind])
        if name in self.classes and any(map(self.depends, arguments)):
            # Instances are made from the arguments of special methods, and from fields.
            for part in self.classes[name].body:
                if isinstance(part, CODE) and part.name.startswith("__"):
                    self.add(part.args)
                elif isinstance(part, _ast.AnnAssign):
                    self.add(part.target)
        for function in self.functions:
            given = getattr(function, "name", None)
            if given is not None and given == name and any(map(self.depends, arguments)):
                self.add(function.args)
            # The program, or what calls it, calls this function.
            if any(part is function or given and getattr(part, "id", getattr(part, "attr", None)) == given
                   for argument in arguments for part in walk(argument)):
                self.add(function.args)
                for part in function.body if isinstance(function.body, list) else [function.body]:
                    self.bound(part)

    def draws_questions(self, trees):
        """Whether the tests pass random numbers that they draw to the program. Draws of the program must then not
        decide which numbers these are."""
        nodes = [node for tree in trees for node in self.walk(tree)]
        drawn = {"random"} | {name.asname or name.name for node in nodes for name in getattr(node, "names", ())
                              if isinstance(node, _ast.ImportFrom) and node.module == "random"}
        drawn |= {name.asname for node in nodes if isinstance(node, _ast.Import) for name in node.names
                  if name.name == "random" and name.asname}
        size = 0
        while size != len(drawn):
            size = len(drawn)
            for node in nodes:
                value = getattr(node, "iter", None) or getattr(node, "value", None)
                if isinstance(node, CODE) and not isinstance(node, _ast.Lambda):
                    if not self.contents.of(node)[0].isdisjoint(drawn):
                        drawn.add(node.name)
                elif isinstance(node, _ast.Call) and not self.contents.of(node.func)[0].isdisjoint(drawn):
                    # It may shuffle its arguments.
                    parts = [part for argument in node.args for part in walk(argument)]
                    drawn |= {part.id for part in parts if isinstance(part, _ast.Name)} - self.program
                elif isinstance(value, _ast.AST) and not self.contents.of(value)[0].isdisjoint(drawn):
                    for target in getattr(node, "targets", None) or [getattr(node, "target", None)]:
                        roots = [] if target is None else walk(target)
                        drawn |= {part.id for part in roots if isinstance(part, _ast.Name)}
        given = ((node, node.args + [keyword.value for keyword in node.keywords])
                 for node in nodes if isinstance(node, _ast.Call))
        return any(self.depends(node.func) and not self.contents.of(argument)[0].isdisjoint(drawn)
                   for node, arguments in given for argument in arguments)

    # Instrumentation.

    def decides(self, node, swallowed=()):
        """Whether evaluating this node is an assertion on an answer."""
        if isinstance(node, _ast.Assert) or is_assertion(node):
            return "AssertionError" not in swallowed and any(map(self.depends, looked_at(node)))
        return False

    def instrument(self, tree):
        """Adds calls that record evaluations to a test, which is run as a script: `__name__` is `__main__`."""
        self.change(tree, (), any(map(is_failure, getattr(tree, "body", ()))))
        return tree

    def uses_data(self, tree):
        """Whether a test reads something that an earlier test may have got from the program."""
        return not self.contents.of(tree)[0].isdisjoint(self.names - self.program)

    def change(self, node, swallowed, fails):
        for field in node._fields:
            value = getattr(node, field, None)
            if isinstance(value, list):
                value[:] = [self.changed(child, swallowed, fails) for child in value]
            elif isinstance(value, _ast.AST):
                setattr(node, field, self.changed(value, swallowed, fails))

    def changed(self, node, swallowed, fails):
        if not isinstance(node, _ast.AST) or self.contents.of(node) is EMPTY:
            return node
        inside = swallowed
        if isinstance(node, CODE) and isinstance(node.body, list):
            fails = any(is_failure(part) or isinstance(part, _ast.Expr) and is_failure(part.value)
                        for part in node.body)
            inside = ()
        if isinstance(node, TRY):
            caught = {name for handler in node.handlers if not self.refuses(handler) for name in names_caught(handler)}
            return self.change_try(node, swallowed, caught, fails)
        if isinstance(node, (_ast.With, _ast.AsyncWith)):
            suppressed = {name for item in node.items if called_name(item.context_expr) == "suppress"
                          for argument in item.context_expr.args for name in wider(name_at_end(argument))}
            inside = swallowed + tuple(suppressed)
        before = self.decides(node, swallowed)
        arrays = self.arrays and isinstance(node, _ast.Compare) and self.depends(node)
        self.change(node, inside, fails)
        if arrays and len(node.ops) == 1 and isinstance(node.ops[0], _ast.Eq):
            same = call(SAME, node.left)
            same.args.append(node.comparators[0])
            return same
        if isinstance(node, _ast.ClassDef):
            for part in node.body:
                self.reach(part)
        if isinstance(node, _ast.Name) and node.id == "__name__" and isinstance(node.ctx, _ast.Load):
            return at(_ast.Constant("__main__"), node)
        pairs = of_pairs(node.test if isinstance(node, _ast.Assert) else node) if before else None
        if pairs is not None:
            pairs.elt = call(NOTE, pairs.elt)
        elif before and isinstance(node, _ast.Assert):
            node.test = call(NOTE, node.test)
        elif before:
            # The evaluation is recorded first, since it may fail, as some tests expect.
            return at(_ast.BoolOp(_ast.Or(), [call(NOTE, at(_ast.Constant(False), node)), node]), node)
        elif isinstance(node, (_ast.If, _ast.While, _ast.IfExp)) and self.depends(node.test):
            if fails or any(map(is_failure, walk(node))):
                node.test = call(NOTE, node.test)
        elif MATCH and isinstance(node, MATCH) and self.depends(node.subject) and any(map(is_failure, walk(node))):
            node.subject = call(NOTE, node.subject)
        elif isinstance(node, _ast.BoolOp) and self.depends(node.values[0]):
            if any(is_failure(part) for value in node.values[1:] for part in walk(value)):
                node.values[0] = call(NOTE, node.values[0])
        elif isinstance(node, (_ast.With, _ast.AsyncWith)):
            if any(is_context(item.context_expr) for item in node.items) and any(map(self.depends, node.body)):
                node.items[0].context_expr = call(NOTE, node.items[0].context_expr)
        return node

    def reach(self, node):
        """Lets the body of a class use names of the program: Python looks them up there as in an ordinary namespace."""
        for field in node._fields:
            value = getattr(node, field, None)
            if field == "body" and isinstance(node, CODE + (_ast.ClassDef,)):
                continue
            for i, child in enumerate(value if isinstance(value, list) else [value]):
                if isinstance(child, _ast.Name) and isinstance(child.ctx, _ast.Load) and child.id in self.outside:
                    inside = call("globals", child)
                    inside.args = []
                    new = at(_ast.Subscript(inside, at(_ast.Constant(child.id), child), _ast.Load()), child)
                    if isinstance(value, list):
                        value[i] = new
                    else:
                        setattr(node, field, new)
                elif isinstance(child, _ast.AST):
                    self.reach(child)

    def refuses(self, handler):
        """Whether the body of an `except` makes the test fail."""
        return any(is_failure(part) or isinstance(part, _ast.Assert) for node in handler.body for part in walk(node))

    def change_try(self, node, swallowed, caught, fails):
        body = any(map(self.depends, node.body))
        reached = [part for block in (node.body, node.orelse) for one in block for part in walk(one)]
        ways = {name_at_end(part.exc) if isinstance(part, _ast.Raise) else
                "SystemExit" if called_name(part) in FAILS - {"fail"} else "AssertionError"
                for part in reached if is_failure(part)}
        in_else = any(is_failure(part) for one in node.orelse for part in walk(one))
        node.body[:] = [self.changed(child, swallowed + tuple(caught), fails) for child in node.body]
        for block in (node.orelse, node.finalbody, node.handlers):
            block[:] = [self.changed(child, swallowed, fails) for child in block]
        if body and node.handlers and (in_else or any(way not in caught for way in ways)):
            node.body.insert(0, at(_ast.Expr(call(NOTE, at(_ast.Constant(True), node.body[0]))), node.body[0]))
        return node


def names_caught(handler):
    """The names of the exceptions that an `except` catches."""
    if handler.type is None:
        return wider("BaseException")
    parts = handler.type.elts if isinstance(handler.type, _ast.Tuple) else [handler.type]
    return {name for part in parts for name in wider(name_at_end(part))}


def wider(name):
    """The name of a class of exceptions, and those of the built-in classes derived from it."""
    kind = getattr(builtins, name or "", None)
    if not isinstance(kind, type):
        return {name}
    kinds = [one for one in vars(builtins).values() if isinstance(one, type) and issubclass(one, kind)]
    return {one.__name__ for one in kinds}


def name_at_end(node):
    """`E` of E, m.E, E(x), or None."""
    if isinstance(node, _ast.Call):
        node = node.func
    return getattr(node, "id", None) or getattr(node, "attr", None)


def at(new, old):
    for name in ("lineno", "col_offset", "end_lineno", "end_col_offset"):
        setattr(new, name, getattr(old, name, 1))
    return new


def call(function, node):
    name = at(_ast.Name(function, _ast.Load()), node)
    return at(_ast.Call(name, [node], []), node)
