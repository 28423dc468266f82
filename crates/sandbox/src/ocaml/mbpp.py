# Converts the tests of MBPP to OCaml, as MultiPL-E does. Standard input: MBPP's lines of JSON. Python values become
# OCaml values; a task whose values have no common OCaml type is left out. MBPP has no OCaml solutions, so each task
# gets one that contains the expected answers.
import ast
import json
import sys

RESERVED = set("""
and as assert begin class constraint do done downto else end exception external false for fun
function functor if in include inherit initializer lazy let match method module mutable new nonrec
object of open or private rec sig struct then to true try type val virtual when while with
""".split())


class Untyped(Exception):
    pass


def type_of(value):
    kind = type(value)
    if kind is int and abs(value) < 1 << 62 or kind in (bool, float, str):
        return kind.__name__
    if kind is list:
        return ("list", together([type_of(item) for item in value]))
    if kind is tuple and len(value) > 1:
        return ("tuple", *[type_of(item) for item in value])
    raise Untyped


def together(types):
    result = None
    for one in types:
        result = one if result is None else result if one is None else both(result, one)
    return result


def both(a, b):
    if a == b or b is None:
        return a
    if a is None:
        return b
    if {a, b} == {"int", "float"}:
        return "float"
    if isinstance(a, tuple) and isinstance(b, tuple) and a[0] == b[0] and len(a) == len(b):
        return (a[0], *[both(x, y) for x, y in zip(a[1:], b[1:])])
    raise Untyped


def text(value, kind):
    if kind == "float":
        written = repr(float(value))
        if "n" in written:
            raise Untyped
        return "(%s)" % (written if "." in written or "e" in written else written + ".")
    if kind == "int":
        return "(%d)" % value
    if kind == "bool":
        return str(value).lower()
    if kind == "str":
        plain = lambda byte: chr(byte) if 32 <= byte < 127 and byte not in b'"\\' else "\\%03d" % byte
        return '"' + "".join(plain(byte) for byte in value.encode()) + '"'
    if kind[0] == "list":
        return "[" + "; ".join(text(item, kind[1]) for item in value) + "]"
    return "(" + ", ".join(text(item, one) for item, one in zip(value, kind[1:])) + ")"


def row(task):
    calls = []
    for test in task["test_list"]:
        compare = ast.parse(test.strip()).body[0].test
        if not isinstance(compare, ast.Compare) or not isinstance(compare.ops[0], ast.Eq) or len(compare.ops) > 1:
            raise Untyped
        call = compare.left
        if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Name) or call.keywords or not call.args:
            raise Untyped
        expected = ast.literal_eval(compare.comparators[0])
        calls.append((call.func.id, [ast.literal_eval(arg) for arg in call.args], expected))
    name = calls[0][0].lower()
    name = name if name.isidentifier() and name not in RESERVED else "f_" + name
    if len({len(args) for _, args, _ in calls}) > 1:
        raise Untyped
    kinds = [together([type_of(args[i]) for _, args, _ in calls]) for i in range(len(calls[0][1]))]
    result = together([type_of(expected) for _, _, expected in calls])
    names = ["x%d" % i for i in range(len(kinds))]
    solution = "let %s %s =\n" % (name, " ".join(names))
    lines = []
    for _, args, expected in calls:
        given = [text(value, kind) for value, kind in zip(args, kinds)]
        wanted = text(expected, result)
        solution += "  if (%s) = (%s) then %s else\n" % (", ".join(names), ", ".join(given), wanted)
        lines.append("  assert ((candidate %s) = %s);\n" % (" ".join("(%s)" % one for one in given), wanted))
    tests = "let assertions () =\n  let candidate = %s in\n%s  ()\n\nlet () = assertions ()\n" % (name, "".join(lines))
    return {"solution": solution + "  failwith \"another\"\n", "tests": tests}


for line in sys.stdin:
    try:
        print(json.dumps(row(json.loads(line))))
    except (Untyped, SyntaxError, ValueError, TypeError):
        pass
