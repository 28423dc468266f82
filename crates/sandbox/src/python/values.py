# How values are encoded as JSON for the pipes between the judge, which runs the tests, and the program. None, bool,
# float, str and small int are themselves. Any other value is a list that begins with a tag. Values of the standard
# library are built again from checked parts (no pickle), and only if their type is exactly one of the library's.
# Mutable containers exist on both sides, so that changes come back (port.py).
import builtins
import json
import operator
import os
import sys

LARGE = 1 << 62
PLAIN = {type(None), bool, float, str}
NUMBERS = PLAIN | {int}


def named(path):
    """The class or function of the standard library that a path such as "fractions.Fraction" names."""
    module, _, name = path.rpartition(".")
    __import__(module)
    return getattr(sys.modules[module], name)


def path_of(kind):
    # Since Python 3.13 the classes of pathlib are in another module.
    return (kind.__module__ + "." + kind.__qualname__).replace("pathlib._local.", "pathlib.")


def attributes(names):
    names = names.split()
    return lambda value: [getattr(value, name) for name in names]


def with_fold(kind, fold, *parts):
    return kind(*parts, fold=fold)


def zone(kind, offset, name):
    return kind(offset) if name is None else kind(offset, name)


def signature_parts(value):
    empty = value.empty
    parts = []
    for one in value.parameters.values():
        parts.append((one.name, int(one.kind), one.default is not empty, one.annotation is not empty))
        parts[-1] += (None if one.default is empty else one.default,)
        parts[-1] += (None if one.annotation is empty else one.annotation,)
    result = value.return_annotation
    return [tuple(parts), result is not empty, None if result is empty else result]


def signature(kind, parts, returns, result):
    from inspect import Parameter

    made = []
    for name, which, has_default, has_annotation, default, annotation in parts:
        given = {"default": default} if has_default else {}
        given.update({"annotation": annotation} if has_annotation else {})
        made.append(Parameter(name, list(Parameter.POSITIONAL_ONLY.__class__)[which], **given))
    return kind(made, **({"return_annotation": result} if returns else {}))


def field_kind(name):
    if name not in ("_FIELD", "_FIELD_CLASSVAR", "_FIELD_INITVAR"):
        raise ValueError(name)
    return named("dataclasses." + name)


# Types of the standard library that are copied. For each: a function that returns a value's parts, and a function that
# makes a value from the class and the parts (None: the class is called with the parts).
STANDARD = {
    "builtins.int": (lambda value: [hex(value)], lambda kind, text: int(text, 16)),
    "builtins.bytes": (lambda value: [value.hex()], lambda kind, text: bytes.fromhex(text)),
    "builtins.complex": (attributes("real imag"), None),
    "builtins.range": (attributes("start stop step"), None),
    "builtins.slice": (attributes("start stop step"), None),
    "builtins.ellipsis": (lambda value: [], lambda kind: ...),
    "builtins.NotImplementedType": (lambda value: [], lambda kind: NotImplemented),
    "builtins.dict_keys": (lambda value: [tuple(value)], lambda kind, keys: dict.fromkeys(keys).keys()),
    "builtins.dict_values": (lambda value: [tuple(value)], lambda kind, items: dict(enumerate(items)).values()),
    "builtins.dict_items": (lambda value: [tuple(value)], lambda kind, pairs: dict(pairs).items()),
    "fractions.Fraction": (attributes("numerator denominator"), None),
    "decimal.Decimal": (lambda value: [str(value)], None),
    "datetime.date": (attributes("year month day"), None),
    "datetime.time": (attributes("fold hour minute second microsecond tzinfo"), with_fold),
    "datetime.datetime": (attributes("fold year month day hour minute second microsecond tzinfo"), with_fold),
    "datetime.timedelta": (attributes("days seconds microseconds"), None),
    "datetime.timezone": (lambda value: (list(value.__getinitargs__()) + [None])[:2], zone),
    "zoneinfo.ZoneInfo": (attributes("key"), None),
    "uuid.UUID": (attributes("hex"), None),
    "pathlib.PosixPath": (lambda value: [str(value)], None),
    "pathlib.PurePosixPath": (lambda value: [str(value)], None),
    "pathlib.PureWindowsPath": (lambda value: [str(value)], None),
    "re.Pattern": (attributes("pattern flags"), lambda kind, text, flags: named("re.compile")(text, flags)),
    "inspect.Signature": (signature_parts, signature),
    "dataclasses._FIELD_BASE": (attributes("name"), lambda kind, name: field_kind(name)),
}
# Types of STANDARD that are not attributes of their module.
UNNAMED = {"builtins.ellipsis", "builtins.NotImplementedType", "builtins.dict_keys", "builtins.dict_values"}
UNNAMED |= {"builtins.dict_items"}
# Types of STANDARD whose parts may be values of any type.
ANY_PARTS = {"builtins.slice", "inspect.Signature"}


def flat(pairs):
    return [part for pair in pairs for part in pair]


def refill_dict(value, parts):
    dict.clear(value)
    dict.update(value, zip(parts[::2], parts[1::2]))


def refill_ordered(value, parts):
    base = named("collections.OrderedDict")
    base.clear(value)
    for key, item in zip(parts[::2], parts[1::2]):
        base.__setitem__(value, key, item)


def refill_set(value, parts):
    set.clear(value)
    set.update(value, parts)


def refill_deque(value, parts):
    base = named("collections.deque")
    base.clear(value)
    base.extend(value, parts)


def refill_file(value, parts):
    value.seek(0)
    value.truncate()
    value.write(parts[0])
    value.seek(parts[1])


def refill_array(value, parts):
    value[:] = named("array.array")(value.typecode, parts)


# Mutable containers. For each: functions that return the arguments for an empty one, return its content, and replace
# its content. They call methods of the built-in class by name, so that overrides in a derived class do not matter.
nothing = lambda value: []
of_dict = (nothing, lambda value: flat(dict.items(value)), refill_dict)
of_file = (nothing, lambda value: [value.getvalue(), value.tell()], refill_file)
CONTAINERS = {
    "builtins.list": (nothing, lambda value: list.__getitem__(value, slice(None)),
                      lambda value, parts: list.__setitem__(value, slice(None), parts)),
    "builtins.dict": of_dict,
    "builtins.set": (nothing, lambda value: list(set.__iter__(value)), refill_set),
    "builtins.bytearray": (nothing, lambda value: [bytes(value)],
                           lambda value, parts: bytearray.__setitem__(value, slice(None), parts[0])),
    "collections.deque": (attributes("maxlen"), lambda value: list(named("collections.deque").__iter__(value)),
                          refill_deque),
    "collections.OrderedDict": (nothing, lambda value: flat(named("collections.OrderedDict").items(value)),
                                refill_ordered),
    "collections.defaultdict": (attributes("default_factory"), of_dict[1], refill_dict),
    "collections.Counter": of_dict,
    "array.array": (attributes("typecode"), list, refill_array),
    "_io.StringIO": of_file,
    "_io.BytesIO": of_file,
}
# Kinds of numpy's data types whose items are plain bytes.
PLAIN_ITEMS = set("biufcSUmM")


def numpy_items(dtype, content):
    dtype = named("numpy.dtype")(str(dtype))
    if dtype.kind not in PLAIN_ITEMS:
        raise ValueError("the items are not plain bytes")
    return named("numpy.frombuffer")(bytes(content), dtype) if dtype.itemsize else named("numpy.empty")((0,), dtype)


def refill_numpy(value, parts):
    value[...] = numpy_items(value.dtype.str, parts[0]).reshape(value.shape)


CONTAINERS["numpy.ndarray"] = (lambda value: [value.dtype.str, value.shape], lambda value: [value.tobytes()],
                               refill_numpy)


# Containers whose content is a new object each time it is read. They are compared by value, not by identity.
BY_VALUE = {"builtins.bytearray", "array.array", "_io.StringIO", "_io.BytesIO", "numpy.ndarray"}
# Immutable built-in types. An instance of a class derived from one of them is sent with its value of that type.
IMMUTABLE = (bool, int, float, complex, str, bytes, tuple, frozenset)


def attributes_of(value):
    """The attributes of an instance of a class that the row defines, as a list of names and values."""
    kind, found = type(value), []
    for name in [*getattr(value, "__dict__", ()), *slots_of(kind)]:
        # Methods and descriptors of the class are left out.
        own = getattr(kind, name, None)
        if name in slots_of(kind) or not (callable(own) or hasattr(type(own), "__get__")):
            try:
                found += [name, object.__getattribute__(value, name)]
            except AttributeError:
                continue
    return found


def slots_of(kind):
    names = []
    for base in kind.__mro__:
        slots = vars(base).get("__slots__", ())
        names += [slots] if isinstance(slots, str) else list(slots)
    return [name for name in names if not name.startswith("__")]


def refill_attributes(value, parts):
    kind, given = type(value), dict(zip(parts[::2], parts[1::2]))
    known, slots = set(attributes_of(value)[::2]), slots_of(kind)
    for name in known - given.keys():
        object.__delattr__(value, name)
    for name, item in given.items():
        own = getattr(kind, name, None)
        if type(name) is not str or name.startswith("__"):
            raise ValueError("not the name of an attribute")
        if hasattr(kind, name) and name not in slots and name not in FIELDS.get(kind, (name,)):
            # A constant of the class.
            continue
        if name in slots:
            object.__setattr__(value, name, item)
        elif not (callable(own) or hasattr(type(own), "__get__")):
            vars(value)[name] = item


# Classes that the row itself defines, by name. They exist on both sides, each with its own methods.
ROW = "row "
ROWS, ROW_NAMES = {}, {}
# For the tests: the attributes of instances that a class's own code sets or declares.
FIELDS = {}


def define_row(name, kind):
    """Registers a class that the row defines. Returns whether its instances can exist on both sides."""
    import enum

    if not isinstance(kind, type) or type(kind) not in (type, type(enum.Enum)):
        return False
    ROWS[name], ROW_NAMES[kind] = kind, name
    CONTAINERS[ROW + name] = (nothing, attributes_of, refill_attributes)
    return True


def class_at(path):
    return ROWS[path[len(ROW):]] if path.startswith(ROW) else named(path)


def empty(path, kind, parameters):
    """Makes an empty container of class `kind`, which is the class at `path` or derived from it."""
    if path.startswith(ROW):
        return object.__new__(kind)
    base = named(path)
    if path == "numpy.ndarray":
        numpy_items(parameters[0], b"")
        return base.__new__(kind, tuple(parameters[1]), parameters[0])
    if path == "array.array":
        return base.__new__(kind, *parameters)
    value = base.__new__(kind)
    if path == "collections.deque":
        base.__init__(value, (), *parameters)
    elif path == "collections.defaultdict":
        base.__init__(value, *parameters)
    elif path.startswith("_io."):
        base.__init__(value)
    return value


def unchanged(path, old, new):
    if len(old) == len(new) and all(map(operator.is_, old, new)):
        return True
    return path in BY_VALUE and old == new


# Special methods, and the function that runs each of them on the side that has the object. A binary operator has three
# methods: the plain one, the one with swapped operands, and the one in place.
BINARY = {}
for word in "add sub mul truediv floordiv mod pow lshift rshift xor matmul and_ or_".split():
    bare = word.rstrip("_")
    operation = getattr(operator, word)
    BINARY["__" + bare + "__"] = operation
    BINARY["__r" + bare + "__"] = lambda mine, other, operation=operation: operation(other, mine)
    BINARY["__i" + bare + "__"] = getattr(operator, "i" + bare)
BINARY["__divmod__"] = divmod
BINARY["__rdivmod__"] = lambda mine, other: divmod(other, mine)
COMPARISONS = {"__" + word + "__": getattr(operator, word) for word in "eq ne lt le gt ge".split()}
COERCIONS = {
    "__bool__": bool, "__int__": int, "__float__": float, "__complex__": complex, "__index__": operator.index,
    "__abs__": abs, "__round__": round, "__len__": len, "__trunc__": lambda value: named("math.trunc")(value),
    "__floor__": lambda value: named("math.floor")(value), "__ceil__": lambda value: named("math.ceil")(value),
}
SPECIAL = {
    "__iter__": iter, "__next__": next, "__reversed__": reversed, "__contains__": operator.contains, "__hash__": hash,
    "__str__": str, "__repr__": repr, "__format__": format, "__bytes__": bytes, "__neg__": operator.neg,
    "__pos__": operator.pos, "__invert__": operator.invert, "__getitem__": operator.getitem,
    "__setitem__": operator.setitem, "__delitem__": operator.delitem, "__fspath__": os.fspath,
}
SPECIAL.update(BINARY)
SPECIAL.update(COMPARISONS)
SPECIAL.update(COERCIONS)
# Special methods without such a function. They are looked up in the object's class.
for word in "call enter exit await aiter anext aenter aexit missing length_hint instancecheck subclasscheck".split():
    SPECIAL["__" + word + "__"] = None
WAITED = {"__anext__", "__aenter__", "__aexit__"}
