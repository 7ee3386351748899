"""Writes template_cases.json: what jinja2 renders for small templates, set up as transformers' apply_chat_template does.

    pip install jinja2 && python3 template_cases.py > template_cases.json
"""

import datetime
import json

import jinja2
import jinja2.ext
from jinja2.sandbox import ImmutableSandboxedEnvironment

NOW = datetime.datetime(2025, 3, 7, 9, 5)
VARS = {
    "messages": [
        {"role": "system", "content": " Be brief.\n"},
        {"role": "user", "content": "Héllo <b>'\"&</b> 東京 😀"},
        {"role": "assistant", "content": None, "tool_calls": [{"function": {"name": "f", "arguments": {"b": 1, "a": [1.5, True, None]}}}]},
        {"role": "tool", "content": [{"type": "text", "text": "x"}], "items": 3},
    ],
    "s": "a,b,,c", "e": "", "z": None, "t": True, "f": False, "n": 7, "m": -7, "x": 2.5, "big": 1e20, "small": 1e-7,
    "l": [3, 1, 2], "w": ["b", "A", "c", "a"], "d": {"b": 1, "A": 2, "c": {"k": "v"}, "items": 5},
    "q": "it's", "qq": 'say "it\'s"\\\n\t\x00\x7f\u200b\xa0é', "ws": " \t\n x y \x1f\u3000",
    "think": "<think>\nfirst\n</think>\n\nanswer</think>!", "lines": "a\nb\r\nc\rd\n\ne\n",
}

EXPRESSIONS = """
z ; t ; f ; n ; x ; big ; small ; 1e16 ; 123456789012345.0 ; 0.1 + 0.2 ; 1e15 ; 100000.0 * 10 ; -0.0 ; 5e-5 ; 0.0001
l ; d ; [z, t, x, 'a', q, qq] ; {'a': [1, {'b': none}], 1: 2, none: 3} ; messages[3] ; [] ; {} ; [[]] ; qq ; [e]
n / 2 ; n // 2 ; m // 2 ; m % 3 ; n % -3 ; -7.5 // 2 ; -7.5 % 2 ; 2 ** 10 ; 2 ** -1 ; 2.0 ** 3 ; 7 / 7 ; n - x ; n * 'ab' ; 'ab' * 3 ; [1] * 3 ; 'a' * -1 ; t + 1 ; - n ; -x ; 1 / 0 ; 1 + 'a' ; 'a' + 1 ; 'a' - 'b' ; z + 1
'a' ~ 1 ~ none ~ true ~ 1.0 ~ [1, 'b'] ~ undefinedvar ; 1 + 2 ~ 3 ; 2 * 3 ~ 'x' ; 'a' 'b' 'c' ; '%s-%d-%5.2f|%-5s|%05d|%x|%%' % ('a', 3, 2.5, 'b', 42, 255) ; '%s' % n ; '%(b)s' % d ; '%d' % 'x' ; '%s %s' % 'a' ; '%5s|%r|%+d|%e|%g|%g' % ('ab', q, 3, 12345.678, 1e-10, 100000.0)
1 == 1.0 ; 1 == true ; '1' == 1 ; none == false ; [1] == [1.0] ; {'a': 1} == {'a': 1.0} ; undefinedvar == undefinedvar2 ; 'a' < 'b' ; 'a' < 1 ; [1, 2] < [1, 3] ; 1 < 2 < 3 ; 1 < 3 < 2 ; 1 < 2 > 0 ; z < 1 ; undefinedvar < 1 ; 'Z' < 'a' ; 'é' > 'z'
'a' in 'abc' ; '' in 'abc' ; 1 in l ; 4 not in l ; 'b' in d ; 'zz' in d ; 1 in 'abc' ; 'a' in undefinedvar ; 1 in n ; none in [none]
not t ; not e ; t and 'x' ; f or 'y' ; e or z or 'k' ; t and e ; 'a' if t ; 'a' if f ; 'a' if f else 'b' ; ('a' if f) is defined ; 1 if n > 3 and not f else 2
undefinedvar ; undefinedvar.x ; undefinedvar['x'] ; d.nope ; d.nope.x ; d['nope'] is defined ; d.c.k ; d['c']['k'] ; d['items'] ; messages[0].content[0] ; messages[-1].role ; messages[9] ; messages[9].role ; l[0] ; l[-1] ; l[5] ; l['x'] ; 'abc'[1] ; 'abc'[-1] ; 'abc'[9] ; n.x ; n[0] ; z.x ; s.x ; l.x ; ''.__class__ ; ''.__class__.__mro__ ; d.__class__ ; l.0 ; messages.0.role
l[1:] ; l[:-1] ; l[::-1] ; l[::2] ; l[5:] ; l[-2:] ; l[1:2:1] ; s[1:3] ; s[::-1] ; s[-3:] ; s[:100] ; s[3:1] ; '東京都'[1:] ; '東京都'[::-1] ; l[::0] ; l[-1:0:-1] ; l[none:2] ; l[true:] ; messages[1:]|length ; n[1:] ; z[1:] ; undefinedvar[1:] ; l[10:0:-2] ; l[-10:10]
s.split(',') ; s.split(',', 1) ; s.rsplit(',', 1) ; ws.split() ; ' a b  c '.split(none, 1) ; ' a b  c '.rsplit(none, 1) ; ''.split() ; ''.split(',') ; 'a'.split('') ; s.split(',')[-1] ; s.split(sep=',') ; s.split(',', maxsplit=2) ; think.split('</think>')[-1].lstrip('\\n') ; think.split('</think>')[0].rstrip('\\n').split('<think>')[-1] ; ' a  b '.split(' ') ; ' a b '.split(none, 0) ; ' a b '.rsplit(none, 0)
ws.strip() ; ws.lstrip() ; ws.rstrip() ; 'xxaxx'.strip('x') ; 'xyaxy'.lstrip('yx') ; 'a'.strip('a') ; 'a\\n'.rstrip('\\n') ; 'abc'.strip(none) ; ws|trim ; 'xax'|trim('x') ; 'abab'.removeprefix('ab') ; 'abab'.removesuffix('ab') ; 'a'.removeprefix('b')
s.replace(',', ';') ; s.replace(',', ';', 1) ; 'aaa'.replace('aa', 'b') ; 'ab'.replace('', '-') ; 'ab'|replace('', '-') ; s|replace(',', ';', 2) ; s.replace(',', '') ; 'a'.replace('a', 'aa', -1) ; 'aaa'.replace('a', 'b', 0) ; n|replace(7, 8)
s.startswith('a') ; s.startswith(('x', 'a')) ; s.endswith('c') ; s.endswith('c', 3) ; s.startswith('b', 2) ; s.startswith('') ; s.startswith(1) ; s.find('b') ; s.find('zz') ; s.rfind(',') ; s.index('b') ; s.index('zz') ; s.count(',') ; 'aaa'.count('aa') ; 'abc'.count('') ; '東京都京'.find('京') ; '東京都京'.rfind('京') ; s.find(',', 2) ; s.find(',', -3) ; s.count(',', 2, 4) ; s.find('a', 1) ; s.find('', 100)
'héLLo wörld'.upper() ; 'HÉLLO'.lower() ; 'ΑΣ ΣΑΣ'.lower() ; 'straße'.upper() ; 'straße'.casefold() ; 'hello wORLD it\\'s'.title() ; 'hELLO wORLD'.capitalize() ; 'aBc'.swapcase() ; 'ß'.capitalize() ; "they're bill's"|title ; 'héLLo'|capitalize ; 'aBc'|upper ; 'aBc'|lower ; n|upper
'abc'.isalpha() ; 'ab1'.isalnum() ; '12'.isdigit() ; ''.isdigit() ; '1.2'.isdigit() ; 'AB'.isupper() ; 'A1'.isupper() ; '1'.isupper() ; 'ab'.islower() ; ' \\n'.isspace() ; ''.isspace() ; 'é'.isascii() ; ''.isascii() ; '½'.isnumeric() ; '12'.isdecimal() ; '½'.isdecimal()
'a'.center(5, '*') ; 'ab'.center(5) ; 'abc'.center(6, '-') ; 'a'.ljust(3) ~ '|' ; 'a'.rjust(3, '.') ; '42'.zfill(5) ; '-42'.zfill(5) ; 'abc'.zfill(2) ; 'a'.center(4)|length ; 'x'|center(4) ~ '|' ; 'a\\tb'.expandtabs(4) ; '\\ta'.expandtabs()
lines.splitlines() ; lines.splitlines(true) ; ''.splitlines() ; 'a'.splitlines() ; 'a=b=c'.partition('=') ; 'a=b=c'.rpartition('=') ; 'abc'.partition('=') ; 'abc'.rpartition('=') ; 'a'.partition('')
', '.join(w) ; ''.join([]) ; '-'.join('abc') ; ','.join([1]) ; w|join(', ') ; l|join('-') ; l|join ; [z, t, 1.0]|join(' ') ; messages|join('; ', attribute='role') ; 'abc'|join(',') ; undefinedvar|join
'{} {}'.format('a', 1) ; '{1} {0}'.format('a', 'b') ; '{x}'.format(x=5) ; '{{}} {}'.format(1) ; '{:>5}|{:<5}|{:^5}|{:*^7}'.format('a', 'b', 'c', 'd') ; '{:05d} {:+d} {:,} {:x} {:#x} {:08.3f}'.format(42, 3, 1234567, 255, 255, 3.14159) ; '{:.2f} {:.3} {:e} {:%}'.format(2.675, 'abcdef', 12345.678, 0.5) ; '{!r} {!s}'.format('a', 'b') ; '{}'.format(none) ; '{}'.format([1, 'a']) ; '{}'.format() ; '{:d}'.format('a') ; '{'.format() ; '}'.format() ; '{:.3g} {:g} {:g}'.format(1234.5, 1e10, 0.0001) ; '{:10}|{:10}'.format(1, 'a') ; '{:<10}|'.format(1.5) ; '{:b} {:o} {:X}'.format(5, 8, 255) ; '{:_}'.format(1234567) ; '%s and %s'|format('a', 'b') ; '{}'.format(t) ; '{:5}|'.format(true) ; '{:=+6}'.format(5)
d.get('b') ; d.get('nope') ; d.get('nope', 'x') ; d.keys()|list ; d.values()|list ; d.items()|list ; d|items|list ; d|list ; d|length ; d.keys()|length ; d.pop('b') ; d.update({}) ; l.append(1) ; l.index(1) ; l.index(9) ; l.count(1) ; d.copy() == d ; messages[2].tool_calls[0].function.arguments ; d.get(none) ; z|items|list ; undefinedvar|items|list ; d.get('c').get('k') ; d.get('c', {}).get('zz', [])
d|tojson ; messages|tojson ; messages[2]|tojson(indent=2) ; qq|tojson ; "<a>&'"|tojson ; l|tojson(indent=4) ; []|tojson(indent=2) ; {}|tojson(indent=2) ; {'a': []}|tojson(indent=1) ; d|tojson(sort_keys=true) ; d|tojson(separators=(',', ':')) ; [1.0, 1e20, 1e-7, 0.1, true, none, big]|tojson ; 'é東😀\\x7f'|tojson(ensure_ascii=true) ; {1: 'a', true: 'b', none: 'c', 1.5: 'd'}|tojson ; undefinedvar|tojson ; {'a': undefinedvar}|tojson ; l|tojson(indent='--') ; l|tojson(indent=0) ; z|tojson ; n|tojson ; d|tojson(indent=2, separators=(',', ': ')) ; [[1, [2]], {'a': {'b': 3}}]|tojson(indent=2) ; '\\u2028\\b\\f'|tojson
l|length ; s|length ; d|count ; '東京'|length ; undefinedvar|length ; n|length ; z|length ; l|first ; l|last ; []|first ; 'abc'|first ; 'abc'|last ; d|first ; undefinedvar|first ; l|max ; l|min ; []|max ; w|max ; w|min ; w|max(case_sensitive=true) ; l|sum ; []|sum ; [1.5, 2]|sum ; messages|map(attribute='role')|list ; messages|map(attribute='nope')|list ; messages|map(attribute='nope', default='-')|list ; w|map('upper')|list ; ws.split()|map('replace', 'x', 'y')|list ; [[1, 2], [3]]|map('join', '-')|list ; messages|map(attribute='tool_calls.0.function.name', default='-')|list ; w|map('nope')|list
l|sort ; l|sort(reverse=true) ; w|sort ; w|sort(case_sensitive=true) ; messages|sort(attribute='role')|map(attribute='role')|list ; [1, 'a']|sort ; d|dictsort ; d|dictsort(true) ; {'b': 1, 'a': 2}|dictsort(by='value') ; {'b': 1, 'a': 2}|dictsort(reverse=true) ; w|unique|list ; [1, 1, 2, 1.0]|unique|list ; l|reverse|list ; 'abc'|reverse ; l|list ; 'abc'|list ; range(3)|list ; range(1, 4)|list ; range(5, 0, -2)|list ; range(0)|list ; range(1, 2, 0)|list ; range(1000000)|list
messages|selectattr('role', 'equalto', 'user')|list|length ; messages|selectattr('role', '==', 'user')|map(attribute='content')|first ; messages|rejectattr('role', 'in', ['user', 'tool'])|map(attribute='role')|join(',') ; messages|selectattr('tool_calls')|list|length ; messages|selectattr('tool_calls', 'defined')|list|length ; [0, 1, '', 'a', none]|select|list ; [0, 1, 2]|reject('odd')|list ; [1, 2, 3]|select('gt', 1)|list ; [1, 'a']|select('string')|list ; messages|groupby('role')|map('first')|list ; [{'a': 'x', 'v': 1}, {'a': 'y', 'v': 2}, {'a': 'x', 'v': 3}]|groupby('a')|length
[1, 2, 3, 4, 5]|batch(2)|list ; [1, 2, 3]|batch(2, 0)|list ; [1, 2, 3, 4, 5]|slice(2)|list ; [1, 2, 3, 4, 5]|slice(3, 'x')|list
undefinedvar|default('x') ; z|default('x') ; z|default('x', true) ; e|d('x', true) ; e|default('x') ; d.nope|default('y') ; t|default(false) ; undefinedvar|default
'42'|int ; 'x'|int ; '4.7'|int ; 4.7|int ; 'ff'|int(base=16) ; '0x1f'|int(0, 16) ; 'x'|int(5) ; z|int ; '1.5'|float ; 'x'|float ; 'inf'|float ; t|int ; ' 42 '|int ; '1_000'|int ; 2.5|round ; 3.5|round ; 2.675|round(2) ; 7|round ; 42.55|round(1, 'floor') ; 42.51|round(1, 'ceil') ; -3|abs ; -3.5|abs ; 1234|round(-2) ; n|string ; x|string ; z|string ; l|string ; t|string ; n|string|length ; 'a'|abs
'a\\nb\\n\\nc'|indent ; 'a\\nb'|indent(2) ; 'a\\nb'|indent(2, true) ; 'a\\n\\nb'|indent(2, blank=true) ; 'a\\nb'|indent('> ') ; 'a b c d e'|truncate(5, true, '', 0) ; 'hello big world out there'|truncate(12) ; 'hello big world'|truncate(9, false, '..', 0) ; 'short'|truncate(9) ; "it's two  words"|wordcount ; "<a href='x'>&\\"</a>"|e ; '<b>'|escape ; '<b>'|safe ; 'a b/é?&'|urlencode ; 'x'|nope ; z|trim ; n|trim
t is boolean ; n is boolean ; n is integer ; t is integer ; x is float ; n is number ; t is number ; 'a' is number ; s is string ; n is string ; l is sequence ; s is sequence ; d is sequence ; n is sequence ; l is iterable ; s is iterable ; n is iterable ; undefinedvar is iterable ; d is mapping ; l is mapping ; z is none ; e is none ; undefinedvar is none ; undefinedvar is defined ; z is defined ; undefinedvar is undefined ; t is true ; 1 is true ; f is false ; n is odd ; n is even ; n is divisibleby 7 ; n is divisibleby(2) ; 'a' is in ['a'] ; n is eq 7 ; n is ne 7 ; n is gt 3 ; n is lessthan 3 ; 'abc' is lower ; 'ABC' is upper ; 'AbC' is lower ; range is callable ; n is callable ; z is sameas none ; 1 is sameas true ; n is not none ; n is not string and l is iterable ; 'tojson' is filter ; 'nope' is filter ; 'defined' is test ; n is nope ; d.items is callable ; undefinedvar is sequence ; z is iterable ; undefinedvar is mapping ; messages[0].content is not defined
dict(a=1, b='x') ; (1, 2) ; (1,) ; () ; [(1, 'a')] ; (1, 2) == [1, 2] ; (1, 2) + (3,) ; (1, 2) + [3] ; (1, 2, 3)[1:] ; (1, 2)|tojson ; '%s' % [1] ; '%s' % (1,) ; 'ǆ'|capitalize ; 'ﬀ'.title() ; 250|round(-2) ; 350|round(-2) ; -250|round(-2) ; 251|round(-2) ; 7|round(1, 'ceil') ; dict({'a': 1}, b=2) ; dict([('a', 1)]) ; namespace(a=1).a ; namespace(a=1).b ; raise_exception('no') ; lipsumx() ; n() ; d.nope() ; s.nope() ; undefinedvar() ; range() ; dict(**d) ; z.get('x') ; {'a': 1, 'a': 2} ; {[]: 1} ; (1, 2)[0] ; [1, 2,] ; {'a': 1,} ; [z]|first ; 1_000 ; 0.5 ; 'a\\tb\\\\n' ; "\\x41\\u00e9" ; 2 if t else 3 if f else 4 ; (1 + 2) * 3 ; 10 - 2 - 3 ; 2 ** 3 ** 2 ; -2 ** 2 ; not 1 == 2 ; 1 in [1] == true ; 'a' ~ ('b' if f) ; l + [4] ; l + 'a' ; [1] + (2,)|list
strftime_now('%Y-%m-%d') ; strftime_now('%d %b %Y') ; strftime_now('%B') ; strftime_now('%A') ; strftime_now('%H:%M') ; strftime_now('%-d') ; strftime_now('%j') ; strftime_now('%a %b %c %d %e %f %F %D %G %g %H %I %j %k %l %m %M %n %p %P %r %R %S %T %t %u %U %V %w %W %x %X %y %Y %Z %z %% %C %h') ; strftime_now('%-m/%-d/%y %-I:%M %p') ; strftime_now('%^a %^b %_d %-j %-H') ; strftime_now('') ; strftime_now('é %Y 東')
"""

TEMPLATES = [
    "{% for m in messages %}{{ loop.index }}{{ loop.index0 }}{{ loop.first }}{{ loop.last }}{{ loop.length }}{{ loop.revindex }}{{ loop.revindex0 }}{{ m.role }} {% endfor %}",
    "{% for m in messages %}{{ loop.previtem.role if loop.previtem is defined }}>{{ loop.nextitem.role if not loop.last }};{% endfor %}",
    "{% for x in l if x > 1 %}{{ x }}/{{ loop.length }},{% else %}none{% endfor %}",
    "{% for x in [] %}a{% else %}empty{% endfor %}{% for x in undefinedvar %}a{% else %}undef{% endfor %}",
    "{% for x in none %}a{% endfor %}", "{% for x in n %}a{% endfor %}",
    "{% for k, v in d.items() %}{{ k }}={{ v }};{% endfor %}{% for k in d %}{{ k }}{% endfor %}{% for c in 'äb' %}[{{ c }}]{% endfor %}",
    "{% for k, v in d|dictsort %}{{ k }}={{ v }};{% endfor %}", "{% for a, b in l %}{% endfor %}",
    "{% for (a, b), c in [((1, 2), 3)] %}{{ a }}{{ b }}{{ c }}{% endfor %}",
    "{% for x in range(6) %}{% if x == 1 %}{% continue %}{% endif %}{% if x == 4 %}{% break %}{% endif %}{{ x }}{% endfor %}",
    "{% for x in l %}{% for y in l %}{{ loop.index }}{% if y == 1 %}{% break %}{% endif %}{% endfor %}|{{ loop.index }};{% endfor %}",
    "{% for x in l %}{% set outer = loop %}{% for y in l %}{{ outer.index }}{{ loop.index }} {% endfor %}{% endfor %}",
    "{% for x in l %}{{ loop.cycle('a', 'b') }}{{ loop.changed(x > 1) }}{% endfor %}",
    "{% for x in [[1, [2]], [3]] recursive %}[{% if x is iterable %}{{ loop(x) }}{% else %}{{ x }}@{{ loop.depth }}{% endif %}]{% endfor %}",
    "{% set a = 1 %}{% for x in l %}{% set a = a + x %}{{ a }},{% endfor %}{{ a }}",
    "{% set ns = namespace(a=1, b='x') %}{% for x in l %}{% set ns.a = ns.a + x %}{% endfor %}{{ ns.a }}{{ ns.b }}{{ ns['a'] }}{{ ns.c is defined }}",
    "{% if t %}{% set y = 1 %}{% endif %}{{ y }}{% if f %}{% set k = 1 %}{% endif %}{{ k is defined }}",
    "{% set a, b = 1, 2 %}{{ a }}{{ b }}{% set c = 1, 2 %}{{ c }}", "{% set a, b = [1] %}", "{% set x.y = 1 %}", "{% set n.y = 1 %}",
    "{% set c %}  <{{ n }}>\n{% endset %}[{{ c|trim }}]", "{% set c | upper | trim %} ab {% endset %}[{{ c }}]",
    "{% filter upper %}a{{ s }}{% endfilter %}", "{% filter replace('a', 'b') | trim %} aXa {% endfilter %}",
    "{% with a = 1, b = 2 %}{{ a }}{{ b }}{% endwith %}{{ a is defined }}", "{% with a = 1 %}{% with a = 2, b = a %}{{ b }}{% endwith %}{% endwith %}",
    "{% macro f(x, y=2, z='q') %}({{ x }}{{ y }}{{ z }}){% endmacro %}{{ f(1) }}{{ f(1, 3) }}{{ f(1, z='r') }}{{ f(x=9) }}{{ f() }}{{ f(1)|length }}",
    "{% macro f(x) %}{{ x }}{% endmacro %}{{ f(1, 2) }}", "{% macro f(x) %}{{ x }}{% endmacro %}{{ f(y=2) }}", "{% macro f(x) %}{{ x }}{% endmacro %}{{ f(1, x=2) }}",
    "{% macro f(x) %}{% if x > 0 %}{{ x }}{{ f(x - 1) }}{% endif %}{% endmacro %}{{ f(5) }}",
    "{% macro f() %}{{ v }}{% endmacro %}{% set v = 1 %}{{ f() }}{% set v = 2 %}{{ f() }}",
    "{% set v = 1 %}{% macro f() %}{% set v = 3 %}{{ v }}{% endmacro %}{{ f() }}{{ v }}",
    "{% macro f(v=n) %}{{ v }}{% endmacro %}{% for n in l %}{{ f() }}{{ f(n) }} {% endfor %}",
    "{% macro f() %}<{{ caller() }}>{% endmacro %}{% call f() %}in{% endcall %}", "{% macro f(x) %}<{{ caller(x, 2) }}>{% endmacro %}{% call(a, b) f(1) %}{{ a }}{{ b }}{% endcall %}",
    "{% macro f() %}{{ varargs }}{{ kwargs }}{% endmacro %}{{ f(1, 2, a=3) }}", "{% macro f(x) %}{{ x is defined }}{% endmacro %}{{ f() }}{{ f(none) }}",
    "{% macro f() %}a{% endmacro %}{{ f() ~ f() }}{{ f.name }}{% set g = f() %}{{ g == 'a' }}",
    "{% macro f(x) -%}\n  {{ x }}\n{%- endmacro %}[{{ f('a') }}]",
    "{% for x in l %}{% macro g() %}{{ x }}{% endmacro %}{{ g() }}{% endfor %}",
    "a\n{% if t %}\n  b\n{% endif %}\nc\n", "a\n  {%- if t %}  b  {%- endif -%}  \nc\n\n", "  {% if t %}x{% endif %}  \n  {{ n }}  \n", "{# c #}\na{#- d -#}\n b", "a {#- x #} b\n  {# y #}\nc",
    "{{ 'a' -}}   \n b {{- 'c' }}\n", "{%+ if t %}a{%+ endif %}", "  {%+ if t %}a{% endif +%}\nb", "x\n\n{%- if t -%}\n\n y \n\n{%- endif -%}\n\nz\n\n", "{% raw %}{{ a }}{% if %}{% endraw %}\nb", "{%- raw -%}  {{ a }}  {%- endraw -%} b",
    "{{ '{{' }}{{ '%}' }}", "a\n", "a\n\n", "\na", "\r\na\r\n{% if t %}\r\nb{% endif %}\r\n", "\t{% set a = 1 %}\t\nb", "{%if t%}x{%else%}y{%endif%}", "{%- if f -%}a{%- elif n == 7 -%}b{%- elif t -%}c{%- else -%}d{%- endif -%}",
    "{% if f %}a{% elif f %}b{% else %}c{% endif %}", "{{ [1,2,3][1:]|join }}{{ ({'a': 1}).a }}{{ {'a': {'b': 2}}['a'].b }}",
    "{%- generation %}a{% endgeneration %}\n", "{% if t %}", "{% endif %}", "{{ 1", "{{ }}", "{% nope %}", "{% for x in %}", "{{ 'a }}", "{% break %}", "{{ a b }}",
    "{% set messages = messages[1:] %}{{ messages|length }}", "{% set l = l + [9] %}{{ l }}", "{% set ns = namespace(l=[]) %}{% for x in l %}{% set ns.l = ns.l + [x * 2] %}{% endfor %}{{ ns.l }}",
    "{% set j = joiner(', ') %}{% for x in l %}{{ j() }}{{ x }}{% endfor %}", "{% set c = cycler('a', 'b') %}{{ c.next() }}{{ c.next() }}{{ c.next() }}{{ c.current }}",
    "{{ messages[1]['content'] + messages[0]['content'] }}", "{{ messages[2].content + 'x' }}", "{{ messages[2].content ~ 'x' }}", "{{ (messages[0].content or '')|trim }}", "{{ messages[2].content if messages[2].content else '' }}",
    "{% for m in messages[::-1] %}{{ loop.index0 }}{{ m.role }}{% endfor %}", "{% for m in messages if m.role == 'user' or m.role == 'tool' %}{{ m.role }}{{ loop.index }}{% endfor %}",
    "{% for tool_call in messages[2].tool_calls %}{% set tool_call = tool_call.function %}{{ tool_call.name }}{{ tool_call.arguments | tojson }}{% endfor %}",
    "{{ loop }}", "{% for x in l %}{% endfor %}{{ loop is defined }}", "{{ true }}{{ True }}{{ none }}{{ None }}{{ false }}{{ False }}",
    "{% for x in l %}{% if loop.first %}{% set y = x %}{% endif %}{{ y is defined }}{% endfor %}",
    "{% set x = 1 %}{% for i in [1] %}{% if t %}{% set x = 2 %}{% endif %}{{ x }}{% endfor %}{{ x }}",
    "{% macro f(x, y) %}{{ x }}{{ y }}{% endmacro %}{{ f(*[1, 2]) }}{{ f(**{'x': 3, 'y': 4}) }}",
    "{% for a in l recursive %}{{ a }}{% endfor %}{% for k, v in {'x': 1}|items %}{{ k }}{{ v }}{% endfor %}",
    "{% set items = d.items() %}{% for k, v in items %}{{ k }}{% endfor %}{% for k, v in d|items if v is number %}{{ k }}{% endfor %}",
]


def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
    return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def raise_exception(message):
    raise jinja2.exceptions.TemplateError(message)


class Generation(jinja2.ext.Extension):
    """Stands for the tag that transformers adds: prints its body."""

    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        return jinja2.nodes.If(jinja2.nodes.Const(True), body, [], [], lineno=line)


def main():
    env = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[Generation, jinja2.ext.loopcontrols])
    env.filters["tojson"] = tojson
    env.globals["raise_exception"] = raise_exception
    env.globals["strftime_now"] = NOW.strftime
    sources = ["{{ " + e.strip() + " }}" for line in EXPRESSIONS.strip().splitlines() for e in line.split(" ; ")]
    cases = []
    for source in sources + TEMPLATES:
        try:
            cases.append([source, env.from_string(source).render(**VARS)])
        except Exception as error:
            cases.append([source, None, f"{type(error).__name__}: {error}"])
    directives = "%a %A %b %B %c %C %d %D %e %F %g %G %h %H %I %j %k %l %m %M %p %P %r %R %S %T %u %U %V %w %W %x %X %y %Y %-d %-m %-j %-I %_d %^a %Q"
    days = [datetime.datetime(y, m, d, h, 59, 7) for y in (1970, 1999, 2000, 2020, 2023, 2024, 2025, 2026, 2100) for m, d, h in
            ((1, 1, 0), (1, 2, 1), (1, 3, 11), (1, 4, 12), (1, 7, 13), (2, 28, 23), (3, 1, 9), (6, 30, 10), (10, 9, 12), (12, 28, 0), (12, 29, 5), (12, 30, 6), (12, 31, 23))]
    dates = [[d.isoformat(), d.strftime(directives)] for d in days]
    print(json.dumps({"directives": directives, "dates": dates}, ensure_ascii=True)[:-1] + ",")
    print(json.dumps({"jinja2": jinja2.__version__, "now": NOW.isoformat(), "vars": VARS}, ensure_ascii=True)[1:-1] + ', "cases": [')
    print(",\n".join(json.dumps(case, ensure_ascii=True) for case in cases))
    print("]}")


if __name__ == "__main__":
    main()
