# Handles what tests change or look at outside their own interpreter: a change also acts on the program's side, or the
# test gives no score, since the program has other files, other logs and other modules.

# Files that the judge's interpreter reads itself.
READABLE = ("/usr/", "/lib", "/job/", "/etc/", "/proc/", "/dev/null", "/dev/urandom")
FILES = {"os.mkdir", "os.remove", "os.rename", "os.rmdir", "os.link", "os.symlink", "os.chdir", "os.truncate"}
FILES |= {"os.listdir", "os.scandir", "tempfile.mkstemp", "tempfile.mkdtemp", "sqlite3.connect", "os.chmod"}
STARTS = {"subprocess.Popen", "os.system", "os.exec", "os.posix_spawn", "os.spawn", "os.fork"}
LOOKS = {"exists", "isfile", "isdir", "is_file", "is_dir", "getsize", "lexists", "stat"}


USES = LOOKS | {"open", "read_text", "write_text", "read_bytes", "write_bytes", "listdir", "mkdir", "makedirs"}
USES |= {"TemporaryDirectory", "NamedTemporaryFile", "mkdtemp", "mkstemp", "tmp_path", "tmpdir"}


def is_readable(path):
    path = os.fspath(path) if isinstance(path, (str, bytes, os.PathLike)) else ""
    path = path.decode("utf-8", "replace") if isinstance(path, bytes) else path
    return not path or path.startswith(READABLE)


def watch_files(reading):
    def hook(event, args):
        if event == "open":
            if isinstance(args[0], int) or is_readable(args[0]) and not (args[2] or 0) & (os.O_WRONLY | os.O_RDWR):
                return
            if str(args[0]) == os.devnull or "site-packages" in str(args[0]):
                return
        elif event not in FILES and event not in STARTS:
            return
        elif event in ("os.listdir", "os.scandir") and args and args[0] is not None and is_readable(args[0]):
            return
        port.break_off("it uses files or processes, but the program has its own: " + event)

    sys.addaudithook(hook)
    if LOOKS & reading.attributes:
        places = [(os.path, ("exists", "isfile", "isdir", "getsize", "lexists")), (os, ("stat",))]
        if "pathlib" in reading.modules:
            places.append((named("pathlib.Path"), ("exists", "is_file", "is_dir", "stat")))
        for place, names in places:
            for name in names:
                setattr(place, name, looking(getattr(place, name)))


def looking(function):
    def looked(path, *args, **named_args):
        if sys._getframe(1).f_code.co_filename.startswith("test") and not is_readable(path):
            port.break_off("it looks for a file, but the program has files of its own")
        return function(path, *args, **named_args)

    return looked


def watch_patches():
    """Makes patches of modules act in the program's interpreter, too."""
    from unittest import mock

    enter, leave = mock._patch.__enter__, mock._patch.__exit__

    def foreign(self):
        target = self.getter() if not hasattr(self, "target") or self.target is None else self.target
        if type(target) is not type(sys) or target.__name__ in ("sys", "__main__", "tests"):
            if target is sys and self.attribute not in ("stdout", "stderr", "stdin"):
                port.break_off("it patches sys." + self.attribute)
            return None
        return None if (target.__name__, self.attribute) == ("builtins", "input") else target

    def entered(self):
        value = enter(self)
        target = foreign(self)
        self._forwarded = target is not None
        if self._forwarded:
            port.ask("patch", target.__name__, self.attribute, getattr(target, self.attribute))
        return value

    def left(self, *error):
        if getattr(self, "_forwarded", False):
            self._forwarded = False
            port.ask("unpatch")
        return leave(self, *error)

    mock._patch.__enter__, mock._patch.__exit__ = entered, left


def watch_surroundings(reading):
    names = reading.attributes | reading.loaded | reading.modules
    if names & {"environ", "putenv", "unsetenv", "setenv", "delenv"}:
        port.watched["environ"] = SURROUNDINGS["environ"]()
    if names & {"getcontext", "localcontext", "setcontext"}:
        port.watched["decimal"] = None
    if "unittest.mock" in reading.modules or "mock" in names:
        watch_patches()
    if "seed" in names and "numpy" in reading.modules:
        seed_both()
    if any(name.partition(".")[0] == "numpy" for name in reading.modules):
        watch_empty_arrays()
    if "warnings" in names:
        watch_warnings()
    if "logging" in names:
        import logging

        logging.Handler.__init__ = refusing("it adds a log handler")
    port.uses_files = bool(USES & names)
    watch_files(reading)


def seed_both():
    """Makes a seed of numpy's random numbers act in the program, too. Draws of the program do not affect the tests."""
    numpy = __import__("numpy")
    own = numpy.random.seed

    def seeded(seed=None):
        own(seed)
        if type(seed) is int:
            port.ask("numpy_seed", seed)

    numpy.random.seed = seeded


def size(value):
    """The number of members of an array or a list; None for anything else, and for single numbers."""
    if type(value).__module__ == "numpy":
        return value.size if value.ndim else None
    return len(value) if type(value) in (list, tuple) else None


def is_empty_beside(left, right):
    """Whether one of two arrays is empty and the other is not. numpy then compares no members, and finds them equal."""
    sizes = size(left), size(right)
    return None not in sizes and 0 in sizes and any(sizes)


def same(left, right):
    """`left == right`, but an empty array does not equal one that is not empty."""
    equal = left == right
    if type(equal).__module__ == "numpy" and is_empty_beside(left, right):
        return sys.modules["numpy"].array(False)
    return equal


def watch_empty_arrays():
    """Makes comparisons of an empty array with one that is not fail."""
    numpy = __import__("numpy")
    __import__("numpy.testing")
    testing = [name for name in dir(numpy.testing) if name.startswith("assert_") and name != "assert_raises"]
    for module, names in ((numpy, ["allclose", "isclose"]), (numpy.testing, testing)):
        for name in names:
            def watched(*args, _then=getattr(module, name), _fails=module is numpy.testing, **named_args):
                if len(args) > 1 and is_empty_beside(*args[:2]):
                    if _fails:
                        raise AssertionError("an empty array is compared with one that is not")
                    return numpy.array(False)
                return _then(*args, **named_args)

            if type(getattr(module, name)) is type(size) or module is numpy:
                setattr(module, name, watched)


def refusing(why):
    def refused(*args, **named_args):
        port.break_off(why + ", but the program's logs and warnings stay in its sandbox")

    return refused


def watch_warnings():
    import warnings

    caught, refuse = warnings.catch_warnings.__init__, refusing("it records warnings")

    def init(self, *, record=False, **more):
        if record or more.get("action") == "error":
            refuse()
        caught(self, record=record, **more)

    warnings.catch_warnings.__init__ = init
    for name in ("simplefilter", "filterwarnings"):
        def filtered(action, *args, _then=getattr(warnings, name), **more):
            if action == "error":
                refuse()
            return _then(action, *args, **more)

        setattr(warnings, name, filtered)
