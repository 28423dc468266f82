# Reads the source of the tests: which names belong to the program, and which of them are classes.

ONLY_AST = 0x400  # ast.PyCF_ONLY_AST; the module `ast` would take longer to import than a test to run.
OF_VALUES = {name for kind in (list, dict, set, str, bytes, int, float, tuple) for name in dir(kind)}
TRIES = {"isinstance", "issubclass", "raises", "assertRaises", "assertRaisesRegex", "assertIsInstance"}


class Reading:
    """The names that the tests call, read and bind, and the classes whose instances are themselves tested."""

    def __init__(self, tests, candidate=None):
        self.called, self.loaded, self.bound, self.classes, self.defined = set(), set(), set(), set(), set()
        self.modules, self.made, self.used, self.attributes, self.guards = set(), {}, set(), set(), []
        self.trees = [compile(test, file_of(i), "exec", ONLY_AST) for i, test in enumerate(tests)]
        self.imported = set()
        for self.test, tree in enumerate(self.trees):
            self.visit(tree)
        # Classes whose instances are used in ways that plain values do not support.
        self.classes |= {name for variable, name in self.made.items() if variable in self.used}
        if "candidate" in self.classes and candidate:
            self.classes.add(candidate)
        self.classes = {name for name in self.classes if name.lstrip("_")[:1].isupper()} - self.bound

    def visit(self, node):
        kind = type(node).__name__
        if kind == "Name":
            (self.loaded if type(node.ctx).__name__ == "Load" else self.bound).add(node.id)
        elif kind in ("arg", "FunctionDef", "AsyncFunctionDef", "ClassDef", "ExceptHandler"):
            self.bound.add(node.arg if kind == "arg" else node.name)
            if kind in ("FunctionDef", "AsyncFunctionDef", "ClassDef"):
                self.defined.add(node.name)
        elif kind in ("Import", "ImportFrom"):
            for name in node.names:
                self.bound.add(name.asname or name.name.partition(".")[0])
                module = name.name if kind == "Import" else node.module or ""
                self.modules.add(module)
                if module == "solution":
                    self.imported.add(name.asname or name.name)
        self.look_for_classes(kind, node)
        if kind in ("With", "AsyncWith"):
            self.guards.append((file_of(self.test), node.lineno, node.end_lineno, asserts(node)))
        for field in getattr(node, "_fields", ()):
            children = getattr(node, field, None)
            for child in children if isinstance(children, list) else [children]:
                if hasattr(child, "_fields"):
                    self.visit(child)

    def look_for_classes(self, kind, node):
        if kind == "Call":
            name = name_of(node.func)
            if name is not None:
                self.called.add(name)
            if (name or getattr(node.func, "attr", None)) in TRIES:
                for argument in node.args:
                    parts = argument.elts if type(argument).__name__ == "Tuple" else [argument]
                    self.classes.update(name_of(part) for part in parts if name_of(part))
        elif kind == "Attribute":
            self.attributes.add(node.attr)
            if name_of(node.value) and node.attr not in OF_VALUES:
                self.classes.add(name_of(node.value))
                self.used.add(name_of(node.value))
            elif made_by(node.value) and node.attr not in OF_VALUES:
                self.classes.add(made_by(node.value))
        elif kind == "Assign" and made_by(node.value) and name_of(node.targets[0]):
            self.made[name_of(node.targets[0])] = made_by(node.value)
        elif kind == "withitem" and made_by(node.context_expr):
            self.classes.add(made_by(node.context_expr))
        elif kind == "ExceptHandler" and node.type is not None and name_of(node.type):
            self.classes.add(name_of(node.type))
        elif kind in ("Compare", "BinOp"):
            sides = [node.left] + ([node.right] if kind == "BinOp" else node.comparators)
            makers = [made_by(side) or self.made.get(name_of(side)) for side in sides]
            if len(makers) > 1 and makers[0] is not None and len(set(makers)) == 1:
                self.classes.add(makers[0])

    def under_test(self, entry_point):
        """The names that the tests call and that are not built-in functions. A built-in name counts only if nothing
        else could be the program's: a program may define `sum`."""
        if entry_point in self.called:
            return {entry_point} | {name for name in self.called if not hasattr(builtins, name)}
        own = {name for name in self.called if not hasattr(builtins, name)}
        known = self.bound | standard_modules()
        if own or any(name not in known and not hasattr(builtins, name) for name in self.loaded):
            return own
        if len(self.called) > 1:
            raise Broken("its tests call only built-in functions, " + " and ".join(sorted(self.called))
                         + ": a column `entry_point` can name the program's")
        return set(self.called)


    def outside(self):
        """The names that the tests use and do not bind."""
        return self.loaded - self.bound - set(dir(builtins))

    def of_program(self, remote, own):
        """All names that belong to the program. `own` are the syntax trees of what the row itself defines."""
        loaded, bound = set(self.loaded), set(self.bound)
        for node in own:
            for part in walk(node):
                kind = type(part).__name__
                if kind == "Name":
                    (loaded if type(part.ctx).__name__ == "Load" else bound).add(part.id)
                elif kind in ("arg", "FunctionDef", "AsyncFunctionDef", "ClassDef", "alias"):
                    bound.add(getattr(part, "arg", None) or getattr(part, "asname", None) or part.name)
        known = bound | standard_modules() | set(dir(builtins)) | {"__name__", "__file__"}
        return loaded - known | set(remote) - {None} | self.imported | {"candidate", "solution"}


def file_of(test):
    return "test " + str(test)


def name_of(node):
    return node.id if type(node).__name__ == "Name" else None


def made_by(node):
    return name_of(node.func) if type(node).__name__ == "Call" else None


def asserts(node):
    """Whether a syntax tree contains an assertion."""
    kind = type(node).__name__
    if kind == "Assert" or kind == "Attribute" and node.attr.startswith("assert"):
        return True
    for field in getattr(node, "_fields", ()):
        children = getattr(node, field, None)
        for child in children if isinstance(children, list) else [children]:
            if hasattr(child, "_fields") and asserts(child):
                return True
    return False


def standard_modules():
    known = getattr(sys, "stdlib_module_names", None)
    if known is None:
        import pkgutil

        known = {name for _, name, _ in pkgutil.iter_modules()} | set(sys.builtin_module_names)
    return known
