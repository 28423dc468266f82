# Runs the tests of a row. The program is in another sandbox, behind a pipe: here its functions are calls whose answers
# are plain values, so no code of the program runs where tests are decided, and no file or descriptor of it is here.
import builtins
import os
import sys

replies, calls = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
verdict = os.dup(2)
null = os.open(os.devnull, os.O_RDWR)
for descriptor in range(3):
    os.dup2(null, descriptor)
LONGEST = 1 << 24
ONLY_AST = 0x400  # ast.PyCF_ONLY_AST


class Gone(BaseException):
    """The program answers no more."""


class Broken(Exception):
    """The test asks for what cannot be done here."""


class Raised(Exception):
    """An exception of the program that is no built-in one."""


def receive(asked):
    line = replies.readline(LONGEST)
    if not line.endswith(b"\n"):
        raise Gone("the program ended" if len(line) < LONGEST else "too long an answer")
    try:
        reply = json.loads(line)
        if reply["id"] != asked:
            raise ValueError
        if "error" not in reply:
            return decode(reply.get("value"), lambda place: Remote(int(place[0])))
        name, text = map(str, reply["error"])
    except (ValueError, KeyError, TypeError, AttributeError, IndexError, RecursionError, OverflowError):
        raise Gone("an answer to no call") from None
    kind = getattr(builtins, name, None)
    # One that ends iteration would end the test's own: `all(map(f, cases))` of nothing is true.
    other = (UnicodeError, StopIteration, StopAsyncIteration)
    known = isinstance(kind, type) and issubclass(kind, Exception) and not issubclass(kind, other)
    error = kind(text) if known else Raised(name + ": " + text)
    error.from_program = True
    raise error


def ask(target, what, **more):
    # Asked by a number that nobody knows before.
    call = {"id": os.urandom(16).hex(), "ask": what, "target": target, **more}
    try:
        calls.write(json.dumps(call).encode() + b"\n")
        calls.flush()
    except OSError:
        raise Gone("the program ended") from None
    return receive(call["id"])


class Remote:
    """What the program has: called, looked into and iterated there, and equal to itself alone."""

    def __init__(self, place):
        object.__setattr__(self, "place", place)

    def __call__(self, *args, **kwargs):
        args, kwargs = encode(list(args), place_of), encode(kwargs, place_of)
        return ask(self.place, "call", args=args, kwargs=kwargs)

    def __getattr__(self, name):
        return ask(self.place, "attribute", name=name)

    def __iter__(self):
        return iter(ask(self.place, "items"))

    def __bool__(self):
        raise TypeError("the program's answer is no value")


def place_of(value):
    if isinstance(value, Remote):
        return value.place
    name = getattr(value, "__name__", "")
    if getattr(builtins, name, None) is not value:
        raise Broken("it gives the program a " + type(value).__name__)
    return name


class Scope(dict):
    """The tests' names; what they do not define is a module of the standard library, or the program's."""

    def __init__(self, remote, others):
        super().__init__(__name__="tests")
        self.remote, self.others = remote, others

    def __missing__(self, name):
        if name in self.remote or self.others and not hasattr(builtins, name):
            if name not in self.remote and name in sys.stdlib_module_names:
                return __import__(name)
            return Remote(name)
        raise KeyError(name)


def names_of(node, called, loaded, bound):
    """Adds the names that a tree calls, reads and binds (the module `ast` would take longer to import than a test to
    run)."""
    kind = type(node).__name__
    if kind == "Call" and type(node.func).__name__ == "Name":
        called.add(node.func.id)
    if kind == "Name":
        (loaded if type(node.ctx).__name__ == "Load" else bound).add(node.id)
    if kind in ("arg", "FunctionDef", "ClassDef", "ExceptHandler"):
        bound.add(node.arg if kind == "arg" else node.name)
    for field in getattr(node, "_fields", ()):
        children = getattr(node, field, None)
        for child in children if isinstance(children, list) else [children]:
            names_of(child, called, loaded, bound)


def under_test(tests):
    """The names that tests call and that are no built-in function's. A built-in one's only where nothing else is left
    that could be meant: a program may define `sum`."""
    called, loaded, bound = set(), set(), set()
    for test in tests:
        names_of(compile(test, "test", "exec", ONLY_AST), called, loaded, bound)
    own = {name for name in called if not hasattr(builtins, name)}
    known = bound | sys.stdlib_module_names
    return own if own or any(name not in known and not hasattr(builtins, name) for name in loaded) else called


def definitions(source, entry_point):
    """What a prompt's code defines beside the function that is asked for: tests may use it."""
    import ast

    nodes = (ast.Import, ast.ImportFrom, ast.FunctionDef, ast.ClassDef, ast.Assign)
    try:
        body = [node for node in ast.parse(source).body if isinstance(node, nodes)]
    except (SyntaxError, ValueError):
        body = []
    body = [node for node in body if getattr(node, "name", None) != entry_point]
    return compile(ast.Module(body, []), "prompt", "exec")


def imported(source):
    """The modules and functions of the standard library that a row's own code imports: those of the program's
    interpreter may be patched. Its classes stay there, since their objects are made for the program."""
    try:
        tree = compile(source, "setup", "exec", ONLY_AST)
    except (SyntaxError, ValueError):
        return {}
    tree.body = [node for node in tree.body if type(node).__name__ in ("Import", "ImportFrom")]
    found = {}
    for node in list(tree.body):
        modules = [node.module or ""] if type(node).__name__ == "ImportFrom" else [name.name for name in node.names]
        tree.body = [node]
        if all(module.partition(".")[0] in sys.stdlib_module_names for module in modules):
            try:
                exec(compile(tree, "setup", "exec"), found)
            except ImportError:
                continue
    found.pop("__builtins__", None)
    return {name: value for name, value in found.items() if not isinstance(value, type)}


def run(code, scope):
    """None, or why the test failed; an error of the test itself is no failure of the program."""
    try:
        exec(code, scope)
    except Gone as error:
        return str(error)
    except BaseException as error:
        if isinstance(error, (Broken, NameError, ImportError)) and not hasattr(error, "from_program"):
            raise
        return (type(error).__name__ + ": " + str(error)[:300]).removesuffix(": ")
    return None


def tell(**result):
    os.write(verdict, (given["nonce"] + " " + json.dumps(result) + "\n").encode())


def judge(job):
    entry_point, tests = job["entry_point"], job["tests"]
    if entry_point is None:
        codes = [compile(test, "test", "exec") for test in tests]
        scope = Scope(under_test(tests), True)
        scope.update(imported(job["setup"]))
    else:
        scope = Scope({entry_point}, False)
        exec(definitions(job["prompt"], entry_point), scope)
        for test in tests:
            exec(compile(test, "test", "exec"), scope)
        scope["candidate"] = Remote(entry_point)
        codes = [compile("check(candidate)", "test", "exec")]
    try:
        receive("start")
    except Exception as error:
        raise Gone(type(error).__name__ + ": " + str(error)) from None
    for code in codes:
        failure = run(code, scope)
        tell(failure=failure)
        if failure is not None and not job["all"]:
            break


with open(os.path.join(os.path.dirname(__file__), "tests.json"), encoding="utf-8") as file:
    given = json.load(file)
try:
    judge(given)
except Gone as error:
    tell(failure=str(error))
except BaseException as error:
    tell(broken=type(error).__name__ + ": " + str(error)[:300])
os._exit(0)
