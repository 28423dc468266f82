# Runs the tests of one row of the dataset. The program runs in another sandbox, behind two pipes, and the tests get
# values and mirrors of its objects (mirrors.py). So no code of the program runs where tests are decided, and no file or
# descriptor of the program is here. This interpreter compares answers with expected values; it never sends an expected
# value to the program.

replies, calls = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
verdict = os.dup(2)
null = os.open(os.devnull, os.O_RDWR)
for descriptor in range(3):
    os.dup2(null, descriptor)
# Methods of built-in types whose result is a comparison or a test of membership.
PREDICATES = {"startswith", "endswith", "issubset", "issuperset", "isdisjoint"}
# Requests whose answers show results of the program.
ANSWERING = {"special", "getattr", "isinstance", "issubclass", "copy", "deepcopy", "dir"}
# Attributes and methods of numbers, time differences and sequences.
NUMERIC = {"real", "imag", "numerator", "denominator", "is_integer", "conjugate", "days", "seconds", "microseconds"}
NUMERIC |= {"total_seconds", "is_zero", "count", "index"} | PREDICATES
# The maximum number of 32-bit random numbers that a program may draw in one call. The tests' generator then skips them.
MOST_DRAWN = 1 << 22
# The origin of a mirror. MADE: the tests called a class of the program. MIXED: an operator combined an object of the
# program with a plain value, which may have been the expected value.
MADE, MIXED = "made", "mixed"


# The surroundings of the program that tests may change.
SURROUNDINGS = {
    "environ": lambda: dict(os.environ),
    "decimal": lambda: [named("decimal.getcontext")().prec, named("decimal.getcontext")().rounding],
}


class Refused(TypeError):
    """An object of the program would decide how it compares with a plain value."""


class Raised(Exception):
    """Replaces an exception of the program that ends an iteration or a task of the tests without failing them."""


class RaisedBase(BaseException):
    """As `Raised`, for exceptions such as SystemExit, which `except Exception` does not catch."""


# Exceptions that test runners do not treat as failures.
ENDING = {"StopIteration", "StopAsyncIteration"}
CONTROL = ENDING | {"GeneratorExit", "SystemExit", "KeyboardInterrupt", "CancelledError"}
STANDARD_ERRORS = {"builtins", "asyncio.exceptions", "concurrent.futures._base"}
# Modules whose exceptions a program cannot raise: a test that raises them is skipped.
RUNNERS = {"unittest", "pytest", "_pytest", "tests"}


def is_mirror(value):
    return type(type(value)) is Mirror


class Judge(Port):
    """The judge's end of the pipes. It decides what the program may ask for."""

    def __init__(self, *streams):
        super().__init__(*streams, first=0)
        self.lock = __import__("_thread").RLock()
        # Functions of the tests that the program may call, and objects that it may read attributes of, by id().
        self.callable, self.open, self.iterators, self.opaque = set(), {}, {}, False
        self.classes, self.named, self.guards, self.random = set(), set(), [], None
        # Whether the tests' random numbers continue after those that the program draws.
        self.follows = True
        self.broken = self.failed = None
        # The surroundings as they were last sent to the program.
        self.watched = {}
        self.uses_files = self.uses_data = False
        # The number of requests to the program, and the number of answers other than a function of the program.
        self.asked = self.answers = 0
        self.weak = False
        # A name that the program does not define, and whether a test function reached none of its assertions.
        self.missing, self.unreached = None, False

    def begins(self, uses_data):
        """Records that a test begins, and whether it reads values that an earlier test may have from the program."""
        self.uses_data, self.asked_before, self.answers_before = uses_data, self.asked, self.answers
        self.missing, self.unreached = None, False

    def judge_own(self, error):
        """Decides whether an error in a test's own code is unrelated to the program, because it occurred before the
        program was used."""
        before = self.asked == self.asked_before
        # An argument of the first call may fail (`f(1 / 0)`). The program's `f` may not be a function.
        if not isinstance(error, (AssertionError, TypeError)):
            before = self.answers == self.answers_before
        if before and not self.uses_data and not isinstance(error, Refused) and self.failed is None:
            self.broken = self.broken or "it fails by itself, with any program: " + words(error)

    def judge_files(self, error):
        """Where programs cannot write, a test that looks for their files decides nothing."""
        if self.uses_files and isinstance(error, PermissionError):
            self.broken = self.broken or "it uses files, but the program runs with files of its own"

    # Encoding of the values that the tests pass to the program.

    def break_off(self, why):
        self.broken = self.broken or why
        raise Broken(why)

    def other(self, kind):
        return self.give

    def give(self, value):
        kind = type(value)
        if id(value) in self.coroutines:
            return ["yours", self.coroutines[id(value)][0]]
        name = getattr(value, "__name__", None)
        if kind.__name__ == "module":
            return ["stdlib", name, ""]
        if callable(value) and kind.__module__ != "tests":
            owner = getattr(value, "__objclass__", None)
            module = getattr(value, "__module__", None) or getattr(owner, "__module__", "")
            path = getattr(value, "__qualname__", "?")
            if module != "tests" and "<" not in path and found(module, path) is value:
                return ["stdlib", module, path]
            self.callable.add(id(value))
            code = getattr(value, "__code__", None)
            opaque = kind.__module__.startswith("unittest.mock")
            self.opaque |= opaque
            doc = getattr(value, "__doc__", None) if code is not None else None
            is_async = code is not None and bool(code.co_flags & 0x80)  # inspect.CO_COROUTINE
            return ["function", self.keep(value), name if isinstance(name, str) else "function", doc, is_async, opaque]
        if kind.__module__ in ("builtins", "itertools") and hasattr(kind, "__next__") and kind.__name__ != "generator":
            # The program gets any iterator as a generator.
            if id(value) not in self.iterators:
                self.iterators[id(value)] = (value, (item for item in value))
            value = self.iterators[id(value)][1]
            kind = type(value)
        if kind.__module__ == "tests" or kind.__name__ == "generator":
            self.open[id(value)] = kind
            return ["mine", self.keep(value), self.own_class(kind)]
        self.break_off("it passes the program a " + kind.__name__)

    def describe(self, kind, place):
        for base in kind.__mro__:
            if base.__module__ != "tests" and base is not object and not issubclass(base, BaseException):
                if kind.__name__ != "generator":
                    self.break_off("it passes the program a class, " + kind.__name__)
        self.open[id(kind)] = None
        super().describe(kind, place)

    def encode_class(self, kind):
        own = kind.__module__ == "tests" or is_mirror_class(kind) or kind in ROW_NAMES
        if not own and found(kind.__module__, kind.__qualname__) is kind:
            return ["stdlib", kind.__module__, kind.__qualname__]
        return super().encode_class(kind)

    # Requests that the program sends while it answers a request.

    def serve(self, what, args, named_args):
        if what == "input":
            return builtins.input(args[0])
        if what in ("readline", "read"):
            return str(getattr(sys.stdin, what)(args[0]))
        if what == "opaque" and self.opaque:
            self.break_off("the program looks at `" + str(args[1]) + "` of a mock")
        target, args = args[0] if what == "call" else args[what == "special"], args
        if what == "call" and (id(target) in self.callable or id(target) in self.open and isinstance(target, type)):
            value = target(*args[1:], **named_args)
            if type(value).__name__ == "coroutine" and type(value).__module__ == "builtins":
                return self.finish(value)
            return value
        if id(target) not in self.open:
            raise Gone("a request for an object that was not passed")
        if what == "special":
            return self.finish(target) if args[0] == "__await__" else perform(args[0], *args[1:], **named_args)
        name, kind = str(args[1]), self.open[id(target)]
        if what not in ("getattr", "setattr") or kind is None or name.startswith("_"):
            raise AttributeError(name)
        if kind.__module__ != "tests" and name not in ("send", "throw", "close"):
            raise AttributeError(name)
        return getattr(target, name) if what == "getattr" else setattr(target, name, args[2])

    def finish(self, coroutine):
        """Runs a coroutine of the tests to its end, in a new thread, since this one may already run an event loop."""
        import asyncio
        import threading

        results = []

        def work():
            try:
                results.append((True, asyncio.run(coroutine)))
            except BaseException as error:
                results.append((False, error))

        held = self.lock._release_save()
        try:
            thread = threading.Thread(target=work)
            thread.start()
            thread.join()
        finally:
            self.lock._acquire_restore(held)
        if not results[0][0]:
            raise results[0][1]
        return results[0][1]

    def fail(self, asked, error):
        # The program may catch an assertion that fails in a function of the tests, so the failure is recorded here.
        if isinstance(error, (AssertionError, Refused)) and not hasattr(error, "_from_program"):
            self.failed = self.failed or words(error)
        kind = type(error)
        if not isinstance(kind, Mirror) and kind.__module__ not in ("builtins", "tests"):
            base = next(base for base in kind.__mro__ if base.__module__ == "builtins")
            error = base(*[part for part in error.args if type(part) in NUMBERS])
        super().fail(asked, error)

    # Requests of the tests to the program.

    def ask(self, what, /, *args, **named_args):
        self.asked += 1
        with self.lock:
            try:
                value = super().ask(what, *args, **named_args)
            except Gone as error:
                self.failed = self.failed or str(error)
                raise
            except BaseException as error:
                kinds = {kind.__name__ for kind in type(error).__mro__ if kind.__module__ in STANDARD_ERRORS}
                if kinds & CONTROL and not self.expects(kinds & CONTROL, args):
                    error = (Raised if isinstance(error, Exception) else RaisedBase)(words(error))
                if not isinstance(error, Broken):
                    BaseException.__setattr__(error, "_from_program", True)
                self.answers += 1
                raise error from error.__cause__
            if what in ANSWERING and not (what == "getattr" and str(args[1]).startswith("__")):
                self.answers += 1
            elif what == "name" and value[0] is True:
                function = is_mirror_class(value[1]) or is_mirror(value[1]) and callable(value[1])
                self.answers += not function
            return value

    def expects(self, names, args):
        """Whether the tests expect an exception that ends iterations, tasks or the interpreter. Elsewhere it would
        shorten an iteration of the tests, and `all(map(f, cases))` of nothing is true."""
        if names & self.named or names & ENDING and args and args[0] in ("__next__", "__anext__"):
            return True
        method = args[1] if len(args) > 1 and args[0] == "__call__" else None
        return is_mirror(method) and object.__getattribute__(method, "__dict__").get("_how") == "generator"

    def send(self, message):
        for name, now in SURROUNDINGS.items():
            if name in self.watched and now() != self.watched[name]:
                self.watched[name] = message.setdefault("around", {})[name] = now()
        if self.random is not None:
            state = named("random.getstate")()
            if state != self.random:
                self.random = state
                message["random"] = self.encode(state)
        super().send(message)

    def starts(self):
        """Waits until the program is loaded."""
        message = self.receive()
        if message["id"] != "start":
            raise ValueError("not the start message")
        if "error" in message:
            raise Gone(words(self.unwrap(message, "error")))
        self.unwrap(message, "value")

    def got(self, target, name, value):
        if self.how(target) is MIXED and name in NUMERIC:
            raise Refused("the result of combining an object of the program with a plain value is not a value")
        if name in ("send", "throw") and type(target).__name__ == "generator":
            self.mark(value, "generator")
        elif name in PREDICATES and not self.tested(target):
            self.mark(value, name)
        return value

    def heard(self, message):
        for name, text in message.get("out", ()):
            stream = {"stdout": sys.stdout, "stderr": sys.stderr}[name]
            if stream is not DEFAULTS[name]:
                stream.write(str(text))
        if "random" in message and self.random is not None and self.follows:
            self.draw_as(self.decode(message["random"]))

    def draw_as(self, state):
        """Advances the tests' random numbers by as many draws as the program made. The program's state is never copied:
        a state that draws cannot reach is ignored."""
        copy = named("random.Random")()
        copy.setstate(self.random)
        words, place = tuple(state[1][:-1]), state[1][-1]
        for _ in range(MOST_DRAWN // 624):
            now = copy.getstate()[1]
            if now[:-1] == words and now[-1] <= place <= 624:
                if place > now[-1]:
                    copy.getrandbits(32 * (place - now[-1]))
                self.random = copy.getstate()
                named("random.setstate")(self.random)
                break
            copy.getrandbits(32 * (625 - now[-1]))

    def adopted(self, made):
        kind = type(made)
        if kind.__name__ == "coroutine" and kind.__module__ == "builtins" and has(kind, "__await__"):
            async def awaited():
                return await made

            place, real = made._place, awaited()
            self.theirs[place] = real
            self.coroutines[id(real)] = (place, real)
            return real
        return made

    def replaced(self, bases, also):
        # Tests must be able to catch an exception of the standard library: its mirror derives from the class of that
        # name here. That must not be a class of this script (`__main__`).
        module = str(also[1])
        kind = found(module, also[2]) if module != "__main__" and module.partition(".")[0] not in RUNNERS else None
        if isinstance(kind, type) and issubclass(kind, BaseException):
            return (kind,)
        return bases

    def how(self, value):
        own = object.__getattribute__(value, "__dict__") if is_mirror(value) else {}
        return own.get("_how")

    def mark(self, value, how):
        if is_mirror(value) and self.how(value) is None:
            object.__setattr__(value, "_how", how)
        return value

    def construct(self, kind, args, named_args):
        value = self.ask("special", "__call__", kind, *args, **named_args)
        return self.mark(value, MADE) if kind.__name__ in self.classes else value

    def special(self, name, me, /, *args, **named_args):
        if name in COMPARISONS:
            return self.compare(name, me, args[0])
        how, plain = self.how(me), bool(args) and not is_mirror(args[0]) and not is_mirror_class(args[0])
        base = built_in_base(type(me))
        if name in BINARY and plain and how is not MADE and base in IMMUTABLE:
            return getattr(base, name, lambda *both: NotImplemented)(me, *args)
        if how is MIXED and name not in BINARY:
            if name in COERCIONS:
                raise Refused("the result of combining an object of the program with a plain value is not a value")
            self.break_off("it uses the result of combining an object of the program with a plain value")
        if name == "__bool__":
            first = self.ask("special", name, me)
            if self.ask("special", name, me) is not first:
                raise Refused("the truth of the program's answer changes")
            return first
        if name == "__contains__" and plain and not self.tested(me):
            if not has(type(me), "__iter__") and not has(type(me), "__getitem__"):
                self.break_off("it tests membership in an object of the program, which alone decides the result")
            return any(item is args[0] or item == args[0] for item in me)
        if name in ("__exit__", "__aexit__"):
            return self.leave(name, me, args)
        if name == "__call__" and how in PREDICATES and args:
            raise Refused("an object of the program has a method `" + how + "`, but is not a plain value")
        value = self.ask("special", name, me, *args, **named_args)
        if name in BINARY and plain and how is not MADE:
            if not is_mirror(value):
                if self.tested(me):
                    self.break_off("combining an object of the program with a plain value gives a plain value")
                raise Refused("combining an object of the program with a plain value gives a plain value")
            return self.mark(value, None if self.tested(me) else MIXED)
        return value

    def tested(self, value):
        return self.how(value) is MADE or type(value).__name__ in self.classes

    def compare(self, name, me, other):
        if is_mirror(other) or is_mirror_class(other):
            self.weak = True
            return self.ask("special", name, me, other)
        if other is None and name in ("__eq__", "__ne__"):
            return name == "__ne__"
        base = built_in_base(type(me))
        if self.how(me) is MADE:
            if base is not None and not any(has_own(one, name) for one in type(me).__mro__):
                return getattr(base, name)(me, other)
            self.weak = True
            return self.ask("special", name, me, other)
        if base is not None:
            return getattr(base, name)(me, other)
        if self.tested(me):
            self.break_off("an object that the program itself created is compared with a plain value")
        raise Refused("an object of the program is compared with a plain value")

    def leave(self, name, me, args):
        error = args[1] if len(args) > 1 else None
        ours = error is not None and not hasattr(error, "_from_program")
        if isinstance(error, (AssertionError, Broken, Refused, Gone)) and ours or isinstance(error, Gone):
            # The program's context manager does not see a failed assertion of the tests.
            self.ask("special", name, me, None, None, None)
            return False
        kept = self.ask("special", name, me, args[0], error, None)
        if kept and error is not None:
            frame = sys._getframe(3)
            file, line = frame.f_code.co_filename, frame.f_lineno
            inside = [found for test, first, last, found in self.guards if test == file and first <= line <= last]
            # Nor may a context manager of the program suppress an exception that makes the tests skip an assertion.
            if any(inside) or not inside:
                return False
        return kept


def is_mirror_class(value):
    return type(value) is Mirror


def has_own(kind, name):
    return type(kind) is Mirror and name in type.__dict__["__dict__"].__get__(kind)


def found(module, path):
    """Returns the object that a path names in a loaded module; None if there is none."""
    value = sys.modules.get(module)
    if type(value) is not type(sys):
        return None
    for name in path.split("."):
        value = getattr(value, name, None)
    return value


def words(error):
    try:
        text = str(error)[:300]
    except Exception:
        text = ""
    return type(error).__name__ + (": " + text if text else "")
