# Runs the program and answers the judge's calls. Nothing that happens in this process decides a test. Whatever the
# program does to this file, the interpreter or its file descriptors, it can only change its own answers.
import io
import types

calls, replies = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
null = os.open(os.devnull, os.O_RDWR)
os.dup2(null, 0)
os.dup2(null, 1)


class Sink(io.RawIOBase):
    """Collects what the program prints. It is sent to the judge, which writes it to the tests' standard output."""

    most = 1 << 22

    def __init__(self):
        self.parts, self.size = [], 0

    def writable(self):
        return True

    def write(self, data):
        self.size += len(data)
        if self.size <= self.most:
            self.parts.append(bytes(data))
        return len(data)


class Source(io.TextIOBase):
    """Standard input of the program: reads from the tests' standard input."""

    def readable(self):
        return True

    def readline(self, size=-1):
        return port.ask("readline", size) if port.asked else ""

    def read(self, size=-1):
        return port.ask("read", size) if port.asked else ""


class Items(list):
    """The items of an iterator to which nothing else refers, so that they can be sent at once."""


READY = {type(iter(empty)) for empty in ([], (), set(), "", b"", range(0), {}, {}.values(), {}.items())}
BASE_VALUES = {
    int: int.__int__, float: float.__float__, complex: lambda value: complex(value.real, value.imag),
    str: str.__str__, bytes: lambda value: bytes.__getitem__(value, slice(None)),
    tuple: lambda value: tuple.__getitem__(value, slice(None)),
    frozenset: lambda value: frozenset(frozenset.__iter__(value)),
}


class Program(Port):
    longest, most = 1 << 30, 1 << 60
    # Number of the judge's requests that are being answered. The program may ask the judge only if it is above 0.
    asked = 0
    loop = None

    def __init__(self, *streams):
        super().__init__(*streams, first=1)
        self.kinds[Items] = lambda value: ["iter", self.encode_all(value)]
        self.sinks, self.lock = {}, __import__("_thread").RLock()
        self.random = None

    def printing(self, name):
        sink = self.sinks[name] = Sink()
        text = io.TextIOWrapper(io.BufferedWriter(sink), "utf-8", "backslashreplace", write_through=True)
        sink.text = text
        return text

    def other(self, kind):
        base = built_in_base(kind)
        if base in BASE_VALUES:
            part = BASE_VALUES[base]
            return lambda value: ["value", self.keep(value), self.encode_class(kind), self.encode(part(value))]
        if base is not None:
            path = path_of(base)
            return lambda value: self.share(value, path)
        for base in kind.__mro__:
            # An instance of a class derived from a standard one, such as `date`, is sent as a value of the standard
            # one.
            if path_of(base) in STANDARD and path_of(base) not in UNNAMED:
                return self.kind_of(base)
        return lambda value: ["mine", self.keep(value), self.own_class(kind)]

    def releasable(self, number):
        path = self.paths[number]
        return path.startswith(ROW) or path_of(type(self.shared[number])) == path

    def decode_object(self, tag, *parts):
        if tag == "stdlib":
            value = __import__(parts[0], fromlist=["*"])
            for name in parts[1].split(".") if parts[1] else ():
                value = getattr(value, name)
            return value
        if tag == "function":
            return self.callback(*parts)
        return super().decode_object(tag, *parts)

    def callback(self, place, name, doc, is_async, opaque):
        if place not in self.theirs:
            if opaque:
                value = Opaque(place)
            elif is_async:
                async def value(*args, **named_args):
                    return self.ask("call", value, *args, **named_args)
            else:
                def value(*args, **named_args):
                    return self.ask("call", value, *args, **named_args)
            if not opaque:
                value.__name__, value.__qualname__, value.__doc__ = name, name, doc
            self.theirs[place] = value
            self.functions[id(value)] = place
        return self.theirs[place]

    functions, patched = {}, []

    def encode(self, value):
        place = self.functions.get(id(value))
        return super().encode(value) if place is None else ["yours", place]

    def ask(self, /, *args, **named_args):
        with self.lock:
            return super().ask(*args, **named_args)

    def special(self, name, /, *args, **named_args):
        return self.ask("special", name, *args, **named_args)

    def construct(self, kind, args, named_args):
        return self.ask("call", kind, *args, **named_args)

    def send(self, message):
        for name, sink in self.sinks.items():
            sink.text.flush()
            if sink.parts:
                text = b"".join(sink.parts).decode("utf-8", "replace")
                message.setdefault("out", []).append([name, text])
                sink.parts = []
        if self.random is not None and "random" in sys.modules:
            state = sys.modules["random"].getstate()
            if state != self.random:
                self.random = state
                message["random"] = self.encode(state)
        super().send(message)

    def heard(self, message):
        around = message.get("around", {})
        if "environ" in around:
            os.environ.clear()
            os.environ.update(around["environ"])
        if "decimal" in around:
            context = named("decimal.getcontext")()
            context.prec, context.rounding = around["decimal"]
        if "random" in message:
            self.random = self.decode(message["random"])
            named("random.setstate")(self.random)

    def wait(self, awaitable):
        """Runs an awaitable to its end; the judge's event loop waits meanwhile."""
        import asyncio

        if self.loop is None:
            self.loop = asyncio.new_event_loop()
            asyncio.set_event_loop(self.loop)

        async def whole():
            return await awaitable

        return self.loop.run_until_complete(whole())

    def serve(self, what, args, named_args):
        if what == "name":
            name = args[0]
            return (True, scope[name]) if name in scope else (False, None)
        if what == "setname":
            scope[args[0]] = args[1]
            return None
        if what == "names":
            return tuple(scope)
        if what == "rows":
            return tuple(name for name in args if define_row(name, scope.get(name)))
        if what == "special":
            name, args = args[0], args[1:]
            if name == "__await__":
                return self.wait(args[0])
            if name in WAITED:
                return self.wait(perform(name, *args))
            value = perform(name, *args, **named_args)
            if name == "__iter__" and type(value) in READY and sys.getrefcount(value) <= 2:
                return Items(value)
            return value
        if what == "getattr":
            if args[1] == "__signature__":
                return named("inspect.signature")(args[0])
            return getattr(*args)
        if what == "patch":
            module = __import__(args[0], fromlist=["*"])
            self.patched.append((module, args[1], vars(module).get(args[1], self)))
            setattr(module, *args[1:])
            return None
        if what == "unpatch":
            module, name, before = self.patched.pop()
            return delattr(module, name) if before is self else setattr(module, name, before)
        if what == "numpy_seed":
            return sys.modules["numpy"].random.seed(args[0]) if "numpy" in sys.modules else None
        if what == "recursion":
            return sys.setrecursionlimit(args[0])
        if what in ("copy", "deepcopy"):
            return named("copy." + what)(*args)
        return {"setattr": setattr, "delattr": delattr, "dir": dir, "isinstance": isinstance,
                "issubclass": issubclass}[what](*args)

    def answer(self, *request):
        self.asked += 1
        try:
            super().answer(*request)
        finally:
            self.asked -= 1

    def fail(self, asked, error):
        # The frames of a traceback would keep all their local variables alive.
        error.__traceback__ = None
        super().fail(asked, error)


class Opaque:
    """An object of the tests, such as a mock, that the program can call but not inspect."""

    def __init__(self, place):
        self.__dict__["place"] = place

    def __call__(self, /, *args, **named_args):
        return port.ask("call", self, *args, **named_args)

    def __getattr__(self, name):
        if not name.startswith("__"):
            port.ask("opaque", self, name)
        raise AttributeError(name)

    def looked_at(self, *args):
        port.ask("opaque", self, "a special method")
        raise TypeError("a mock of the tests")

    __enter__ = __exit__ = __iter__ = __next__ = __len__ = __getitem__ = __setitem__ = __contains__ = looked_at
    __int__ = __float__ = __index__ = __add__ = __radd__ = __sub__ = __mul__ = __lt__ = __gt__ = __aenter__ = looked_at
    __await__ = looked_at


def compiles(source):
    try:
        compile(source, "main.py", "exec")
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    return True


def read(name):
    try:
        with open(os.path.join(os.path.dirname(__file__), name), encoding="utf-8") as file:
            return file.read()
    except FileNotFoundError:
        return ""


def start(scope):
    # A completion continues the prompt's code, or is complete by itself.
    prompt, source = read("prompt.py"), read("main.py")
    source = prompt + source if prompt and compiles(prompt + source) else source
    exec(compile(source, "main.py", "exec"), scope)
    exec(compile(read("setup.py"), "setup", "exec"), scope)


def ask_for_line(prompt=""):
    if not port.asked:
        raise EOFError("EOF when reading a line")
    return port.ask("input", str(prompt))


port = Program(calls, replies)
sys.stdout, sys.stderr, sys.stdin = port.printing("stdout"), port.printing("stderr"), Source()
builtins.input = ask_for_line
module = types.ModuleType("solution")
sys.modules["solution"] = module
scope = module.__dict__
try:
    start(scope)
    port.send({"id": "start", "value": None})
except BaseException as error:
    port.fail("start", error)
    os._exit(0)
while True:
    port.answer(*port.request(port.receive()))
