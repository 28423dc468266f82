# The namespace of the tests, and how tests run: one after the other, each in the namespace that the last one left.


class Scope(dict):
    """The namespace of the tests. A name that they do not define is a module of the standard library, or belongs to the
    program."""

    def __init__(self, remote, asserted):
        super().__init__(__name__="tests")
        # remote: names that are the program's even if a built-in function has the same name. own: what the row's own
        # code defines for the tests.
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


def own_definitions(source, entry_point):
    """Returns the imports, functions and constants that the row's own code (prompt or setup) defines. The tests have
    them for themselves, since the program may have patched them in its interpreter. Classes remain the program's, since
    its objects are instances of them."""
    import ast

    try:
        body = ast.parse(source).body
    except (SyntaxError, ValueError):
        return {}
    constant = (ast.Constant, ast.List, ast.Tuple, ast.Dict, ast.Set, ast.UnaryOp, ast.BinOp, ast.operator, ast.unaryop)
    constant += (ast.expr_context,)
    found = Scope(set(), False)
    for node in body:
        if isinstance(node, ast.Assign):
            if not all(isinstance(part, constant) for part in ast.walk(node.value)):
                continue
        elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            if node.name == entry_point:
                continue
        elif not isinstance(node, (ast.Import, ast.ImportFrom)):
            continue
        try:
            exec(compile(ast.Module([node], []), "tests", "exec"), found)
        except Exception:
            continue
    return found


def run(code, scope, reading):
    """Runs a test. Returns None, or why it failed. Raises an error of the test itself, which is no failure of the
    program."""
    known = set(scope)
    try:
        exec(code, scope)
        run_defined(set(scope) - known, scope, reading)
    except Gone as error:
        return str(error)
    except BaseException as error:
        if port.broken is None and not hasattr(error, "_from_program"):
            if isinstance(error, (Broken, NameError, ImportError)):
                raise
        if port.broken is None:
            return words(error)
    if port.broken is not None:
        raise Broken(port.broken)
    return port.failed


def run_defined(names, scope, reading):
    """Runs tests that are defined but not called: classes of `unittest`, and functions whose name begins with
    `test`."""
    for name in sorted(names, key=list(scope).index):
        value = scope[name]
        if isinstance(value, type) and UNITTEST:
            if issubclass(value, UNITTEST[0].TestCase) and value not in UNITTEST:
                UNITTEST[0].defaultTestLoader.loadTestsFromTestCase(value).run(UNITTEST[0].TestResult())
        elif name.startswith("test") and type(value) is type(run) and name not in reading.called:
            code = value.__code__
            wanted = code.co_varnames[:code.co_argcount - len(value.__defaults__ or ())]
            if wanted:
                port.break_off(name + " wants fixtures: " + ", ".join(wanted))
            result = value()
            if type(result).__name__ == "coroutine":
                import asyncio

                asyncio.run(result)


# The module `unittest`, if the tests import it, and the classes whose tests have been run.
UNITTEST = []


def watch_unittest():
    """Makes a test fail when a unittest runner only reports a failure. Disables `unittest.main`, since there is no
    `__main__` with tests."""
    import unittest

    UNITTEST.append(unittest)
    unittest.main = lambda *args, **named_args: None
    run = unittest.TestCase.run

    def watched(self, result=None):
        UNITTEST.append(type(self))
        return run(self, result)

    def failing(method):
        def noted(self, test, *rest):
            error = rest[-1]
            if error is not None and not (isinstance(error, tuple) and isinstance(error[1], UNITTEST[0].SkipTest)):
                port.failed = port.failed or (words(error[1]) if isinstance(error, tuple) else "a failure")
            return method(self, test, *rest)
        return noted

    unittest.TestCase.run = watched
    for name in ("addFailure", "addError", "addSubTest"):
        setattr(unittest.TestResult, name, failing(getattr(unittest.TestResult, name)))


def tell(**result):
    os.write(verdict, (given["nonce"] + " " + json.dumps(result) + "\n").encode())


def prepare(scope, reading):
    """Lets the tests import the program as the module `solution`."""
    import types

    class Solution(types.ModuleType):
        def __setattr__(self, name, value):
            port.ask("setname", name, value)

        def __getattr__(self, name):
            if name == "__all__":
                return [name for name in port.ask("names") if not name.startswith("_")]
            if name.startswith("__"):
                raise AttributeError(name)
            return scope.of_program(name)

    sys.modules["solution"] = Solution("solution")


def judge(job):
    entry_point, tests = job["entry_point"], job["tests"]
    reading = Reading(tests, entry_point if job["check"] else None)
    port.classes, port.guards = reading.classes, reading.guards
    port.names_stop = "StopIteration" in reading.loaded or "StopAsyncIteration" in reading.loaded
    if job["check"]:
        scope = Scope({entry_point}, False)
    else:
        codes = [compile(test, file_of(i), "exec") for i, test in enumerate(tests)]
        scope = Scope(reading.under_test(entry_point), True)
    try:
        port.starts()
    except MALFORMED as error:
        raise Gone("an answer to no call") from error
    source = job["prompt"] if job["check"] else job["setup"]
    if source.strip():
        scope.own = own_definitions(source, entry_point)
    if "solution" in reading.modules:
        prepare(scope, reading)
    if any(name.startswith("unittest") for name in reading.modules):
        watch_unittest()
    if "pytest" in reading.modules:
        like_pytest()
    if "seed" in reading.attributes or "seed" in reading.loaded:
        port.random = ()
    if "setrecursionlimit" in reading.attributes:
        sys.setrecursionlimit = lambda limit: port.ask("recursion", limit)
    if job["check"]:
        for i, test in enumerate(tests):
            exec(compile(test, file_of(i), "exec"), scope)
        dict.__setitem__(scope, "candidate", scope[entry_point])
        codes = [compile("check(candidate)", "test", "exec")]
    for code in codes:
        failure = run(code, scope, reading)
        tell(failure=failure)
        if failure is not None and not job["all"]:
            break


sys.stdin, sys.stdout, sys.stderr = (open(os.devnull, mode) for mode in ("r", "w", "w"))
DEFAULTS = {"stdout": sys.stdout, "stderr": sys.stderr}
with open(os.path.join(os.path.dirname(__file__), "tests.json"), encoding="utf-8") as file:
    given = json.load(file)
port = Judge(replies, calls)
try:
    judge(given)
except Gone as error:
    tell(failure=str(error))
except BaseException as error:
    tell(broken=words(error))
os._exit(0)
