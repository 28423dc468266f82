"""The rows, chat templates and the text for tokenizers of sft_rows_fixtures.py. Everything was written for it."""

TOKENIZER_TEXT = [
    "Once upon a time there was a small cat. The cat said: yes, it is. The answer is 42, and no other number is it.",
    "Say yes or no. Let me look at the weather of the town: it is warm today. Three and four make seven.",
    "user: What is it?\nassistant: It is the answer.\nsystem: Be kind and short.\n",
    "Question: how many? Answer: seven. I think that 3 + 4 = 7, so the answer is 7.\n\n",
    "get_weather with the town as argument returns the temperature. {\"name\": \"get_weather\", \"arguments\": {}}",
    "é ü ß ñ — – … 東京 は 暑い 🦀 🙂",
] * 4  # fmt: skip


def user(text):
    return {"role": "user", "content": text}


def said(text=None, **more):
    return {"role": "assistant", **({} if text is None else {"content": text}), **more}


def system(text):
    return {"role": "system", "content": text}


def answered(text, **more):
    return {"role": "tool", "content": text, **more}


def call(name="get_weather", **arguments):
    return {"type": "function", "function": {"name": name, "arguments": arguments}}


TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "description": "The weather of a town.",
            "parameters": {"type": "object", "properties": {"town": {"type": "string"}}, "required": ["town"]},
        },
    }
]

# Texts, and prompts with completions as texts.
WHOLE = {
    "one word": "yes", "two words": "it is", "begins with a space": " it is", "ends with a space": "it is ",
    "only a space": " ", "nothing": "", "line feeds": "\n\nit\nis\n", "two spaces": "it  is", "tab": "it\tis",
    "Qwen's end": "it is<|im_end|>", "another end": "it is<|endoftext|>", "Llama's end": "it is<|eot_id|>",
    "a piece's end": "it is</s>", "an end and a space": "it is</s> ", "an end within": "it</s> is", "two ends": "it</s></s>",
    "an end at the beginning": "<|im_end|>it", "only an end": "<|im_end|>", "only a piece's end": "</s>",
    "a start": "<s>it is", "Llama's start": "<|begin_of_text|>it is", "a start and a space": "<s> it is", "two starts": "<s><s>it",
    "accents": "é ü ß", "symbols": "🦀🙂 — …", "Japanese": "東京 は 暑い", "only a symbol": "🦀", "numbers": "3 + 4 = 7",
    "tags": "<think>so</think><answer>7</answer>", "boxes": "<|box_start|>7<|box_end|>yes", "an unfinished tag": "<think",
    "a template's text": "<|im_start|>user\nit<|im_end|>\n<|im_start|>assistant\nyes<|im_end|>\n", "carriage returns": "it\r\nis\r",
    "a metaspace": "it▁is", "a byte": "<0x0A>", "combining": "e\u0301 it", "zero width": "it\u200b is",
}  # fmt: skip
SPLIT = {
    "a colon": ("Say:", "yes"), "a space before": ("Say:", " yes"), "a space after": ("Say: ", "yes"), "spaces both": ("Say: ", " yes"),
    "a sentence": ("Once upon a time", ", there was a small cat."), "a number": ("3 + 4 =", " 7"), "a digit": ("3 + 4 = ", "7"),
    "digits join": ("4", "2"), "letters join": ("wea", "ther"), "a word's end": ("it i", "s"), "no prompt": ("", "yes"),
    "no completion": ("Say:", ""), "nothing at all": ("", ""), "only a space to say": ("Say:", " "), "a line feed before": ("Question: how many?\n", "seven"),
    "a line feed after": ("Question: how many?", "\nseven"), "line feeds both": ("how many?\n", "\nseven"), "an end said": ("Say:", "yes</s>"),
    "Qwen's end said": ("Say:", "yes<|im_end|>"), "another end said": ("Say:", "yes<|endoftext|>"), "an end said within": ("Say:", " a</s> b"),
    "Qwen's end within": ("Say:", "a<|im_end|> b"), "two ends said": ("Say:", "yes</s></s>"), "an end in the prompt": ("Say:</s>", "yes"),
    "Qwen's end in the prompt": ("Say:<|im_end|>", "yes"), "a start in the prompt": ("<s>Say:", "yes"), "a start said": ("Say:", "<s>yes"),
    "half a symbol": ("say e", "\u0301"), "a symbol said": ("Say:", "🦀"), "a symbol asked": ("🦀", "yes"), "Japanese said": ("東", "京"),
    "accents said": ("é", "ü"), "a tag said": ("Say:", "<think>so</think>yes"), "a tag opened": ("Say:<think>", "so</think>yes"),
    "a tag cut": ("Say:<thi", "nk>yes"), "a box cut": ("a<|box_", "start|>b"), "an end cut": ("Say:<|im_", "end|>"),
    "a long word": ("weatherweather", "weatherweather"), "an instruction": ("[INST] Say yes [/INST]", " yes"), "a tab said": ("it", "\tis"),
    "an end alone": ("Say:", "<|im_end|>"), "a space at an end": ("Say:", "yes "), "a metaspace said": ("Say:", "▁yes"),
}  # fmt: skip
TEXTS = {f"text: {name}": {"text": text} for name, text in WHOLE.items()}
TEXTS |= {f"completion: {name}": {"prompt": p, "completion": c} for name, (p, c) in SPLIT.items()}

# Rows that have ids already.
IDS = {
    "ids: alone": {"input_ids": [5, 6, 7, 8]},
    "ids: labels": {"input_ids": [5, 6, 7, 8], "labels": [-100, -100, 7, 8]},
    "ids: labels within": {"input_ids": [5, 6, 7, 8], "labels": [5, -100, 7, -100]},
    "ids: no label": {"input_ids": [5, 6, 7, 8], "labels": [-100, -100, -100, -100]},
    "ids: labels of others": {"input_ids": [5, 6, 7], "labels": [5, 9, 7]},
    "ids: completion mask": {"input_ids": [5, 6, 7, 8], "completion_mask": [0, 0, 1, 1]},
    "ids: assistant masks": {"input_ids": [5, 6, 7, 8], "assistant_masks": [0, 1, 1, 0]},
    "ids: both masks": {"input_ids": [5, 6, 7, 8], "completion_mask": [0, 0, 1, 1], "assistant_masks": [0, 1, 1, 0]},
    "ids: labels and masks": {"input_ids": [5, 6, 7], "labels": [-100, 6, 7], "completion_mask": [0, 0, 1]},
    "ids: masks that exclude": {"input_ids": [5, 6], "completion_mask": [0, 1], "assistant_masks": [1, 0]},
    "ids: one": {"input_ids": [5]},
    "ids: with texts": {"prompt": "a", "completion": "b", "input_ids": [5, 6, 7], "completion_mask": [0, 0, 1]},
    "ids: with a text": {"text": "a", "input_ids": [5, 6, 7], "completion_mask": [0, 0, 1]},
}

THOUGHT = "<think>\nhm\n</think>\n\n"
TALKS = {
    "one turn": [user("a"), said("yes")],
    "two turns": [user("a"), said("yes"), user("b"), said("no")],
    "a system": [system("Be kind."), user("a"), said("yes")],
    "spaces": [user(" a "), said(" yes "), user("b\n"), said("\nno\n")],
    "ends with the user": [user("a"), said("yes"), user("b")],
    "only the user": [user("a")],
    "only the assistant": [said("yes")],
    "the assistant begins": [said("yes"), user("a"), said("no")],
    "two answers": [user("a"), said("yes"), said("and no"), user("b"), said("so")],
    "equal answers": [user("a"), said("yes"), user("a"), said("yes"), user("a"), said("yes")],
    "the answer is the question": [user("yes"), said("yes"), user("no"), said("no")],
    "an answer of nothing": [user("a"), said(""), user("b"), said("no")],
    "nothing said": [user("a"), said("")],
    "a space said": [user("a"), said(" ")],
    "a thought": [user("a"), said(THOUGHT + "x y")],
    "a thought before": [user("a"), said(THOUGHT + "x y"), user("b"), said("yes")],
    "no thought before": [user("a"), said("x y"), user("b"), said("yes")],
    "thoughts": [user("a"), said(THOUGHT + "x y"), user("b"), said(THOUGHT + "yes")],
    "a thought only": [user("a"), said(THOUGHT), user("b"), said("yes")],
    "an open thought": [user("a"), said("<think>\nhm"), user("b"), said("yes")],
    "a closed thought": [user("a"), said("hm\n</think>\n\nx"), user("b"), said("yes")],
    "reasoning": [user("a"), said("yes", reasoning_content="because"), user("b"), said("no", reasoning_content="hm")],
    "thinking": [user("a"), said("yes", thinking="because"), user("b"), said("no", thinking="hm")],
    "a call": [user("a"), said("let me", tool_calls=[call(town="x")]), answered("warm", name="get_weather"), said("yes")],
    "a call alone": [user("a"), said("", tool_calls=[call(town="x")]), answered("warm"), said("yes")],
    "a call without content": [user("a"), said(tool_calls=[call(town="x")]), answered("warm"), said("yes")],
    "a call of null": [user("a"), {"role": "assistant", "content": None, "tool_calls": [call(town="x")]}, answered("w"), said("y")],
    "two calls": [user("a"), said("", tool_calls=[call(town="x"), call(town="y")]), answered("w"), answered("v"), said("yes")],
    "calls in turn": [user("a"), said("", tool_calls=[call(town="x")]), answered("w"), said("", tool_calls=[call(town="y")]),
                      answered("v"), said("yes"), user("b"), said("no")],
    "a call at the end": [user("a"), said("let me", tool_calls=[call(town="x")])],
    "a thought and a call": [user("a"), said(THOUGHT + "let me", tool_calls=[call(town="x")]), answered("w"), said(THOUGHT + "yes")],
    "a special token said": [user("a"), said("<|im_end|>yes"), user("b"), said("no<|endoftext|>no")],
    "a special token asked": [user("<|im_start|>assistant\nx<|im_end|>"), said("yes")],
    "boxes said": [user("a"), said("<|box_start|>hm<|box_end|>yes it is")],
    "a box at the end": [user("a"), said("yes <|box_start|>7<|box_end|>"), user("b"), said("no")],
    "tags said": [user("a"), said("<think>so</think><answer>7</answer>"), user("b"), said("<answer>8</answer> it is")],
    "headers said": [user("a"), said("user: x\nassistant: y"), user("b"), said("assistant: z")],
    "symbols said": [user("🦀"), said("🦀"), user("東京"), said("暑い🙂")],
    "accents said": [user("é"), said("é ü"), user("ß"), said("ñ")],
    "line feeds said": [user("a"), said("\n\nyes\n\n"), user("b"), said("no\n")],
    "long": [user("Once upon a time there was a small cat."), said("The cat said: yes, it is. The answer is 42.")] * 3,
    "parts": [user("a"), {"role": "assistant", "content": [{"type": "text", "text": "yes"}]}],
    "a name": [{"role": "user", "name": "x", "content": "a"}, said("yes", name="y")],
    "another role": [{"role": "developer", "content": "x"}, user("a"), said("yes")],
    "a system within": [user("a"), said("yes"), system("Be short."), user("b"), said("no")],
}  # fmt: skip
CONVERSATIONS = {f"talk: {name}": {"messages": messages} for name, messages in TALKS.items()}
CONVERSATIONS |= {
    "talk: tools": {"messages": TALKS["a call"], "tools": TOOLS},
    "talk: tools as a text": {"messages": TALKS["a call alone"], "tools": '[{"type": "function", "function": {"name": "f"}}]'},
    "talk: no tools": {"messages": TALKS["one turn"], "tools": []},
    "talk: null tools": {"messages": TALKS["one turn"], "tools": None},
    "talk: tools that nobody calls": {"messages": TALKS["two turns"], "tools": TOOLS},
    "talk: an argument": {"messages": TALKS["two turns"], "chat_template_kwargs": {"enable_thinking": False}},
    "talk: from and value": {"conversations": [{"from": "user", "value": "a"}, {"from": "assistant", "value": "yes"}]},
}
for name, cut in {
    "one turn": 1, "two turns": 3, "a system": 2, "spaces": 3, "two answers": 1, "an answer of nothing": 3, "nothing said": 1,
    "the assistant begins": 2, "a thought": 1, "a thought before": 3, "thoughts": 3, "a thought only": 3, "reasoning": 3, "a call": 1,
    "a call alone": 3, "two calls": 1, "calls in turn": 5, "a call at the end": 1, "a thought and a call": 1, "boxes said": 1,
    "tags said": 3, "headers said": 3, "symbols said": 1, "line feeds said": 3, "equal answers": 3, "a special token said": 1,
    "an open thought": 3, "a closed thought": 1, "accents said": 3, "parts": 1, "a space said": 1,
}.items():  # fmt: skip
    messages = TALKS[name]
    CONVERSATIONS[f"split: {name}"] = {"prompt": messages[:cut], "completion": messages[cut:]}
CONVERSATIONS |= {
    "split: continues": {"prompt": [user("a"), said("so")], "completion": [said("yes")]},
    "split: the user answers": {"prompt": [user("a")], "completion": [user("b"), said("yes")]},
    "split: within": {"prompt": TALKS["two turns"][:1], "completion": TALKS["two turns"][1:]},
    "split: tools": {"prompt": TALKS["a call"][:1], "completion": TALKS["a call"][1:], "tools": TOOLS},
    "split: an argument": {
        "prompt": [user("a")], "completion": [said("yes")], "chat_template_kwargs": {"enable_thinking": False},
    },
    "split: only the user": {"prompt": [user("a")], "completion": [user("b")]},
}  # fmt: skip

PAIRS = {
    "pair: texts": {"prompt": "Say:", "chosen": " yes", "rejected": " no"},
    "pair: joined": {"prompt": "Say:", "chosen": "yes", "rejected": "no"},
    "pair: joined after a space": {"prompt": "Say: ", "chosen": "yes", "rejected": " no"},
    "pair: without a prompt": {"chosen": "the cat is small", "rejected": "the cat is kind"},
    "pair: parts at a space": {"chosen": "it is warm", "rejected": "it is"},
    "pair: one begins the other": {"chosen": "a b", "rejected": "a bc"},
    "pair: one letter apart": {"chosen": "yes", "rejected": "yet"},
    "pair: nothing chosen": {"prompt": "Say:", "chosen": "", "rejected": "no"},
    "pair: nothing rejected": {"prompt": "Say:", "chosen": "yes", "rejected": ""},
    "pair: an end": {"prompt": "Say:", "chosen": "yes</s>", "rejected": "no"},
    "pair: an end within": {"prompt": "Say:", "chosen": " a</s> b", "rejected": "no<|im_end|> "},
    "pair: an end in the prompt": {"prompt": "Say:</s>", "chosen": "yes", "rejected": "no"},
    "pair: a start": {"prompt": "<s>Say:", "chosen": "yes", "rejected": "no"},
    "pair: letters join": {"prompt": "wea", "chosen": "ther", "rejected": "k"},
    "pair: symbols": {"prompt": "🦀", "chosen": "東京", "rejected": "🙂"},
    "pair: line feeds": {"prompt": "how many?\n", "chosen": "\nseven", "rejected": "\n\nfour"},
    "pair: no prompt in common": {"prompt": "", "chosen": "yes", "rejected": "no"},
    "pair: talks": {"prompt": [user("a")], "chosen": [said("yes")], "rejected": [said("no")]},
    "pair: whole talks": {"chosen": [user("a"), said("yes")], "rejected": [user("a"), said("no")]},
    "pair: talks of a system": {"prompt": [system("s"), user("a")], "chosen": [said("yes")], "rejected": [said("no")]},
    "pair: a thought": {"prompt": [user("a")], "chosen": [said(THOUGHT + "yes")], "rejected": [said("no")]},
    "pair: two turns": {"prompt": TALKS["two turns"][:3], "chosen": [said("yes")], "rejected": [said("no")]},
    "pair: a thought before": {"prompt": TALKS["thoughts"][:3], "chosen": [said("yes")], "rejected": [said("no")]},
    "pair: continues": {"prompt": [user("a"), said("so")], "chosen": [said("yes")], "rejected": [said("no")]},
    "pair: longer talks": {
        "prompt": [user("a")], "chosen": [said("yes"), user("b"), said("so")], "rejected": [said("no")],
    },
    "pair: a call": {"prompt": [user("a")], "chosen": [said("", tool_calls=[call(town="x")])], "rejected": [said("no")]},
    "pair: tools": {
        "prompt": [user("a")], "chosen": [said("", tool_calls=[call(town="x")])], "rejected": [said("no")], "tools": TOOLS,
    },
    "pair: an argument": {
        "prompt": [user("a")], "chosen": [said("yes")], "rejected": [said("no")],
        "chat_template_kwargs": {"enable_thinking": False},
    },
    "pair: talks with nothing in common": {"chosen": [user("a"), said("yes")], "rejected": [user("b"), said("no")]},
    "pair: spaces said": {"prompt": [user("a")], "chosen": [said(" yes ")], "rejected": [said("no\n")]},
    "pair: an end said": {"prompt": [user("a")], "chosen": [said("yes<|im_end|>")], "rejected": [said("no</s>")]},
    "pair: boxes said": {"prompt": [user("a")], "chosen": [said("<|box_start|>7<|box_end|>")], "rejected": [said("8")]},
    "pair: ids": {"chosen_ids": [5, 6, 7], "rejected_ids": [5, 6, 8]},
    "pair: ids of former names": {"chosen_input_ids": [5, 6, 7], "rejected_input_ids": [5, 6, 8]},
}  # fmt: skip

# Conversations for the templates of which TRL has a training version.
KNOWN = {
    name: CONVERSATIONS[f"talk: {name}"]
    for name in (
        "one turn", "two turns", "a system", "spaces", "ends with the user", "two answers", "an answer of nothing", "a thought",
        "a thought before", "thoughts", "reasoning", "thinking", "a call", "a call alone", "a call without content", "two calls",
        "calls in turn", "a call at the end", "a system within", "parts", "tools", "an argument", "symbols said",
    )
}  # fmt: skip
KNOWN |= {name: CONVERSATIONS[f"split: {name}"] for name in ("continues", "within", "thoughts", "calls in turn")}

CHATML = "{% for m in messages %}<|im_start|>{{ m.role }}\n"
HEADER = "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
CALLS = "{% for c in m.tool_calls %}{{ '\n<tool_call>' + (c.function | tojson) + '</tool_call>' }}{% endfor %}"
MARKED = "{% if m.role == 'assistant' %}{% generation %}WHAT{% endgeneration %}{% else %}WHAT{% endif %}"
TEMPLATES = {
    "chatml": (
        "{% if tools %}{{ tools | tojson }}\n{% endif %}" + CHATML + "{{ m.content }}" + CALLS + "<|im_end|>\n{% endfor %}" + HEADER,
        ["bytes", "bytes_other_end"],
    ),
    "chatml marked": (
        "{% if tools %}{{ tools | tojson }}\n{% endif %}" + CHATML
        + MARKED.replace("WHAT", "{{ m.content }}" + CALLS + "<|im_end|>\n") + "{% endfor %}" + HEADER,
        ["bytes", "bytes_prefix", "pieces"],
    ),
    "marked without the end": (
        CHATML + MARKED.replace("WHAT", "{{ m.content }}") + "<|im_end|>\n{% endfor %}" + HEADER, ["bytes", "bytes_prefix"],
    ),
    "roles": (
        "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}{% if add_generation_prompt %}assistant: {% endif %}",
        ["tags", "pieces"],
    ),
    "roles marked": (
        "{% for m in messages %}{{ m.role }}:" + MARKED.replace("WHAT", " {{ m.content }}\n")
        + "{% endfor %}{% if add_generation_prompt %}assistant:{% endif %}",
        ["tags", "bytes_prefix", "pieces", "pieces_bytes"],
    ),
    "instructions": (
        "{{ bos_token }}{% for m in messages %}{% if m.role == 'user' %}[INST] {{ m.content }} [/INST]"
        "{% elif m.role == 'assistant' %} {{ m.content }} {{ eos_token }}{% else %}{{ raise_exception('no such role') }}{% endif %}"
        "{% endfor %}",
        ["pieces", "pieces_bytes"],
    ),
    "instructions marked": (
        "{{ bos_token }}{% for m in messages %}{% if m.role == 'user' %}[INST] {{ m.content }} [/INST]"
        "{% elif m.role == 'assistant' %}{% generation %} {{ m.content }} {{ eos_token }}{% endgeneration %}"
        "{% else %}{{ raise_exception('no such role') }}{% endif %}{% endfor %}",
        ["pieces", "pieces_end", "pieces_bytes", "bytes_begin"],
    ),
    "opens a thought": (
        CHATML + "{{ m.content }}<|im_end|>\n{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>assistant\n<think>\n{% endif %}",
        ["bytes", "tags"],
    ),
    "opens a thought marked": (
        CHATML + MARKED.replace("WHAT", "{{ m.content }}<|im_end|>\n") + "{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>assistant\n<think>\n{% endif %}",
        ["bytes", "tags"],
    ),
    "drops thoughts marked": (
        CHATML + "{% if m.role == 'assistant' %}{% generation %}"
        "{% if loop.last %}{{ m.content }}{% else %}{{ m.content.split('</think>')[-1].lstrip('\\n') }}{% endif %}" + CALLS
        + "<|im_end|>\n{% endgeneration %}{% else %}{{ m.content }}<|im_end|>\n{% endif %}{% endfor %}{% if add_generation_prompt %}"
        "<|im_start|>assistant\n{% if enable_thinking is defined and not enable_thinking %}<think>\n\n</think>\n\n{% endif %}{% endif %}",
        ["bytes", "bytes_other_end"],
    ),
    "ends once marked": (
        "{% for m in messages %}{{ m.role }}\n" + MARKED.replace("WHAT", "{{ m.content | trim }}<|im_end|>\n")
        + "{% endfor %}{% if add_generation_prompt %}assistant\n{% else %}{{ eos_token }}{% endif %}",
        ["bytes_other_end", "pieces_first"],
    ),
}  # fmt: skip
