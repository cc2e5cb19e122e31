"""Users' templates run no code and either give text within their budget or raise a one-line error."""

import re
import time

import bounded
import pytest
from bounded import outcome
from hypothesis import given
from hypothesis import strategies as st

from hgpo_envs.errors import InputError
from hgpo_envs.memory import Memory
from hgpo_envs.prompts import FIELDS, PromptTemplate, load_template
from hgpo_envs.sandbox import BUDGET, FILTERS, METHODS


def render(text, observation="You see a fridge 1.", actions=("go to fridge 1", "help", "look")):
    memory = Memory(2)
    memory.store("o1", "a1")
    memory.store("o2", "a2")
    return PromptTemplate(text, "mine").render(
        task="cool the mug.",
        observation=observation,
        admissible_actions=list(actions),
        memory=memory,
        max_steps=50,
        action_format="command",
    )


def refused(text, **fields):
    with pytest.raises(InputError, match=r"^prompt template mine") as caught:
        render(text, **fields)
    line = str(caught.value)
    assert "\n" not in line
    assert len(line) < 500
    line.encode()
    return line


def all_refused(templates):
    return all(refused(text) for text in templates)


USEFUL = [
    ("{{ step }}/{{ max_steps }} {{ task | upper }}", "3/50 COOL THE MUG."),
    (
        "{% for a in admissible_actions %}{{ loop.index }}/{{ loop.length }} {{ a }}\n{% endfor %}",
        "1/3 go to fridge 1\n2/3 help\n3/3 look",
    ),
    ("{{ admissible_actions | reject('equalto', 'help') | join(', ') }}", "go to fridge 1, look"),
    ("{{ admissible_actions | map('upper') | sort | list }}", "['GO TO FRIDGE 1', 'HELP', 'LOOK']"),
    ("{{ admissible_actions | listed('help') }}", "'go to fridge 1',\n 'look'"),
    ("{% for n, o, a in pairs %}{{ n }}{{ o }}{{ a }};{% endfor %}", "1o1a1;2o2a2;"),
    ("{% for pair in pairs if pair.number > 1 %}{{ pair.action }}{% else %}none{% endfor %}", "a2"),
    ("{% macro m(x, y=2) %}[{{ x }}{{ y }}]{% endmacro %}{{ m(1) ~ m(3, y=4) }}", "[12][34]"),
    ("{% macro m() %}<{{ caller() }}>{% endmacro %}{% call m() %}x{% endcall %}", "<x>"),
    (
        "{% set ns = namespace(n=0) %}{% for i in [1, 21] %}{% set ns.n = ns.n + i %}{% endfor %}{{ ns.n }}",
        "22",
    ),
    ("{% set x %}a{{ step }}{% endset %}{{ x * 1 if false else x }}", "a3"),
    (
        "{% set j = joiner('; ') %}{% for a in admissible_actions %}{{ j() }}{{ a }}{% endfor %}",
        "go to fridge 1; help; look",
    ),
    ("{% set c = cycler('a', 'b') %}{{ c.next() }}{{ c.next() }}{{ c.next() }}", "aba"),
    ("{% for i in range(3) %}{{ loop.cycle('x', 'y') }}{% endfor %}", "xyx"),
    ("{{ observation[:7] ~ '…' }} {{ (2 ** 10 - 24) // 10 }} {{ 7 % 4 }} {{ 1 / 4 }}", "You see… 100 3 0.25"),
    ("{{ observation.split(' ')[-1].rstrip('.') }}{{ 'x'.center(5) }}|", "1  x  |"),
    ("{{ {'a': 1}.items() | list }}{{ dict(b=2) }}{{ (1, 2) + (3,) }}", "[('a', 1)]{'b': 2}(1, 2, 3)"),
    ("{% filter upper %}{{ task }}{% endfilter %}{% with t = 1 %}{{ t }}{% endwith %}", "COOL THE MUG.1"),
    (
        "{{ 'yes' if 'fridge' in observation and step >= 3 else 'no' }}{{ {'k': '<&>'} | tojson }}",
        'yes{"k": "\\u003c\\u0026\\u003e"}',
    ),
    (
        "{{ observation | truncate(9) }}|{{ '1 2' | wordcount }}|{{ [3, 1] | sum }}|{{ 2.567 | round(1) }}",
        "You...|2|4|2.6",
    ),
    ("{{ 'a' is in 'abc' }} {{ nothing | default('d') if false else 'e' }}".replace("nothing", "task"), "True e"),
    ("{# a comment #}{{ '<b>' | e }}{{ 'x' | indent(2, first=true) }}", "&lt;b&gt;  x"),
]


@pytest.mark.parametrize(("text", "expected"), USEFUL)
def test_ordinary_templates(text, expected):
    assert render(text) == expected
    assert PromptTemplate(text, "mine", trusted=True).fingerprint == PromptTemplate(text, "mine").fingerprint


@pytest.mark.parametrize("benchmark", ["ALFWorld", "WebShop", "SomethingElse"])
def test_the_packages_templates_are_the_same_in_the_sandbox(benchmark):
    own = load_template(None, benchmark)
    for action_format in ("command", "response", "number"):
        for steps in (0, 3):
            memory = Memory(2)
            for n in range(steps):
                memory.store(f"o{n}", f"a{n}")
            fields = {"task": "t", "observation": "x\u2028 <&>", "admissible_actions": ["a", "help"], "memory": memory}
            same = [
                template.render(**fields, max_steps=5, action_format=action_format)
                for template in (own, PromptTemplate(own.text, own.name))
            ]
            assert same[0] == same[1]


CODE = [
    "{{ cycler.__init__.__globals__.os.popen('touch MARK') }}",
    "{{ ''.__class__.__mro__[1].__subclasses__() }}",
    "{{ ''['__class__'] }}",
    "{{ ''|attr('__class__') }}",
    "{{ [''] | map(attribute='__class__') | join }}",
    "{{ ([''] | map(attribute='__class__') | first).__mro__ }}",
    "{{ [''] | map('attr', '__class__') | list }}",
    "{{ ([['a', 1]] | groupby('__class__') | first).grouper.__mro__ }}",
    "{{ [''] | sort(attribute='__class__.__mro__') | first }}{{ [''] | map(attribute='__class__.__mro__') | join }}",
    "{{ '{0.__class__}'.format('') }}",
    "{{ '{x.__class__}'.format_map({'x': 1}) }}",
    "{{ ('{0.__class__}'.format)(1) }}",
    "{{ '%s' | format(1) }}",
    "{{ self._TemplateReference__context }}",
    "{{ lipsum.__globals__ }}",
    "{{ joiner.__init__.__globals__ }}",
    "{{ namespace.__init__.__globals__ }}",
    "{{ range.__class__ }}",
    "{{ dict.__base__ }}",
    "{% macro m() %}{% endmacro %}{{ m.__call__.__globals__ }}",
    "{% macro m() %}{% endmacro %}{{ m._func.__globals__ }}",
    "{% macro m() %}{% endmacro %}{{ m._environment }}",
    "{% for x in [1] %}{{ loop.__init__ }}{{ loop._iterator.gi_frame }}{% endfor %}",
    "{{ (admissible_actions | map('upper')).gi_frame.f_back }}",
    "{{ pairs[0]._replace(action='x') }}",
    "{{ admissible_actions.append('x') }}",
    "{{ admissible_actions.clear() }}",
    "{% include '/etc/passwd' %}",
    "{% import 'os' as os %}",
    "{% from 'os' import popen %}",
    "{% extends 'base' %}",
    "{% block b %}{{ self.b() }}{% endblock %}",
    "{% autoescape true %}x{% endautoescape %}",
    "{% for x in pairs recursive %}{{ loop(pairs) }}{% endfor %}",
    "{{ task.encode() }}",
    "{{ (1).to_bytes(1000000000, 'big') }}",
    "{{ (1).bit_length() }}",
    "{{ dict.fromkeys(range(10)) }}",
    "{{ ' budget ' }}{{ budget }}",
]


@pytest.mark.parametrize("text", CODE)
def test_templates_run_no_code(text, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    actions = ["look"]
    refused(text, actions=actions)
    assert not list(tmp_path.iterdir())
    assert actions == ["look"]


BIG = "{% set b = 'x'.center(1000000) %}"
COSTLY = [
    "{% for i in range(10**9) %}x{% endfor %}",
    "{{ range(10**9) | list }}",
    "{{ range(10**30) }}",
    "{{ range(100000) | map('center', 1000) | join }}",
    "{% for a in range(9999) %}{% for b in range(9999) %}{% endfor %}{% endfor %}",
    "{% for a in range(9999) %}{% for b in range(9999) %}{{ step }}{% endfor %}{% endfor %}",
    "{% set x %}{% for a in range(50000) %}" + "static text " * 100 + "{% endfor %}{% endset %}",
    "{{ 'a' * 10**9 }}",
    "{{ 10**9 * 'a' }}",
    "{{ [0] * 10**9 }}",
    "{{ (0,) * 10**9 }}",
    "{{ 10**10**10 }}",
    "{{ 10**(10**7) }}",
    "{{ 2.0 ** 99999 }}",
    "{{ '%1000000000d' % 1 }}",
    "{{ '%*d' % (1000000000, 1) }}",
    "{{ '{:1000000000d}'.format(1) }}",
    "{{ '{:{w}}'.format(1, w=10**9) }}",
    "{{ 'a' | center(10**9) }}",
    "{{ 'a'.center(10**9) }}{{ 'a'.ljust(10**9) }}",
    "{{ 'a'.zfill(10**9) }}",
    "{{ '\t'.expandtabs(10**9) }}",
    "{{ 'a\nb' | indent(10**9, first=true) }}",
    "{{ ('\n' * 3) }}{{ 'a\n' | indent('x' | center(10**6)) }}",
    BIG + "{{ b | replace(' ', b) }}",
    BIG + "{{ b.replace('', b) }}",
    BIG + "{{ b.join(b) }}",
    BIG + "{{ b | join(b) }}",
    BIG + "{{ [b, b, b, b, b, b, b, b, b, b] | join }}",
    BIG + "{{ [b, b, b, b, b, b, b, b, b, b] }}",
    BIG + "{% set l = [b, b, b, b, b, b, b, b, b] %}{% set m = [l, l, l, l, l, l, l] %}{{ [m, m, m, m, m] | tojson }}",
    BIG + "{% for i in range(100000) %}{% if b == b ~ 'x' %}{% endif %}{% endfor %}",
    BIG + "{% for i in range(100000) %}{% if 'yy' in b %}{% endif %}{% endfor %}",
    BIG + "{% for i in range(100000) %}{% set c = b[1:] %}{% endfor %}",
    BIG + "".join(f"{{% set c{i} = b[{i}:] %}}" for i in range(2000)),
    BIG + "{% set ns = namespace(x=b) %}{% for i in range(100) %}{% set ns.x = ns.x ~ ns.x %}{% endfor %}",
    BIG + "{% set ns = namespace(x=b) %}{% for i in range(100) %}{% set ns.x = ns.x + ns.x %}{% endfor %}",
    BIG + "{% set ns = namespace(x=[b]) %}{% for i in range(100) %}{% set ns.x = [ns.x, ns.x] %}{% endfor %}{{ ns.x }}",
    "{% set ns = namespace(x=7) %}{% for i in range(1000) %}{% set ns.x = ns.x * ns.x %}{% endfor %}",
    "{% set ns = namespace(x=7) %}{% for i in range(1000) %}{% set ns.x = ns.x + ns.x %}{% endfor %}",
    "{{ " + "9" * 2000 + " ** 200 }}",
    "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
    "{% macro m(n) %}{{ m(n - 1) ~ m(n - 1) if n else 'x' }}{% endmacro %}{{ m(60) }}",
    "{% macro m(n) %}{% if n %}{{ m(n - 1) }}{{ m(n - 1) }}{% endif %}{% endmacro %}{{ m(60) }}",
    "{% macro m() %}{{ caller() }}{% endmacro %}{% macro n() %}{% call m() %}{{ n() }}{% endcall %}{% endmacro %}{{ n() }}",  # noqa: E501
    "{{ [] | slice(10**9) | list }}",
    "{{ [1] | batch(10**9, 'x') | list }}",
    "{{ 1.5 | round(10**9, 'ceil') }}",
    "{{ 1.5 | round(10**6, 'floor') }}{{ 1.5 | round(10**6, 'floor') }}",
    "{{ {'a': 1} | tojson(indent=10**9) }}",
    "{{ '" + "a " * 30000 + "' | wordwrap(1, wrapstring='x' | center(100000)) }}",
    "{{ range(4000) | map('list') | sum(start=[]) }}",
    "{{ [[1]] | sum(start=[]) }}",
    "{{ 'x' | center(100000) | urlize }}",
    "{{ 10**9 | string | center(10**8) }}",
    "{{ range(100000) | map('string') | list | sort | unique | list | tojson }}",
    "{{ range(1000000) | list }}",
    "{% for i in range(100000) %}{{ admissible_actions | sort | join }}{% endfor %}",
    "{% set ns = namespace(l=[]) %}{% for i in range(100000) %}{% set ns.l = ns.l + [i] %}{% endfor %}{{ ns.l }}",
    "{{ '9' * 4000 }}{{ ('9' | center(5000)) | int }}",
    "{{ lipsum(n=10**9) }}",
    "{{ 'a' | random }}",
    "{% for i in range(10**6) %}{% endfor %}" * 50,
]


@pytest.mark.parametrize("text", COSTLY, ids=lambda text: re.sub(r"\W+", " ", text)[:40])
def test_costly_templates_raise_a_one_line_error(text):
    before = time.process_time()
    refused(text)
    assert time.process_time() - before < 10  # of the processor's, on a slow machine; each takes a tenth


UNCOMPILABLE = [
    "{{ " + "(" * 5000 + "1" + ")" * 5000 + " }}",
    "{{ " + "[" * 5000 + "]" * 5000 + " }}",
    "{{ " + "not " * 5000 + "1 }}",
    "{{ " + "1 + " * 5000 + "1 }}",
    "{{ 1 " + "| string " * 5000 + "}}",
    "{{ task" + ".a" * 5000 + " }}",
    "{% if 1 %}" * 500 + "{% endif %}" * 500,
    "{% for x in [1] %}" * 30 + "{% endfor %}" * 30,
    "{{ " + "9" * 5000 + " }}",
    "{{",
    "x" * (1 << 18),
]


@pytest.mark.parametrize("text", UNCOMPILABLE, ids=lambda text: text[:20])
def test_templates_that_cannot_be_compiled(text):
    refused(text)


def test_all_costly_templates_take_little_memory():
    """Also in sequence in one process."""
    imports = "sys.path[:0] = sys.argv[1:]; from test_sandbox import COSTLY, all_refused"
    folders = (__file__.rsplit("/", 1)[0], bounded.__file__.rsplit("/", 1)[0])
    line = outcome(imports, "assert all_refused(COSTLY)", *folders, megabytes=400, seconds=300)
    assert line == "accepted"  # that is, the assertion held


def test_the_output_is_bounded_by_the_budget():
    assert len(render("{{ 'x'.center(1000000, '.') }}" * 2)) == 2_000_000
    refused("{{ 'x'.center(1000000) }}" * 5)
    refused("{{ observation }}" * 9, observation="x" * (BUDGET // 8))


def test_errors_name_the_line():
    assert re.search("fails at line 2: .*by zero", refused("fine\n{{ 1 // 0 }}"))
    assert "fails at line 1: list object has no element 7" in refused("{{ pairs[7] }}x")
    assert "cannot use 'Include'" in refused("{% include 'x' %}")
    assert "join texts with ~" in refused("{{ 'a' + 1 }}")
    assert "add |list or |join" in refused("{{ admissible_actions | map('upper') }}")


def test_lone_surrogates_are_replaced_in_the_output():
    assert render(r"{{ 'a\ud800b' }}") == "a\ufffdb"


VALUES = """
    loop; caller; x; y; self; ''; 'a'; '\\ud800'; 0; 1; -1; 2.5; 10**9; 10**10**10; range(10**9); range(9); [];
    [1, 'a']; {}; {'a': pairs}; namespace(a=1); cycler(1); joiner(); dict; true; none; ' budget '; lipsum; range; (1,)
"""
OTHER_NAMES = "format attr random pprint __class__ __init__ items keys append _func xmlattr urlize wordwrap"
FRAGMENTS = st.sampled_from([*FIELDS, *(value.strip() for value in VALUES.split(";"))])
NAMES = st.sampled_from([*sorted(FILTERS), *sorted(METHODS[str]), *OTHER_NAMES.split(), " joined "])
OPERATORS = st.sampled_from(["+", "-", "*", "/", "//", "%", "**", "~", "==", "<", "in", "and", "or"])


def deeper(inner):
    arguments = st.lists(inner, max_size=2).map(", ".join)
    return st.one_of(
        st.builds("{} | {}({})".format, inner, NAMES, arguments),
        st.builds("({}).{}({})".format, inner, NAMES, arguments),
        st.builds("({}).{}".format, inner, NAMES),
        st.builds("({})[{}]".format, inner, inner),
        st.builds("({})[{}:{}]".format, inner, inner, inner),
        st.builds(
            "({}) {} ({})".format,
            inner,
            OPERATORS,
            inner,
        ),
        st.builds("({}) is {}".format, inner, st.sampled_from(["defined", "in x", "iterable", "sameas y", "number"])),
        st.builds("({} if {} else {})".format, inner, inner, inner),
        st.builds("[{}, {}]".format, inner, inner),
        st.builds("({})({})".format, inner, arguments),
    )


EXPRESSIONS = st.recursive(FRAGMENTS, deeper, max_leaves=6)


def statements(inner):
    body = st.lists(inner, max_size=3).map("".join)
    return st.one_of(
        st.builds("{{% for x in {} %}}{}{{% else %}}{}{{% endfor %}}".format, EXPRESSIONS, body, body),
        st.builds("{{% if {} %}}{}{{% endif %}}".format, EXPRESSIONS, body),
        st.builds("{{% set x %}}{}{{% endset %}}".format, body),
        st.builds("{{% macro m(x) %}}{}{{{{ m(x) }}}}{{% endmacro %}}{{{{ m({}) }}}}".format, body, EXPRESSIONS),
        st.builds("{{% filter {} %}}{}{{% endfilter %}}".format, NAMES, body),
    )


TEMPLATES = st.recursive(
    st.one_of(
        st.builds("{{{{ {} }}}}".format, EXPRESSIONS),
        st.builds("{{% set x = {} %}}".format, EXPRESSIONS),
        st.text(max_size=4),
    ),
    statements,
    max_leaves=8,
)


@given(TEMPLATES)
def test_any_template_gives_bounded_text_or_a_one_line_error(text):
    """A template that used too much memory or time would end the test run."""
    text = "{% set x = 1 %}{% set y = [pairs] %}" + text
    try:
        prompt = render(text)
    except InputError as error:
        assert "\n" not in str(error)  # noqa: PT017 - either outcome is right
        str(error).encode()
    else:
        assert len(prompt) <= BUDGET + len(text)
        prompt.encode()
