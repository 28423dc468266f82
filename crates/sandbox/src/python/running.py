# The namespace of the tests, and how tests run: one after the other, each in the namespace that the last one left.


class Scope(dict):
    """The namespace of the tests. A name that they do not define is a module of the standard library, or belongs to the
    program."""

    def __init__(self, remote, asserted):
        super().__init__(__name__="tests", __file__="tests.py")
        # remote: names that are the program's even if a built-in function has the same name. own: the names that the
        # row's own code defines for the tests.
        self.remote, self.own, self.functions, self.read, self.asserted = remote, {}, {}, set(), asserted

    def __missing__(self, name):
        if name in self.functions:
            return self.functions[name]
        if name in self.own:
            return self.own[name]
        if name not in self.remote:
            if hasattr(builtins, name):
                raise KeyError(name)
            if name in standard_modules():
                return __import__(name)
        return self.of_program(name)

    def of_program(self, name):
        defined, value = port.ask("name", name)
        if defined is not True:
            if hasattr(builtins, name):
                return getattr(builtins, name)
            error = NameError("the program does not define " + name)
            if name in self.remote or self.asserted:
                error._from_program = True
                port.missing = name
            raise error
        if is_mirror_class(value) or is_mirror(value) and callable(value):
            self.functions[name] = value
        else:
            self.read.add(name)
        return value

    def __setitem__(self, name, value):
        # Tests that read a variable of the program and then set it mean the program's variable.
        if name in self.read:
            port.ask("setname", name, value)
        else:
            super().__setitem__(name, value)


def own_nodes(source, entry_point, completed):
    """Returns the syntax trees of the imports, functions, classes and constants that the row's own code (prompt or
    setup) defines. The tests get their own copies, since the program may have patched its copies."""
    for whole in (source, source + "\n    pass\n"):
        try:
            body = compile(whole, "tests", "exec", ONLY_AST).body
            break
        except (SyntaxError, ValueError):
            body = []
    constant = (_ast.Constant, _ast.List, _ast.Tuple, _ast.Dict, _ast.Set, _ast.UnaryOp, _ast.BinOp, _ast.operator)
    constant += (_ast.unaryop, _ast.expr_context)
    nodes = []
    for node in body:
        if isinstance(node, _ast.Assign):
            if not all(isinstance(part, constant) for part in walk(node.value)):
                continue
        elif isinstance(node, (_ast.FunctionDef, _ast.AsyncFunctionDef)):
            if node.name == entry_point:
                continue
        elif isinstance(node, _ast.ClassDef):
            # The last class of a prompt may be what the program has to complete.
            if node.name == entry_point or completed and (node is body[-1] or any(map(is_stub, node.body))):
                continue
        elif not isinstance(node, (_ast.Import, _ast.ImportFrom)):
            continue
        nodes.append(node)
    return nodes


def constants(prompt):
    """The constants in the code of a prompt, so that the program cannot change a tolerance that the tests read."""
    return [node for node in own_nodes(prompt, None, True) if isinstance(node, _ast.Assign)
            and all(isinstance(target, _ast.Name) and target.id.isupper() for target in node.targets)]


def is_stub(node):
    """Whether a method has no body yet."""
    body = getattr(node, "body", None)
    if not isinstance(node, CODE) or not isinstance(body, list):
        return False
    blank = (_ast.Pass, _ast.Raise)
    return all(isinstance(one, blank) or isinstance(one, _ast.Expr) and isinstance(one.value, _ast.Constant)
               for one in body)


def defined(nodes):
    """Runs these nodes for the tests. Returns their namespace."""
    found = Scope(set(), False)
    for node in nodes:
        try:
            exec(compile(_ast.Module([node], []), "tests", "exec"), found)
        except Exception:
            continue
    return found


def share_classes(names, own, nodes):
    """Makes instances of the row's classes exist on both sides, so that the program cannot change the classes of the
    tests. A class remains the program's if it has a metaclass, or if it inherits from a class that cannot be shared."""
    def can(name):
        bases = own[name].__mro__[1:-1]
        return all(base.__module__ != "tests" or ROW_NAMES.get(base) for base in bases) and define_row(name, own[name])

    names = [name for name in names if isinstance(own[name], type)]
    known = [name for name in names if can(name)]
    # Attributes that some class sets on its instances, or declares as a field.
    set_there = {part.attr for node in nodes for part in walk(node)
                 if isinstance(part, _ast.Attribute) and not isinstance(part.ctx, _ast.Load)}
    set_there |= {part.target.id for node in nodes for part in walk(node)
                  if isinstance(part, _ast.AnnAssign) and isinstance(part.target, _ast.Name)}
    FIELDS.update({own[name]: set_there for name in known})
    taken = port.ask("rows", *known) if known else ()
    for name in set(names) - set(taken):
        ROW_NAMES.pop(ROWS.pop(name, None), None)
        del own[name]


class Undecided(Exception):
    """A test that evaluated no assertion on an answer of the program."""


class Unreached(Exception):
    """A test that called the program, and reached none of its assertions because of the program's answers."""


def note(value):
    """Records that an assertion looks at an answer. deciding.py inserts the calls."""
    NOTED.append(True)
    return value


def has_notes(code, scope, owner=None, seen=()):
    """Whether code of the tests, or a test function that it names, has an assertion that looks at an answer."""
    if NOTE in code.co_names:
        return True
    named = [dict.get(scope, name) or getattr(owner, name, None) for name in code.co_names]
    parts = [part.__code__ for part in named if type(part) is type(note)] + list(code.co_consts)
    return any(type(part) is type(code) and part not in seen and has_notes(part, scope, owner, (*seen, code))
               for part in parts)


class reaching:
    """Records whether a test function that calls the program reaches an assertion."""

    def __init__(self, test, scope, owner=None):
        self.code, self.scope, self.owner = getattr(test, "__code__", None), scope, owner

    def __enter__(self):
        self.before = len(NOTED), port.answers

    def __exit__(self, *error):
        if len(NOTED) == self.before[0] and port.answers > self.before[1] and self.code is not None:
            port.unreached |= has_notes(self.code, self.scope, self.owner)
        return False


# The assertions of a test that looked at an answer.
NOTED = []
setattr(builtins, NOTE, note)
setattr(builtins, SAME, same)


def run(code, scope, reading, uses_data):
    """Runs a test. Returns None, or why it failed. Raises Undecided, Unreached, or an error of the test itself, which
    is not a failure of the program."""
    known = dict(scope)
    NOTED.clear()
    port.begins(uses_data)
    try:
        try:
            exec(code, scope)
        except SystemExit as error:
            if error.code or hasattr(error, "_from_program"):
                raise
        except Skipped:
            pass
        run_defined([name for name in scope if scope[name] is not known.get(name)], scope, reading)
    except Gone as error:
        return str(error)
    except BaseException as error:
        if port.broken is None and not hasattr(error, "_from_program"):
            if isinstance(error, (Broken, NameError, ImportError)):
                raise
            port.judge_own(error)
        port.judge_files(error)
        if port.broken is None:
            return words(error)
    if port.broken is not None:
        raise Broken(port.broken)
    if port.failed is None and not (NOTED and port.answers):
        if port.missing is not None:
            return "the program does not define " + port.missing
        asked = port.answers > port.answers_before
        raise Unreached if not NOTED and asked and has_notes(code, scope) else Undecided
    if port.failed is None and port.unreached:
        raise Unreached
    return port.failed


def run_defined(names, scope, reading):
    """Runs tests that are defined but not called: classes of `unittest`, functions and classes as pytest finds them,
    and a function `check` that takes the function under test."""
    for name in names:
        value = scope[name]
        if UNITTEST and isinstance(value, type) and issubclass(value, UNITTEST[0].TestCase):
            if value not in UNITTEST:
                UNITTEST[0].defaultTestLoader.loadTestsFromTestCase(value).run(UNITTEST[0].TestResult())
        elif isinstance(value, type) and name.startswith("Test"):
            run_class(value, scope)
        elif name.startswith("test") and type(value) is type(run) and name not in reading.called:
            run_test(value, scope)
        elif name == "check" and type(value) is type(run) and name not in reading.called and reading.entry_point:
            value(scope[reading.entry_point])


# The module `unittest`, if the tests import it, and the classes whose tests have been run.
UNITTEST = []


def watch_unittest(scope):
    """Makes a test fail when a unittest runner only reports a failure. Replaces `unittest.main`, since the classes are
    run afterwards."""
    import unittest

    UNITTEST.extend((unittest, unittest.TestCase))
    UNITTEST.extend(getattr(unittest, name) for name in ("FunctionTestCase", "IsolatedAsyncioTestCase"))

    class Program:
        result = unittest.TestResult()

        def runTests(self):
            pass

    unittest.main = lambda *args, **named_args: Program()
    run = unittest.TestCase.run

    def watched(self, result=None):
        UNITTEST.append(type(self))
        test = getattr(type(self), self._testMethodName, None)
        with reaching(test, scope, type(self)):
            return run(self, result)

    def failing(method):
        def noted(self, test, *rest):
            error = rest[-1]
            error = error[1] if isinstance(error, tuple) else error
            if error is not None and not isinstance(error, unittest.SkipTest):
                if isinstance(error, BaseException) and not hasattr(error, "_from_program"):
                    port.judge_own(error)
                port.judge_files(error)
                port.failed = port.failed or (words(error) if isinstance(error, BaseException) else "a failure")
            return method(self, test, *rest)
        return noted

    def expected(self, test, error, method=unittest.TestResult.addExpectedFailure):
        if hasattr(error[1], "_from_program"):
            port.failed = port.failed or words(error[1])
        return method(self, test, error)

    def unexpected(self, test, method=unittest.TestResult.addUnexpectedSuccess):
        port.failed = port.failed or "an unexpected success"
        return method(self, test)

    unittest.TestCase.run = watched
    for name in ("assertLogs", "assertNoLogs", "assertWarns", "assertWarnsRegex"):
        setattr(unittest.TestCase, name, refusing("it uses " + name))
    for name in ("addFailure", "addError", "addSubTest"):
        setattr(unittest.TestResult, name, failing(getattr(unittest.TestResult, name)))
    unittest.TestResult.addExpectedFailure, unittest.TestResult.addUnexpectedSuccess = expected, unexpected


def watch_threads():
    """Makes a test fail when an assertion fails, or the program raises an exception, in a thread of the tests."""
    import threading

    def noted(args):
        error = args.exc_value
        if isinstance(error, AssertionError) or hasattr(error, "_from_program"):
            port.failed = port.failed or words(error)

    threading.excepthook = noted


def tell(**result):
    os.write(verdict, (given["nonce"] + " " + json.dumps(result) + "\n").encode())


# This script as a module, which the interpreter must not drop.
KEPT = []


def prepare(scope):
    """Lets the tests import and patch the program as the modules `solution` and `__main__`."""
    import types

    class Solution(types.ModuleType):
        def __setattr__(self, name, value):
            before.setdefault(name, scope.of_program(name))
            port.ask("setname", name, value)

        def __delattr__(self, name):
            # unittest.mock deletes what it patched, and the original appears again.
            port.ask("setname", name, before.pop(name))

        def __getattr__(self, name):
            if name == "__all__":
                return [name for name in port.ask("names") if not name.startswith("_")]
            if name.startswith("__"):
                raise AttributeError(name)
            return scope.of_program(name)

    before = {}
    KEPT.append(sys.modules["__main__"])
    sys.modules["solution"] = sys.modules["__main__"] = Solution("solution")


def judge(job):
    entry_point, tests = job["entry_point"], job["tests"]
    reading = Reading(tests, entry_point if job["check"] else None)
    reading.entry_point = entry_point
    port.classes, port.guards, port.named = reading.classes, reading.guards, reading.loaded | reading.attributes
    remote = {entry_point} if job["check"] else reading.under_test(entry_point)
    scope = Scope(remote, not job["check"])
    nodes = constants(job["constants"]) + own_nodes(
        job["prompt"] if job["check"] else job["setup"], entry_point, job["check"])
    deciding = Deciding(reading.trees + nodes, reading.of_program(remote, nodes), reading.outside(),
                        any(name.partition(".")[0] == "numpy" for name in reading.modules))
    for node in nodes:
        deciding.instrument(node)
    uses_data = list(map(deciding.uses_data, reading.trees))
    codes = [compile(deciding.instrument(tree), file_of(i), "exec") for i, tree in enumerate(reading.trees)]
    try:
        port.starts()
    except MALFORMED as error:
        raise Gone("an invalid answer") from error
    if nodes:
        scope.own = defined(nodes)
        classes = [node.name for node in nodes if isinstance(node, _ast.ClassDef)]
        share_classes([name for name in classes if dict.__contains__(scope.own, name)], scope.own, nodes)
    prepare(scope)
    if any(name.startswith("unittest") for name in reading.modules):
        watch_unittest(scope)
    if "pytest" in reading.modules:
        like_pytest()
    if "seed" in reading.attributes or "seed" in reading.loaded:
        port.random, port.follows = (), not deciding.draws_questions(reading.trees)
    if any(name in ("threading", "concurrent.futures") for name in reading.modules):
        watch_threads()
    watch_surroundings(reading)
    if "setrecursionlimit" in reading.attributes:
        sys.setrecursionlimit = lambda limit: port.ask("recursion", limit)
    if job["check"]:
        for code in codes:
            exec(code, scope)
        dict.__setitem__(scope, "candidate", scope[entry_point])
        codes = [compile("check(candidate)", "test", "exec")]
        uses_data = [False]
    decided = False
    for code, uses in zip(codes, uses_data):
        try:
            failure = run(code, scope, reading, uses)
        except Undecided:
            tell(undecided=None)
            continue
        except Unreached:
            tell(unreached=None)
            decided = True
            continue
        decided = True
        tell(failure=failure)
        if failure is not None and not job["all"]:
            break
    if not decided:
        raise Broken("no assertion looks at an answer of the program, so every program would pass")


sys.stdin, sys.stdout, sys.stderr = (open(os.devnull, mode) for mode in ("r", "w", "w"))
DEFAULTS = {"stdout": sys.stdout, "stderr": sys.stderr}
with open(os.path.join(os.path.dirname(__file__), "tests.json"), encoding="utf-8") as file:
    given = json.load(file)
port = Judge(replies, calls)
# Modules that are not Python's own, such as numpy.
sys.path += __import__("site").getsitepackages()
try:
    judge(given)
except Gone as error:
    tell(failure=str(error))
except BaseException as error:
    tell(broken=words(error))
os._exit(0)
