"""Writes crates/model/tests/fixtures/templates.json: expressions and line ends of chat templates, and the texts that
transformers makes of them.

    python conformance/template_fixtures.py        from the repository's root

Made with transformers 5.23.0 and Jinja 3.1.6. A text of null means that transformers refuses the template.
"""

import json

import jinja2
import transformers
from transformers.utils.chat_template_utils import _compile_jinja_template

VARIABLES = {
    "s": "Hello, World",
    "u": "größe ßtraße ÉCOLE ǆ",
    "csv": "a,b,,c",
    "words": "  one two\tthree\n four  ",
    "lines": "one\ntwo\r\nthree\rfour\n\nfive",
    "path": "system/user/assistant",
    "think": "<think>\nwhy\n</think>\n\nbecause",
    "empty": "",
    "n": 42,
    "x": -3.75,
    "t": True,
    "none": None,
    "list": [3, 1, 2, 1],
    "names": ["Bob", "alice", "Carl"],
    "map": {"name": "Ann", "age": 7, "tags": ["a", "b"]},
    "items": [{"k": "b", "v": 2}, {"k": "a", "v": 1}, {"k": "c"}],
}

# Each line is one expression.
EXPRESSIONS = r"""
csv.rsplit(',')
csv.rsplit(',', 1)
csv.rsplit(',', maxsplit=2)
csv.rsplit(sep=',', maxsplit=1)
words.rsplit()
words.rsplit(none, 1)
words.rsplit(maxsplit=2)
csv.rsplit('')
csv.rsplit(',', 0)
csv.rsplit(',', -1)
'aXXbXXc'.rsplit('XX', 1)
'aXXXb'.rsplit('XX')
empty.rsplit()
empty.rsplit(',')
path.rsplit('/', 1)[-1]
path.rsplit('/', 1)[0]
csv.split(',')
csv.split(',', 1)
csv.split(',', maxsplit=2)
csv.split(sep=',')
csv.split(',', 0)
csv.split(',', -1)
words.split()
words.split(none, 1)
words.split(maxsplit=1)
words.split(' ')
words.split(' ', 2)
csv.split('')
empty.split()
empty.split(',')
'aXXXb'.split('XX')
think.split('</think>')[-1].lstrip('\n')
think.split('</think>')[0].rstrip('\n').split('<think>')[-1].lstrip('\n')
lines.splitlines()
lines.splitlines(true)
lines.splitlines(keepends=true)
'a\x0bb\x0cc\x1cd\x1de\x1ef\x85g\u2028h\u2029i'.splitlines()
empty.splitlines()
'\n'.splitlines()
path.partition('/')
path.partition('::')
path.partition('')
path.partition('/')[2]
empty.partition('/')
path.rpartition('/')
path.rpartition('::')
path.rpartition('/')[0]
think.partition('</think>')[2].strip()
s.removeprefix('Hello')
s.removeprefix('hello')
s.removeprefix('')
s.removeprefix(s)
s.removesuffix('World')
s.removesuffix('world')
s.removesuffix('')
s.removesuffix(s)
u.removesuffix('ǆ')
s.removeprefix(1)
s.removeprefix()
s.index('o')
s.index('o', 5)
s.index('o', 5, 9)
s.index('zzz')
u.index('ß')
s.rindex('o')
s.rindex('o', 0, 6)
s.rindex('zzz')
s.find('o')
s.find('o', 5)
s.find('o', 5, 8)
s.find('o', -4)
s.find('')
s.find('', 12)
s.find('', 13)
s.find('zzz')
u.find('ß')
s.rfind('o')
s.rfind('o', 0, 5)
s.rfind('')
u.rfind('ß')
u.rfind('zzz')
s.count('l')
s.count('l', 4)
s.count('l', 4, 8)
s.count('')
'aaaa'.count('aa')
u.count('ß')
s.startswith('Hell')
s.startswith('World', 7)
s.startswith('Wor', 7, 9)
s.startswith(('x', 'Hel'))
s.startswith(('x', 'y'))
s.startswith('')
s.endswith('World')
s.endswith('Hello', 0, 5)
s.endswith(('x', 'ld'))
s.endswith('')
s.startswith(['Hel'])
'%s and %d' % ('a', 3)
'%s' % s
'%s' % t
'%s' % none
'%s' % x
'%s' % list
'%s' % map
'%s' % (list,)
'%d%%' % n
'%5d|%-5d|%05d' % (n, n, n)
'%+d % d' % (n, n)
'%.2f' % x
'%8.3f|' % x
'%e' % x
'%g' % x
'%x %X %o' % (n, n, n)
'%c%c' % (65, 'b')
'%10s|%-10s|' % ('ab', 'cd')
'%.2s' % s
'%r' % s
'%s %r' % (list, list)
'%(name)s is %(age)d' % map
'%(name)s' % {'name': 'Bo'}
'%s %s' % ('one',)
'%s' % ('one', 'two')
'none' % ()
'none' % ('one',)
'%d' % 'a'
'%d' % x
'%i' % 7
'%*d' % (5, n)
'%s' | format(list)
'%s and %s' | format('a', true)
'%(a)s' | format(a='x')
n % 5
-7 % 3
x % 2
words | wordcount
empty | wordcount
u | wordcount
"it's a-b c_d" | wordcount
'a.b, c' | wordcount
n | wordcount
s | center(20) ~ '|'
s | center(4) ~ '|'
'abc' | center(6) ~ '|'
'abcd' | center(7) ~ '|'
s | center | length
s | center(width=15) ~ '|'
n | center(6) ~ '|'
'é' | center(4) ~ '|'
s.center(20) ~ '|'
s.center(20, '*')
s.center(15, '-')
'abc'.center(6) ~ '|'
'abcd'.center(7) ~ '|'
s.center(3)
s.ljust(15) ~ '|'
s.ljust(15, '.')
s.rjust(15) ~ '|'
s.rjust(15, '.')
s.ljust(2)
'ab'.ljust(4, 'xy')
'42'.zfill(5)
'-42'.zfill(5)
'+42'.zfill(5)
'abc'.zfill(2)
empty.zfill(3)
'x' | int
'x' | int(7)
'x' | int(default=7)
'12' | int + 1
' 12 ' | int
'12abc' | int
'3.7' | int
'-3.7' | int
'1e3' | int
'1_000' | int
'0x1A' | int(0, 16)
'0x1A' | int(base=16)
'1A' | int(0, 16)
'0b101' | int(0, 2)
'0o17' | int(0, 8)
'77' | int(base=8)
'zz' | int(-1, 36)
'' | int
none | int
none | int(5)
true | int
x | int
3.99 | int
list | int
map | int(1)
'inf' | int
'nan' | int
missing | int
'x' | float
'x' | float(1.5)
'3.5' | float
' 3.5 ' | float
'1e3' | float
none | float
n | float
list | float(2)
'inf' | float
missing | float
u.swapcase()
s.swapcase()
u.casefold()
s.casefold()
u.lower()
u.upper()
u.capitalize()
"hello wORLD it's".capitalize()
"hello wORLD it's 3rd".title()
u.title()
"hello wORLD it's 3rd" | title
"hello-world (a)b [c] {d" | title
'hello World'.istitle()
'Hello World'.istitle()
'Hello world'.istitle()
empty.istitle()
'123'.isdigit()
'12.3'.isdigit()
'²'.isdigit()
'²'.isdecimal()
'½'.isnumeric()
'½'.isdigit()
'٣'.isdecimal()
empty.isdigit()
'abc1'.isalnum()
'ab c'.isalnum()
'abc'.isalpha()
'é'.isalpha()
'a1'.isalpha()
'abc'.islower()
'aBc'.islower()
'a1'.islower()
'1'.islower()
'ABC'.isupper()
'ABc'.isupper()
' \t\n'.isspace()
'\x1c'.isspace()
empty.isspace()
'abc'.isascii()
'é'.isascii()
empty.isascii()
'abc_1'.isidentifier()
'1abc'.isidentifier()
'for'.isidentifier()
empty.isidentifier()
'abc'.isprintable()
'a\nb'.isprintable()
empty.isprintable()
words.strip()
words.lstrip()
words.rstrip()
'xxabcxx'.strip('x')
'xyabcyx'.strip('xy')
'xxabc'.lstrip('x')
'abcxx'.rstrip('x')
'abc'.strip('')
words.strip(none)
'\x1c a \x1f'.strip()
'\ufeffa'.strip()
'a\tb'.expandtabs()
'a\tb'.expandtabs(4)
'ab\tc\n\td'.expandtabs(tabsize=3)
s.replace('l', 'L')
s.replace('l', 'L', 1)
s.replace('l', 'L', 0)
s.replace('l', 'L', -1)
s.replace('', '-')
s.replace('', '-', 3)
s.replace('l', 1)
', '.join(names)
''.join(names)
'-'.join('abc')
', '.join(list)
', '.join(map)
', '.join([])
'-'.join(['a', none])
'{} and {}'.format('a', 3)
'{0}{1}{0}'.format('a', 'b')
'{name}'.format(name='x')
'{:>5}|{:<5}|{:^5}'.format('a', 'b', 'c')
'{:.2f}'.format(x)
'{:05d}'.format(n)
'{!r}'.format(s)
'{}'.format(t)
'{}'.format(none)
'{}'.format(list)
'{}'.format(map)
'{0.name}'.format(map)
'{0[name]}'.format(map)
'{name} {age}'.format_map(map)
'{{}}'.format()
s.encode()
s.translate({})
s.nothing()
list.index(1)
list.index(2)
list.index(9)
list.index(1, 2)
list.count(1)
list.count(9)
list.copy()
list.append(4)
list.pop()
list.sort()
list.reverse()
(1, 2, 1).count(1)
(1, 2, 1).index(2)
map.get('name')
map.get('zip')
map.get('zip', 'none')
map.keys() | list
map.values() | list
map.items() | list
map.copy()
map.pop('name')
map.update({})
map.setdefault('a', 1)
s | wordwrap(5)
'one two three four' | wordwrap(9)
'one two three four' | truncate(10)
'one two three four' | truncate(10, true)
'one two three four' | truncate(10, true, '!')
'one two three four' | truncate(12, leeway=0)
'short' | truncate(10)
'<b>bold</b>  text' | striptags
12345 | filesizeformat
1 | filesizeformat
12345678 | filesizeformat(true)
'<a>' | forceescape
'a b&c' | urlencode
map | urlencode
'a' | escape
list | random | string | length
3.14159 | round
3.14159 | round(2)
2.5 | round
3.5 | round
2.45 | round(1)
2.1 | round(0, 'ceil')
2.9 | round(0, 'floor')
n | round
1234 | round(-2)
n | abs
x | abs
list | sort
list | sort(reverse=true)
names | sort
names | sort(case_sensitive=true)
items | sort(attribute='k') | map(attribute='k') | list
list | unique | list
names | unique | list
list | sum
list | sum(start=10)
items | map(attribute='v', default=0) | sum
items | map(attribute='v', default='-') | join(',')
items | map(attribute='k') | join
items | selectattr('v', 'defined') | list | length
items | rejectattr('v', 'defined') | map(attribute='k') | list
list | select('odd') | list
list | reject('equalto', 1) | list
list | min
list | max
names | min
names | max
names | first
names | last
[] | first
list | batch(3) | list
list | batch(3, 0) | list
list | slice(2) | list
map | dictsort
map | dictsort(reverse=true)
map | dictsort(by='value') if false else 1
names | map('upper') | list
names | map('length') | list
names | join(', ')
list | join('-')
items | join(',', attribute='k')
names | reverse | list
s | reverse
s | list | length
s | length
map | length
map | items | list
s | lower
s | upper
s | capitalize
s | trim
'xxaxx' | trim('x')
s | replace('l', 'L')
s | replace('l', 'L', 1)
s | replace('l', 'L', count=2)
s | replace('l', 1)
n | replace(4, 'x')
s | replace('', '-')
s | replace('l', 'L', 0)
s | replace('l', none)
lines | indent
lines | indent(2, true)
lines | indent(width='> ')
lines | indent(2, true, true)
lines | indent('>', blank=true)
empty | indent
'a\n' | indent
'a\n' | indent(2, true)
n | indent(3, true)
lines | indent(0)
lines | indent(first=true)
'a\n\nb' | indent(2, false, true)
s | default('d')
missing | default('d')
empty | default('d')
empty | default('d', true)
none | default('d')
missing | d('e')
n | string ~ 's'
map | string
list | tojson
s | tojson
map | tojson(indent=2)
1 is divisibleby 3
9 is divisibleby 3
s is string
n is number
x is float
t is boolean
n is integer
t is integer
t is number
map is mapping
list is sequence
s is sequence
map is sequence
missing is sequence
n is sequence
none is sequence
range(3) is sequence
(1,) is sequence
t is sequence
missing is iterable
s is iterable
missing is mapping
s is mapping
map is iterable
n is iterable
none is none
s is lower
'abc' is lower
'ABC' is upper
n is even
n is odd
n is eq 42
n is gt 41
n is in [42]
n is sameas n
s is callable
missing is defined
missing is undefined
s is escaped
'upper' is filter
'odd' is test
s[0]
s[-1]
s[1:4]
s[::-1]
s[20]
list[-1]
list[9]
map['name']
map.name
map.nope
map['nope'] is defined
1 / 2
7 // 2
-7 // 2
2 ** 10
2 ** -1
1 ~ 2
'a' * 3
'a' + 1
1 + 1.5
true + 1
'a' in s
'name' in map
1 in list
not t
t and s
none or 'x'
1 < 2 < 3
'b' > 'a'
n if t else 0
s if false
[1, 'a', none, true, 1.0]
{'a': 1, 'b': [none]}
(1,)
range(5) | list
range(1, 6, 2) | list
range(3)
dict(a=1, b='x')
namespace(a=1).a
cycler('a', 'b').next()
joiner(', ')() ~ 'x'
lipsum(1) | length > 0
""".strip().split("\n")

# Templates with all kinds of line ends: each `N` below is one.
SHAPES = [
    "aNbNc",
    "aNbNcN",
    "aNNbNN",
    "{% for m in messages %}N{{ m.role }}N{% endfor %}NendN",
    "{%- for m in messages -%}N  {{ m.content }}N{%- endfor -%}Nend",
    "{% if true %}Nyes{% endif %}N",
    "  {% if true %}N  yesN  {% endif %}N  no",
    "{# a commentN over lines #}NafterN",
    "{#- trimmed -#}NafterN",
    "{{ 'oneNtwo' }}N",
    "{{ 'oneNtwo' | length }}",
    "{{ '\\r\\n' | length }}N{{ '\\n' | length }}",
    "{% set x = 'aNb' %}N{{ x | tojson }}N",
    "{% raw %}N{{ raw }}N{% endraw %}NendN",
    "{%- raw -%}N {{ raw }} N{%- endraw -%}NendN",
    "a{% raw %}N{% generation %}N{% endraw %}NN{% raw %}{{ x }}{% endraw %}N",
    "{% set x %}Na blockN{% endset %}N[{{ x }}]",
    "{% macro m(a) %}N<{{ a }}>N{% endmacro %}N{{ m(1) }}N",
    "{% generation %}Nsaid{% endgeneration %}NendN",
    "{{- ' a' -}}NbN",
    "{%+ if true %}Nkept{% endif %}N",
    "N{{ messages[0].content }}<|im_end|>N",
    "{{ messages[0].content }}<|im_end|>NN",
    "{{ messages[1].content }}N",
    "{{ messages[1].content.splitlines() }}N",
    "\u2028a\u2029b\x0bc\x0cd\x85eN",
]
ENDS = {"LF": "\n", "CRLF": "\r\n", "CR": "\r", "mixed": None}
MESSAGES = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "a\r\nb\rc\n"}]


def with_ends(shape, end):
    if end is not None:
        return shape.replace("N", end)
    parts = shape.split("N")
    return "".join(part + ["\r\n", "\r", "\n", "\n\r"][i % 4] * (i + 1 < len(parts)) for i, part in enumerate(parts))


def render(template, **variables):
    try:
        return _compile_jinja_template(template).render(messages=MESSAGES, **variables)
    except Exception:
        return None


expressions = [{"expression": e, "text": render("{{ " + e + " }}", **VARIABLES)} for e in EXPRESSIONS]
line_ends = [
    {"template": t, "ends": name, "text": render(t)}
    for shape in SHAPES
    for name, end in ENDS.items()
    for t in [with_ends(shape, end)]
]
fixture = {
    "made_with": {"transformers": transformers.__version__, "jinja2": jinja2.__version__},
    "variables": VARIABLES,
    "messages": MESSAGES,
    "expressions": expressions,
    "line_ends": line_ends,
}
with open("crates/model/tests/fixtures/templates.json", "w") as file:
    json.dump(fixture, file, indent=1, ensure_ascii=False)
    file.write("\n")
print(len(expressions), "expressions,", sum(e["text"] is None for e in expressions), "refused;", len(line_ends), "line ends")
