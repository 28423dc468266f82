# One end of the two pipes between the judge, which runs the tests, and the program. Both ends are this class. An end
# that waits for an answer also answers the other end's requests, since a program may call a function of the tests while
# the tests call the program. An object that is not a plain value stays on its side; the other side has a mirror of it
# (mirrors.py), which forwards each use. A mutable container exists on both sides under one number, and each message
# carries the changes since the previous message. A container to which only this table refers is dropped.


class Gone(BaseException):
    """The other side no longer answers, or its answer is invalid."""


class Broken(Exception):
    """The tests need something that cannot be done across two sandboxes."""


MALFORMED = (ValueError, KeyError, TypeError, AttributeError, IndexError, ArithmeticError, RecursionError, MemoryError)


class Port:
    # The maximum number of bytes of one message and of all received messages, and the bytes received so far.
    longest, most, received = 1 << 24, 1 << 28, 0

    def __init__(self, reader, writer, first):
        self.reader, self.writer = reader, writer
        self.shared, self.seen, self.paths, self.numbers, self.next = {}, {}, {}, {}, first
        self.pending, self.described, self.closed = [], [], []
        # Objects of this side that have mirrors on the other side, and mirrors of the other side's objects.
        self.kept, self.places, self.theirs, self.kinds, self.coroutines = [], {}, {}, {}, {}
        self.shared[-1] = []
        self.alone = self.references(-1)
        del self.shared[-1]

    # Encoding: values to JSON.

    def encode(self, value):
        kind = type(value)
        if kind in PLAIN or kind is int and -LARGE < value < LARGE:
            return value
        if kind is tuple:
            return ["tuple", self.encode_all(value)]
        number = self.numbers.get(id(value))
        if number is not None:
            return ["shared", number]
        if kind not in self.kinds:
            self.kinds[kind] = self.kind_of(kind)
        return self.kinds[kind](value)

    def encode_all(self, values):
        kinds = set(map(type, values))
        if kinds <= PLAIN or kinds <= NUMBERS and all(-LARGE < v < LARGE for v in values if type(v) is int):
            return list(values)
        return [self.encode(value) for value in values]

    def kind_of(self, kind):
        """Returns the function that encodes values of this type."""
        if isinstance(kind, Mirror):
            return lambda value: self.mirrored(value)
        if kind in ROW_NAMES:
            return self.kind_of_row(kind, ROW_NAMES[kind])
        if issubclass(kind, type):
            return self.encode_class
        path = path_of(kind)
        if path in STANDARD and (path in UNNAMED or named(path) is kind):
            parts = STANDARD[path][0]
            return lambda value: [path] + [self.encode(part) for part in parts(value)]
        if kind is frozenset:
            return lambda value: ["frozenset", self.encode_all(list(value))]
        if path in CONTAINERS and named(path) is kind:
            if path == "numpy.ndarray":
                return self.share_array
            return lambda value: self.share(value, path)
        if path.startswith("numpy.") and issubclass(kind, named("numpy.generic")):
            return self.encode_item
        if issubclass(kind, BaseException):
            return self.encode_error
        return self.other(kind)

    def kind_of_row(self, kind, name):
        """As `kind_of`, for a class that the row defines."""
        base = built_in_base(kind)
        if type(kind) is not type:
            return lambda value: ["member", name, self.encode(value.value)]
        if base in IMMUTABLE:
            return lambda value: ["plain", name, self.encode(base.__new__(base, value))]
        if base is not None and issubclass(base, BaseException):
            return self.encode_error
        return lambda value: self.share(value, path_of(base) if base is not None else ROW + name)

    def mirrored(self, value):
        return ["yours", object.__getattribute__(value, "_place")]

    def share(self, value, path, number=None):
        if number is None:
            number, self.next = self.next, self.next + 2
            self.pending.append(number)
        self.shared[number], self.paths[number] = value, path
        self.numbers[id(value)] = number
        return ["shared", number]

    def share_array(self, value):
        if value.dtype.kind not in PLAIN_ITEMS:
            return self.encode(value.tolist())
        return self.share(value, "numpy.ndarray")

    def encode_item(self, value):
        """Encodes a numpy scalar."""
        if value.dtype.kind not in PLAIN_ITEMS:
            return self.encode(value.item())
        return ["numpy", value.dtype.str, value.tobytes().hex()]

    def keep(self, value):
        """Returns the index in `kept` of an object that stays on this side."""
        place = self.places.get(id(value))
        if place is None:
            place = self.places[id(value)] = len(self.kept)
            self.kept.append(value)
        return place

    def encode_class(self, kind):
        if isinstance(kind, Mirror):
            return ["yours", type.__getattribute__(kind, "_place")]
        if kind in ROW_NAMES:
            return ["row", ROW_NAMES[kind]]
        path = path_of(kind)
        if getattr(builtins, kind.__name__, None) is kind:
            return ["type", path]
        if (path in STANDARD or path in CONTAINERS) and path not in UNNAMED and named(path) is kind:
            return ["type", path]
        return self.own_class(kind)

    def own_class(self, kind):
        """Encodes a class of this side. The other side makes a mirror of it."""
        known = id(kind) in self.places
        place = self.keep(kind)
        if not known:
            self.describe(kind, place)
        return ["class", place]

    def describe(self, kind, place):
        """Adds the description of a class, from which the other side makes a mirror, to the next message."""
        bases = [self.encode_class(base) for base in kind.__bases__]
        own = vars(kind)
        special = [("-" if own[name] is None else "") + name for name in own if name in SPECIAL]
        doc = kind.__doc__ if isinstance(kind.__doc__, str) else None
        names = [name for name in own if name not in SPECIAL] if built_in_base(kind) else []
        also = [kind.__name__, str(kind.__module__), kind.__qualname__, doc, type(kind) is not type]
        self.described.append([place, bases, special, names, also])

    def encode_error(self, error, depth=3):
        kind = type(error)
        if isinstance(kind, Mirror):
            return self.mirrored(error)
        cause = error.__cause__ if error.__cause__ is not None else error.__context__
        cause = self.encode_error(cause, depth - 1) if cause is not None and depth and cause is not error else None
        own = getattr(builtins, kind.__name__, None) is not kind
        own = own and kind not in ROW_NAMES
        place = self.keep(error) if own else None
        details = {} if own else {name: v for name, v in vars(error).items() if name != "_from_program"}
        args = self.encode_all(error.args)
        return ["error", place, self.encode_class(kind), args, self.encode(flat(details.items())), cause,
                error.__cause__ is not None]

    # Decoding: JSON to values. Anything that `encode` does not write raises an exception.

    def decode(self, value):
        if type(value) is not list:
            if type(value) is dict:
                raise ValueError("not a value")
            return value
        tag = value[0]
        if tag == "tuple":
            return tuple(self.decode_all(value[1]))
        if tag == "frozenset":
            return frozenset(self.decode_all(value[1]))
        if tag == "shared":
            return self.shared[value[1]]
        if tag == "yours":
            return self.kept[index(value[1])]
        if tag in STANDARD:
            parts = self.decode_all(value[1:])
            kind = None if tag in UNNAMED else named(tag)
            make = STANDARD[tag][1]
            for part in parts if tag not in ANY_PARTS else ():
                if type(part) not in NUMBERS and type(part) is not tuple and path_of(type(part)) not in STANDARD:
                    raise ValueError("an invalid part of " + tag)
            return kind(*parts) if make is None else make(kind, *parts)
        if tag == "type":
            return self.decode_type(value[1])
        if tag == "class":
            return self.theirs[value[1]]
        if tag == "row":
            return ROWS[value[1]]
        if tag == "numpy":
            return numpy_items(value[1], bytes.fromhex(value[2]))[0]
        if tag in ("member", "plain"):
            kind, part = ROWS[value[1]], self.decode(value[2])
            if tag == "member" and type(kind) is not type:
                return kind(part)
            base = built_in_base(kind)
            if tag == "member" or base not in IMMUTABLE or type(part) is not base:
                raise ValueError("not a value of its class")
            return base.__new__(kind, part)
        if tag == "error":
            return self.decode_error(*value[1:])
        if tag == "iter":
            return iter(self.decode_all(value[1]))
        return self.decode_object(*value)

    def decode_all(self, values):
        kinds = set(map(type, values))
        return values if kinds <= NUMBERS else [self.decode(value) for value in values]

    def decode_type(self, path):
        module, _, name = path.rpartition(".")
        kind = getattr(builtins, name) if module == "builtins" else None
        if kind is None and (path in STANDARD or path in CONTAINERS):
            kind = named(path)
        if not isinstance(kind, type):
            raise ValueError("not a type")
        return kind

    def decode_object(self, tag, place, kind, *base):
        if index(place) in self.theirs:
            return self.theirs[place]
        kind = self.decode(kind)
        if not isinstance(kind, Mirror):
            raise ValueError("not a class")
        built_in = built_in_base(kind)
        if tag == "value" and built_in in IMMUTABLE:
            value = self.decode(base[0])
            if type(value) is not built_in:
                raise ValueError("not a value of its class")
            made = built_in.__new__(kind, value)
        elif tag == "mine" and built_in is None:
            made = object.__new__(kind)
        else:
            raise ValueError("not a value: " + str(tag))
        object.__setattr__(made, "_place", place)
        self.theirs[place] = made
        return self.adopted(made)

    def got(self, target, name, value):
        return value

    def adopted(self, made):
        return made

    def decode_error(self, place, kind, args, details, cause, is_cause):
        if place is not None and index(place) in self.theirs:
            return self.theirs[place]
        kind, args, details = self.decode(kind), self.decode_all(args), self.decode(details)
        if not issubclass(kind, BaseException):
            raise ValueError("not an exception")
        try:
            error = kind.__new__(kind, *args) if isinstance(kind, Mirror) or kind in ROW_NAMES else kind(*args)
        except TypeError:
            error = kind.__new__(kind)
        if type(error) is kind:
            error.args = tuple(args)
        if place is not None:
            BaseException.__setattr__(error, "_place", place)
            self.theirs[place] = error
        for name, value in zip(details[::2], details[1::2]):
            if not name.startswith("_"):
                BaseException.__setattr__(error, name, value)
        if cause is not None:
            cause = self.decode(cause)
            if not isinstance(cause, BaseException):
                raise ValueError("the cause is not an exception")
            error.__context__ = cause
            if is_cause:
                error.__cause__ = cause
        return error

    def make_mirror(self, place, bases, special, names, also):
        bases = tuple(map(self.decode, bases))
        if index(place) in self.theirs or not all(isinstance(base, type) for base in bases):
            raise ValueError("not a class")
        if not all(name.lstrip("-") in SPECIAL for name in special) or not all(isinstance(n, str) for n in names):
            raise ValueError("not a class")
        self.theirs[place] = mirror(self, place, self.replaced(bases, also), special, names, also)

    def replaced(self, bases, also):
        return bases

    # Containers that exist on both sides.

    def references(self, number):
        return sys.getrefcount(self.shared[number])

    def releasable(self, number):
        return True

    def section(self):
        """Returns the part of a message with the classes and containers that changed since the previous message."""
        new, entries, gone = set(self.pending), [], []
        waiting = list(self.shared)
        while waiting:
            number = waiting.pop()
            if number in new or number not in self.shared:
                continue
            path = self.paths[number]
            content = CONTAINERS[path][1](self.shared[number])
            if not unchanged(path, self.seen[number], content):
                self.pending.append(number)
                new.add(number)
            elif self.references(number) <= self.alone and self.releasable(number):
                gone.append(number)
                # Nothing else may refer to the items of this container, so they are checked next.
                waiting += [self.numbers[id(item)] for item in content if id(item) in self.numbers]
                self.drop(number)
            del content
        # Encoding a container can add the containers inside it to `pending`.
        while self.pending:
            number = self.pending.pop()
            value, path, header = self.shared[number], self.paths[number], None
            if number not in self.seen:
                kind = type(value)
                header = [path, None if path.startswith(ROW) or path_of(kind) == path else self.encode_class(kind)]
                header.append(self.encode_all(CONTAINERS[path][0](value)))
                header.append(self.keep(value) if header[1] is not None else None)
            content = self.seen[number] = CONTAINERS[path][1](value)
            entries.append([number, header, self.encode_all(content)])
        described, self.described = self.described, []
        return {"classes": described, "set": entries, "gone": gone} if described or entries or gone else {}

    def drop(self, number):
        value = self.shared.pop(number)
        del self.seen[number], self.paths[number], self.numbers[id(value)]

    def take(self, message):
        for one in message.get("classes", ()):
            self.make_mirror(*one)
        entries = message.get("set", ())
        for number, header, _ in entries:
            if header is not None:
                path, kind, parameters, place = header
                if index(number) in self.shared or path not in CONTAINERS:
                    raise ValueError("not a container")
                base = class_at(path)
                kind = base if kind is None else self.decode(kind)
                own = isinstance(kind, Mirror) or kind in ROW_NAMES
                if kind is not base and not (own and built_in_base(kind) is base):
                    raise ValueError("not a container of its class")
                value = empty(path, kind, self.decode_all(parameters))
                if kind is not base and isinstance(kind, Mirror):
                    object.__setattr__(value, "_place", index(place))
                    self.theirs[place] = value
                    self.adopted(value)
                self.share(value, path, number)
                self.seen[number] = []
        # Instances of the row's classes first: sets and dictionaries may need their hashes.
        for number, _, content in sorted(entries, key=lambda one: not self.paths[one[0]].startswith(ROW)):
            path, value = self.paths[number], self.shared[number]
            CONTAINERS[path][2](value, self.decode_all(content))
            self.seen[number] = CONTAINERS[path][1](value)
        for number in message.get("gone", ()):
            self.closed.append(number)

    # Messages.

    def send(self, message):
        message.update(self.section())
        line = json.dumps(message).encode() + b"\n"
        try:
            self.writer.write(line)
            self.writer.flush()
        except (OSError, ValueError):
            raise Gone("the program ended") from None

    def receive(self):
        line = self.reader.readline(self.longest)
        if not line.endswith(b"\n"):
            raise Gone("the program ended" if len(line) < self.longest else "an answer is too long")
        self.received += len(line)
        if self.received > self.most:
            raise Gone("the answers are too long in total")
        message = json.loads(line)
        if type(message) is not dict:
            raise ValueError("not a message")
        return message

    def unwrap(self, message, what):
        self.heard(message)
        self.take(message)
        value = self.decode(message[what])
        for number in self.closed:
            self.drop(number)
        self.closed = []
        return value

    def ask(self, what, /, *args, **named_args):
        """Sends a request, and answers the other side's requests until the reply comes."""
        asked = os.urandom(12).hex()
        args = self.encode_all(args)
        message = {"id": asked, "do": what, "args": args}
        if named_args:
            message["named"] = [[name, self.encode(value)] for name, value in named_args.items()]
        self.send(message)
        while True:
            try:
                message = self.receive()
                if "do" not in message:
                    if message["id"] != asked:
                        raise ValueError("an answer to another call")
                    failed = "error" in message
                    value = self.unwrap(message, "error" if failed else "value")
                    break
                request = self.request(message)
            except MALFORMED as error:
                raise Gone("an invalid answer") from error
            self.answer(*request)
        if failed:
            if not isinstance(value, BaseException):
                raise Gone("an invalid answer")
            raise value
        return value

    def heard(self, message):
        pass

    def request(self, message):
        names = [["tuple", pair] for pair in message.get("named", [])]
        message["args"] = ["tuple", [["tuple", message["args"]], ["tuple", names]]]
        args, named_args = self.unwrap(message, "args")
        return str(message["id"]), str(message["do"]), args, dict(named_args)

    def answer(self, asked, what, args, named_args):
        try:
            value = self.encode(self.serve(what, args, named_args))
            self.send({"id": asked, "value": value})
        except Gone:
            raise
        except BaseException as error:
            self.fail(asked, error)

    def fail(self, asked, error):
        self.send({"id": asked, "error": self.encode_error(error)})


def perform(name, target, /, *args, **named_args):
    """Runs a special method of an object that is on this side."""
    operation = SPECIAL[name]
    if operation is not None:
        return operation(target, *args)
    if name == "__call__":
        return target(*args, **named_args)
    return getattr(type(target), name)(target, *args)


def index(value):
    if type(value) is not int or value < 0:
        raise ValueError("not an index")
    return value
