# Runs the program and answers the judge's calls. Nothing that happens here decides a test: whatever the program does to
# this file, to the interpreter or to its file descriptors, it can only answer calls, which is what it is for.
import builtins
import os
import sys
import types

calls, replies = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
null = os.open(os.devnull, os.O_RDWR)
os.dup2(null, 0)
os.dup2(null, 1)
kept = []


def keep(value):
    kept.append(value)
    return [len(kept) - 1, type(value).__name__]


def reply(message):
    replies.write(json.dumps(message).encode() + b"\n")
    replies.flush()


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
    # A completion goes on with the prompt's code, or stands by itself.
    prompt, source = read("prompt.py"), read("main.py")
    source = prompt + source if prompt and compiles(prompt + source) else source
    exec(compile(source, "main.py", "exec"), scope)
    exec(compile(read("setup.py"), "setup", "exec"), scope)


def answer(call, scope):
    def find(place):
        if isinstance(place, str):
            if place not in scope and not hasattr(builtins, place):
                raise NameError("the program does not define " + place)
            return scope.get(place, getattr(builtins, place, None))
        return kept[place]

    target = find(call["target"])
    if call["ask"] == "items":
        return encode(list(target), keep)
    if call["ask"] == "attribute":
        return encode(getattr(target, call["name"]), keep)
    return encode(target(*decode(call["args"], find), **decode(call["kwargs"], find)), keep)


def serve():
    module = types.ModuleType("solution")
    sys.modules["solution"] = module
    try:
        start(module.__dict__)
    except BaseException as error:
        return reply({"id": "start", "error": [type(error).__name__, str(error)[:300]]})
    reply({"id": "start"})
    for line in calls:
        call = json.loads(line)
        try:
            reply({"id": call["id"], "value": answer(call, module.__dict__)})
        except BaseException as error:
            reply({"id": call["id"], "error": [type(error).__name__, str(error)[:300]]})


serve()
