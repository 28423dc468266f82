# Replaces pytest where it is not installed: pytest.raises, approx, fail and parametrized tests.


def like_pytest():
    try:
        import pytest
    except ImportError:
        pytest = sys.modules["pytest"] = type(sys)("pytest")
        vars(pytest).update(raises=raises, approx=Approx, fail=fail, mark=Mark())


def fail(reason=""):
    raise AssertionError(reason)


class raises:
    def __init__(self, kinds, *call, match=None, **named_args):
        self.kinds, self.match = kinds, match
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
        self.type, self.value = kind, error
        if self.match is not None:
            import re

            if not re.search(self.match, str(error)):
                fail("the exception's text is another")
        return True


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
        return self.near(given, self.expected)

    def __ne__(self, given):
        return not self == given

    __hash__ = None


class Mark:
    def parametrize(self, names, cases, **more):
        names = [name.strip() for name in names.split(",")] if isinstance(names, str) else list(names)

        def decorate(test):
            def run(**given):
                for case in cases:
                    test(**dict(zip(names, case if len(names) > 1 else (case,))), **given)
            run.__name__ = test.__name__
            return run
        return decorate

    def __getattr__(self, name):
        return lambda value=None, *rest, **more: value if callable(value) else lambda test: test
