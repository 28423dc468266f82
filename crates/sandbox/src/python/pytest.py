# Replaces pytest, which the sandbox does not have: fixtures, parameters, marks, raises, approx, and how pytest finds
# and runs tests.


class Skipped(BaseException):
    """A test that skips itself."""


def fail(reason="", *rest, **more):
    raise AssertionError(reason)


def skip(reason="", *rest, **more):
    raise Skipped(reason)


def importorskip(name, *rest, **more):
    try:
        return __import__(name, fromlist=["*"])
    except ImportError:
        raise Skipped(name) from None


def unsupported(name):
    raise Broken("it uses pytest." + name + ", which cannot be run here: write it with fixtures and parameters")


def like_pytest():
    pytest = sys.modules["pytest"] = type(sys)("pytest")
    skip.Exception, fail.Exception = Skipped, AssertionError
    known = (raises, fail, skip, importorskip, param, fixture, approx, warns, deprecated_call)
    vars(pytest).update({one.__name__: one for one in known}, mark=Mark(), main=lambda *args, **more: 0)
    vars(pytest).update(FixtureRequest=object, MonkeyPatch=object, CaptureFixture=object, __getattr__=unsupported)


class raises:
    def __init__(self, kinds, *call, match=None, **named_args):
        self.kinds, self.pattern, self.match = kinds, match, self.matches
        self.value = self.type = None
        if call:
            with self:
                call[0](*call[1:], **named_args)

    def __enter__(self):
        return self

    def __exit__(self, kind, error, trace):
        if kind is None:
            fail("no exception was raised")
        if not issubclass(kind, self.kinds):
            return False
        self.type, self.value, self.tb = kind, error, trace
        if self.pattern is not None:
            self.matches(self.pattern)
        return True

    def matches(self, pattern):
        import re

        if not re.search(pattern, str(self.value)):
            fail("the exception has another message")
        return True

    @property
    def typename(self):
        return self.type.__name__


class Approx:
    def __init__(self, expected, rel=None, abs=None, nan_ok=False):
        self.expected, self.rel, self.abs, self.nan_ok = expected, rel, abs, nan_ok

    def near(self, given, right):
        if isinstance(right, dict):
            return isinstance(given, dict) and given.keys() == right.keys() and all(
                self.near(given[key], right[key]) for key in right)
        if isinstance(right, (list, tuple)):
            return type(given) is type(right) and len(given) == len(right) and all(map(self.near, given, right))
        number = isinstance(given, (int, float, complex)) or hasattr(given, "as_integer_ratio")
        if isinstance(given, bool) or not number:
            return False
        if given == right:
            return True
        if given != given or right != right:
            return self.nan_ok and given != given and right != right
        least = 1e-12 if self.abs is None else self.abs
        rel = self.rel if self.rel is not None else 0 if self.abs is not None else 1e-6
        return abs(given - right) <= max(least, rel * abs(right)) and abs(given) != float("inf")

    def __eq__(self, given):
        plain = [value.tolist() if hasattr(value, "tolist") else value for value in (given, self.expected)]
        return self.near(*plain)

    def __ne__(self, given):
        return not self == given

    __hash__ = None


def approx(expected, rel=None, abs=None, nan_ok=False):
    return Approx(expected, rel, abs, nan_ok)


class warns:
    def __init__(self, kinds=Warning, *call, match=None, **named_args):
        self.kinds, self.pattern = kinds, match
        if call:
            with self:
                call[0](*call[1:], **named_args)

    def __enter__(self):
        raise Broken("it expects warnings from the program, which do not leave its sandbox")

    def __exit__(self, *error):
        return False


def deprecated_call(*args, **more):
    return warns()


class Case(tuple):
    """The values of one case of a parametrized test, and its marks."""

    def __new__(cls, values, marks=()):
        made = super().__new__(cls, values)
        made.marks = list(marks) if isinstance(marks, (list, tuple)) else [marks]
        return made


def param(*values, marks=(), id=None):
    return Case(values, marks)


def fixture(function=None, *, scope="function", params=None, autouse=False, name=None, ids=None):
    def decorate(function):
        function._fixture = {"scope": scope, "params": params, "autouse": autouse}
        function._fixture["name"] = name or function.__name__
        return function

    return decorate if function is None else decorate(function)


class Marked:
    """A mark: a decorator that remembers its name and arguments."""

    def __init__(self, name, args=(), named_args=None):
        self.name, self.args, self.kwargs = name, args, named_args or {}

    def __call__(self, *args, **named_args):
        if len(args) == 1 and not named_args and (isinstance(args[0], type) or type(args[0]) is type(fail)):
            args[0]._marks = [self] + list(getattr(args[0], "_marks", ()))
            return args[0]
        return Marked(self.name, self.args + args, {**self.kwargs, **named_args})


class Mark:
    def __getattr__(self, name):
        return Marked(name)


def marks_of(*holders):
    marks = []
    for holder in holders:
        found = getattr(holder, "_marks", ())
        marks += found if isinstance(found, (list, tuple)) else [found]
    return marks


def is_skipped(marks):
    """Whether a test is not run, or may fail."""
    for mark in marks:
        if mark.name == "skipif":
            condition = (mark.args or (mark.kwargs.get("condition", True),))[0]
            if condition if not isinstance(condition, str) else eval(condition, {"sys": sys, "os": os}):
                return True
        if mark.name in ("skip", "xfail") and (mark.name == "skip" or not mark.args or mark.args[0]):
            return True
    return False


def parameters(marks):
    """All cases of a parametrized test: the values of its parameters, and the marks of the case."""
    cases = [({}, [])]
    for mark in marks:
        if mark.name != "parametrize":
            continue
        names, values = (tuple(mark.args) + (mark.kwargs.get("argvalues"),))[:2] if mark.args else (
            mark.kwargs["argnames"], mark.kwargs["argvalues"])
        single = isinstance(names, str) and "," not in names
        names = [name.strip() for name in names.split(",")] if isinstance(names, str) else list(names)
        of_fixtures = mark.kwargs.get("indirect")
        if of_fixtures:
            raise Broken("it uses indirect parameters, which are not supported")
        made = []
        for value in values:
            case = value if isinstance(value, Case) or not single else Case((value,))
            if len(case) != len(names):
                raise Broken("a case has " + str(len(case)) + " values for " + ", ".join(names))
            for known, more in cases:
                made.append(({**known, **dict(zip(names, case))}, more + getattr(case, "marks", [])))
        cases = made
    return cases


def wanted(function, bound=0):
    """The names of the parameters without a default."""
    function = getattr(function, "__wrapped__", function) if not hasattr(function, "patchings") else None
    code = getattr(function, "__code__", None)
    if code is None:
        return []
    count = code.co_argcount - len(function.__defaults__ or ())
    only = code.co_varnames[code.co_argcount:code.co_argcount + code.co_kwonlyargcount]
    defaults = function.__kwdefaults__ or {}
    return list(code.co_varnames[bound:count]) + [name for name in only if name not in defaults]


class Request:
    """The fixture `request`."""

    def __init__(self, fixtures, owner, test):
        self.fixtures, self.instance, self.function = fixtures, owner, test
        self.cls, self.param = type(owner) if owner is not None else None, None

    def getfixturevalue(self, name):
        return self.fixtures.value(name)

    def addfinalizer(self, function):
        self.fixtures.ends.append(function)


class Captured(tuple):
    out, err = property(lambda self: self[0]), property(lambda self: self[1])


class Capture:
    """The fixture `capsys`."""

    def __init__(self):
        self.kept, self.streams = (sys.stdout, sys.stderr), None
        self.readouterr()

    def readouterr(self):
        import io

        texts = [stream.getvalue() for stream in self.streams] if self.streams else ["", ""]
        self.streams = sys.stdout, sys.stderr = io.StringIO(), io.StringIO()
        return Captured(texts)

    def disabled(self):
        import contextlib

        return contextlib.nullcontext()


class Patches:
    """The fixture `monkeypatch`, for attributes of the tests and of the program's objects."""

    def __init__(self):
        self.undone = []

    def setattr(self, target, name, *value, raising=True):
        if isinstance(target, str):
            module, _, attribute = target.rpartition(".")
            target, value, name = named(module) if "." in module else __import__(module), (name,), attribute
        before = getattr(target, name)
        self.undone.append(lambda: setattr(target, name, before))
        setattr(target, name, value[0])
        if type(target) is type(sys) and (target.__name__, name) != ("builtins", "input"):
            port.ask("patch", target.__name__, name, value[0])
            self.undone.append(lambda: port.ask("unpatch"))

    def setitem(self, target, key, value):
        before = dict(target)
        self.undone.append(lambda: (target.clear(), target.update(before)))
        target[key] = value

    def undo(self):
        while self.undone:
            self.undone.pop()()

    def setenv(self, name, value, prepend=None):
        before = dict(os.environ)
        self.undone.append(lambda: (os.environ.clear(), os.environ.update(before)))
        os.environ[name] = str(value)

    def delenv(self, name, raising=True):
        before = dict(os.environ)
        self.undone.append(lambda: (os.environ.clear(), os.environ.update(before)))
        os.environ.pop(name, None)

    def __getattr__(self, name):
        raise Broken("it uses monkeypatch." + name + ", which the program does not see")


class Fixtures:
    """The fixtures of one test: their values, and the code that runs after it."""

    def __init__(self, scope, owner, test, params):
        self.scope, self.owner, self.test, self.params = scope, owner, test, params
        self.values, self.ends, self.loop = {}, [], None

    def known(self):
        places = [vars(kind) for kind in type(self.owner).__mro__[::-1]] if self.owner is not None else []
        found = {}
        for place in [self.scope] + places:
            for value in list(place.values()):
                if type(value) is type(fail) and hasattr(value, "_fixture"):
                    found[value._fixture["name"]] = value
        return found

    def closure(self, names):
        """All fixtures that a test needs, in order."""
        known, found = self.known(), []

        def visit(name):
            if name in known and known[name] not in found:
                for one in wanted(known[name]):
                    visit(one)
                found.append(known[name])

        for name in [name for name, value in known.items() if value._fixture["autouse"]] + list(names):
            visit(name)
        return found

    def wait(self, awaitable):
        import asyncio

        if self.loop is None:
            self.loop = asyncio.new_event_loop()
            asyncio.set_event_loop(self.loop)
        return self.loop.run_until_complete(awaitable)

    def value(self, name):
        if name in self.values:
            return self.values[name]
        known = self.known()
        if name == "request":
            made = Request(self, self.owner, self.test)
        elif name in known:
            made = self.made(known[name])
        elif name in ("capsys", "capfd"):
            made = Capture()
            self.ends.append(lambda: setattr(sys, "stdout", made.kept[0]) or setattr(sys, "stderr", made.kept[1]))
        elif name == "monkeypatch":
            made = Patches()
            self.ends.append(made.undo)
        elif name == "event_loop":
            self.wait(nothing_to_wait_for())
            made = self.loop
        else:
            raise Broken("it needs the fixture `" + name + "`, which the row does not define")
        self.values[name] = made
        return made

    def made(self, function):
        given = {}
        for name in wanted(function):
            if name == "request":
                given[name] = Request(self, self.owner, self.test)
                given[name].param = self.params.get(function._fixture["name"])
            elif name != "self":
                given[name] = self.value(name)
        if "self" in wanted(function):
            given["self"] = self.owner
        made = function(**given)
        kind = type(made).__name__
        if kind == "coroutine":
            return self.wait(made)
        if kind == "async_generator":
            self.ends.append(lambda: self.wait(after(made)))
            return self.wait(made.__anext__())
        if kind == "generator" and function.__code__.co_flags & 0x20:  # inspect.CO_GENERATOR
            self.ends.append(lambda: next(made, None))
            return next(made)
        return made

    def finish(self):
        while self.ends:
            self.ends.pop()()
        if self.loop is not None:
            self.loop.close()


async def after(generator):
    async for _ in generator:
        break


async def nothing_to_wait_for():
    pass


def run_test(test, scope, owner=None):
    """Runs a function as pytest does, with each of its cases."""
    marks = marks_of(test, owner) + marks_of(type("Own", (), {"_marks": scope.get("pytestmark", ())}))
    if not is_skipped(marks):
        with reaching(test, scope, type(owner)):
            run_cases(test, scope, owner, marks)


def run_cases(test, scope, owner, marks):
    for given, more in parameters(marks):
        if is_skipped(more):
            continue
        names = [name for name in wanted(test) if name not in given and name != "self"]
        used = [name for mark in marks if mark.name == "usefixtures" for name in mark.args]
        closure = Fixtures(scope, owner, test, {}).closure(names + used)
        choices = [{}]
        for one in closure:
            if one._fixture["params"] is not None:
                choices = [{**choice, one._fixture["name"]: value[0] if isinstance(value, Case) else value}
                           for choice in choices for value in one._fixture["params"]]
        for choice in choices:
            needed = [one._fixture["name"] for one in closure]
            run_case(test, given, names, needed, Fixtures(scope, owner, test, choice))


def run_case(test, given, names, needed, fixtures):
    scope, owner = fixtures.scope, fixtures.owner
    try:
        if owner is None and "setup_function" in scope:
            scope["setup_function"](*[test][:len(wanted(scope["setup_function"]))])
        if owner is not None and hasattr(owner, "setup_method"):
            owner.setup_method(*[test][:len(wanted(type(owner).setup_method, 1))])
        for name in needed:
            fixtures.value(name)
        values = {name: fixtures.value(name) for name in names}
        result = test(*([] if owner is None else [owner]), **given, **values)
        if type(result).__name__ == "coroutine" and type(result).__module__ == "builtins":
            fixtures.wait(result)
        if owner is not None and hasattr(owner, "teardown_method"):
            owner.teardown_method(*[test][:len(wanted(type(owner).teardown_method, 1))])
        if owner is None and "teardown_function" in scope:
            scope["teardown_function"](*[test][:len(wanted(scope["teardown_function"]))])
    except Skipped:
        pass
    finally:
        fixtures.finish()


def run_class(kind, scope):
    """Runs the methods `test…` of a class as pytest does."""
    if "__init__" in vars(kind) or is_skipped(marks_of(kind)):
        return
    setup = getattr(kind, "setup_class", None)
    if setup is not None:
        setup()
    for name in dir(kind):
        value = getattr(kind, name)
        if name.startswith("test") and callable(value):
            run_test(value, scope, kind())
        elif isinstance(value, type) and name.startswith("Test"):
            run_class(value, scope)
    if hasattr(kind, "teardown_class"):
        kind.teardown_class()
