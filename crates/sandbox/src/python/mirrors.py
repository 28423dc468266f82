# Mirrors of the other side's objects. Each class of the other side is mirrored by a class here, so that isinstance,
# issubclass, `except`, `type(x) is C` and hash tables work as usual, and its instances by instances of that class.
# Special methods that the original class defines, and all other attributes, are requests to the other side. Methods
# that the original class inherits from a built-in class run here.

LOCAL = {"_place", "_how", "_port", "_names", "_lost", "_from_program"}


def built_in_base(kind):
    """Returns the built-in class, other than object, from which a class derives; None if there is none."""
    for base in kind.__mro__:
        # A mirror's name comes from the other side, which could claim that of a built-in class.
        if type(base) is Mirror:
            continue
        if base in IMMUTABLE or path_of(base) in CONTAINERS:
            return base
        if issubclass(base, BaseException) and getattr(builtins, base.__name__, None) is base:
            return base
    return None


def has(kind, name):
    return any(name in type.__dict__["__dict__"].__get__(one) for one in kind.__mro__)


def attribute(self, name):
    kind = type(self)
    if name in LOCAL or name == "__class__":
        return object.__getattribute__(self, name)
    base = built_in_base(kind)
    own = (one for one in kind.__mro__ if type(one) is Mirror)
    if base is not None and hasattr(base, name) and not any(name in one._names for one in own):
        return object.__getattribute__(self, name)
    if name in SPECIAL and has(kind, name) or name in ("__copy__", "__deepcopy__"):
        return object.__getattribute__(self, name)
    return kind._port.got(self, name, kind._port.ask("getattr", self, name))


def set_attribute(self, name, value):
    base = built_in_base(type(self))
    if name in LOCAL or base is not None and issubclass(base, BaseException) and hasattr(base, name):
        return object.__setattr__(self, name, value)
    type(self)._port.ask("setattr", self, name, value)


def delete_attribute(self, name):
    type(self)._port.ask("delattr", self, name)


def equal(self, other):
    return type(self)._port.special("__eq__", self, other)


def unequal(self, other):
    return type(self)._port.special("__ne__", self, other)


def identity_hash(self):
    base = built_in_base(type(self))
    return object.__hash__(self) if base is None else base.__hash__(self)


COMMON = {
    "__getattribute__": attribute, "__setattr__": set_attribute, "__delattr__": delete_attribute,
    "__copy__": lambda self: type(self)._port.ask("copy", self),
    "__deepcopy__": lambda self, memo: type(self)._port.ask("deepcopy", self),
    "__dir__": lambda self: type(self)._port.ask("dir", self),
}


def stub(name):
    if name in WAITED:
        async def special(self, *args):
            return type(self)._port.special(name, self, *args)
    elif name == "__await__":
        def special(self):
            return type(self)._port.special(name, self)
            yield
    else:
        def special(self, /, *args, **named_args):
            return type(self)._port.special(name, self, *args, **named_args)
    special.__name__ = name
    return special


STUBS = {}


class Mirror(type):
    """The metaclass of mirrored classes: each instance of it stands for a class of the other side."""

    def __new__(meta, name, bases, own, **more):
        raise Broken("a class of the tests inherits from the program's " + bases[0].__name__)

    def __init__(cls, *args, **more):
        pass

    def __call__(cls, /, *args, **named_args):
        return cls._port.construct(cls, args, named_args)

    def __getattribute__(cls, name):
        if name in ("__annotations__", "__dict__", "__signature__", "__abstractmethods__"):
            return type.__getattribute__(cls, "_port").ask("getattr", cls, name)
        if name not in SPECIAL and name in type.__getattribute__(cls, "_names"):
            if not (name.startswith("__") and name.endswith("__")):
                return type.__getattribute__(cls, "_port").ask("getattr", cls, name)
        return type.__getattribute__(cls, name)

    def __getattr__(cls, name):
        return type.__getattribute__(cls, "_port").ask("getattr", cls, name)

    def __setattr__(cls, name, value):
        cls._port.ask("setattr", cls, name, value)

    def __delattr__(cls, name):
        cls._port.ask("delattr", cls, name)

    def __instancecheck__(cls, value):
        if type.__instancecheck__(cls, value):
            return True
        return cls._meta and type(type(value)) is Mirror and bool(cls._port.ask("isinstance", value, cls))

    def __subclasscheck__(cls, other):
        if type.__subclasscheck__(cls, other):
            return True
        return cls._meta and type(other) is Mirror and bool(cls._port.ask("issubclass", other, cls))

    def __bool__(cls):
        return True

    def __dir__(cls):
        return cls._port.ask("dir", cls)

    def __iter__(cls):
        return cls._port.ask("special", "__iter__", cls)

    def __len__(cls):
        return cls._port.ask("special", "__len__", cls)

    def __getitem__(cls, key):
        return cls._port.ask("special", "__getitem__", cls, key)

    def __contains__(cls, item):
        return cls._port.ask("special", "__contains__", cls, item)

    def __reversed__(cls):
        return cls._port.ask("special", "__reversed__", cls)


FUNCTIONS = {"function": "FunctionType", "method": "MethodType", "generator": "GeneratorType", "module": "ModuleType",
             "builtin_function_or_method": "BuiltinFunctionType", "async_generator": "AsyncGeneratorType"}


def mirror(port, place, bases, special, names, also):
    name, module, qualname, doc, meta = also
    own = dict(COMMON, __module__=str(module), __qualname__=str(qualname), __doc__=None if doc is None else str(doc))
    own.update(_port=port, _place=place, _names=frozenset(names), _meta=bool(meta))
    if not any(isinstance(base, Mirror) for base in bases):
        own.update(__eq__=equal, __ne__=unequal, __hash__=identity_hash)
        # A mirror of a class derived from a built-in class compares and hashes as the built-in class does.
        if bases != (object,):
            for word in ("__eq__", "__ne__", "__hash__"):
                del own[word]
    for word in special:
        if word.startswith("-"):
            own[word[1:]] = None
            continue
        if word not in STUBS:
            STUBS[word] = stub(word)
        own[word] = STUBS[word]
    if module == "builtins" and name in FUNCTIONS and bases == (object,):
        import types
        kind = getattr(types, FUNCTIONS[name])
        own["__class__"] = property(lambda self: kind)
    if "__eq__" in own and "__hash__" not in own:
        own["__hash__"] = None
    return type.__new__(Mirror, str(name), bases, own)
