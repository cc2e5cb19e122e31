"""A Jinja sandbox for users' prompt templates that limits the cost of a rendering.

Jinja's sandbox prevents access to Python's internals, but does not limit time and memory: loops over `range` can be
nested, `'a' * 10**9` and `|center(10**9)` are single expressions, and macros can be recursive. Here each rendering has
a *budget* (`BUDGET`; one unit is about one character). Loops, calls, filters, operators and output are charged *before*
they run, by the size of their arguments, and for their result. A rendering that exceeds its budget raises an error. No
clock is involved, so the same template with the same fields always has the same outcome.

Features that cannot be charged are not available: recursive loops, `include`, `import`, `extends`, `%` and `.format()`,
repetition of sequences, and filters whose cost does not depend on their arguments. `FILTERS`, `METHODS` and `FUNCTIONS`
list what is available.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence, ValuesView
from collections.abc import Set as AbstractSet
from itertools import chain
from types import BuiltinMethodType, MethodType
from typing import TYPE_CHECKING, Any, Final, cast

from jinja2 import nodes, pass_context
from jinja2.exceptions import SecurityError, TemplateAssertionError
from jinja2.filters import FILTERS as ALL_FILTERS
from jinja2.runtime import LoopContext, Macro, StrictUndefined, Undefined
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Cycler, Joiner, Namespace, _PassArg
from jinja2.visitor import NodeTransformer
from markupsafe import Markup

if TYPE_CHECKING:
    from collections.abc import Callable

    from jinja2 import Template
    from jinja2.runtime import Context

BUDGET: Final = 1 << 23
"""The maximum cost of a rendering: the characters read and written, plus `STEP` for each operation."""

STEP: Final = 64
"""The cost of a loop iteration, call, filter or operator, in addition to the sizes of its arguments and its result."""

SLOW: Final = 16
"""The factor on the cost of the filters in `_SLOW`."""

LONGEST_TEMPLATE: Final = 1 << 17
"""The maximum length of a template in characters."""

LONGEST_INTEGER: Final = 256
"""The maximum size of an integer in bits."""

DEEPEST: Final = 20
"""The maximum depth of nested lists."""

_FILTER_NAMES: Final = """
    abs batch capitalize center count d default dictsort e escape first float groupby indent int items join last
    length list lower map max min reject rejectattr replace reverse round safe select selectattr slice sort string
    striptags sum title tojson trim truncate unique upper urlencode wordcount
"""
FILTERS: Final = frozenset(_FILTER_NAMES.split())
"""The Jinja filters that a template may use."""

_STR_METHODS: Final = """
    capitalize casefold center count endswith find index isalnum isalpha isascii isdecimal isdigit isidentifier
    islower isnumeric isprintable isspace istitle isupper join ljust lower lstrip partition removeprefix
    removesuffix replace rfind rindex rjust rpartition rsplit rstrip split splitlines startswith strip swapcase
    title upper zfill
"""
METHODS: Final[Mapping[type, frozenset[str]]] = {
    str: frozenset(_STR_METHODS.split()),
    list: frozenset({"count", "index"}),
    tuple: frozenset({"count", "index"}),
    dict: frozenset({"get", "items", "keys", "values"}),
}
"""The methods that a template may call, by the type of their object."""

FUNCTIONS: Final = {"range": range, "dict": dict, "namespace": Namespace, "joiner": Joiner, "cycler": Cycler}
"""The functions that a template may call."""

_SLOW: Final = frozenset(
    {"dictsort", "groupby", "max", "min", "sort", "striptags", "sum", "title", "tojson", "unique", "urlencode"}
    | {"wordcount"}
)
"""Filters that take much longer per character than others."""

_MULTIPLYING: Final = frozenset({"indent", "join", "replace", "tojson"})
"""Filters and methods whose result may be as long as the product of their arguments' sizes."""

_SIZED: Final = frozenset({"batch", "center", "indent", "ljust", "rjust", "round", "slice", "tojson", "zfill"})
"""Filters and methods the length of whose result is given by an integer argument."""

_BUDGET: Final = " budget "
"""The name of a rendering's budget in its context. The spaces make it, and the filters below, unusable in templates."""
_PASSES: Final = " passes "
_JOINED: Final = " joined "
_WEIGHED: Final = " weighed "

_NODES: Final = (
    *(nodes.Template, nodes.Output, nodes.TemplateData, nodes.If, nodes.For, nodes.With, nodes.Macro, nodes.CallBlock),
    *(nodes.FilterBlock, nodes.Assign, nodes.AssignBlock, nodes.ExprStmt, nodes.Name, nodes.NSRef, nodes.Const),
    *(nodes.Tuple, nodes.List, nodes.Dict, nodes.Pair, nodes.Keyword, nodes.CondExpr, nodes.Filter, nodes.Test),
    *(nodes.Call, nodes.Getitem, nodes.Getattr, nodes.Slice, nodes.Concat, nodes.Compare, nodes.Operand),
    *(nodes.BinExpr, nodes.UnaryExpr),
)
"""The syntax nodes that a template may contain."""


class TooCostly(Exception):  # noqa: N818 (a public name)
    """A rendering exceeds its budget."""


class Budget:
    """The remaining budget of a rendering.

    Args:
        text: The length of the template in characters. Each call of a macro costs this much, because it may write the
            whole template.
    """

    __slots__ = ("left", "text")

    def __init__(self, text: int) -> None:
        self.left, self.text = BUDGET, text

    def charge(self, cost: int) -> None:
        """Subtract a cost. Raises `TooCostly` if the budget is exceeded."""
        self.left -= cost
        if self.left < 0:
            raise TooCostly(f"its cost exceeds {BUDGET:,} characters; use shorter loops or less output")

    def weigh(self, value: object) -> None:
        """Charge the size of a value."""
        self.charge(_size(value))


def _size(value: object, depth: int = 0) -> int:
    """Return the size of a value and its content in characters. Counting stops above `BUDGET`."""
    if isinstance(value, str):
        return len(value)
    if isinstance(value, bool | float | Undefined | Iterator) or value is None:
        return 8
    if isinstance(value, int):
        if value.bit_length() > LONGEST_INTEGER:
            raise TooCostly(f"a number has more than {LONGEST_INTEGER} bits")
        return 8
    if isinstance(value, range):
        return 8 * len(value)
    if isinstance(value, Mapping):
        return _sizes(chain(value.keys(), value.values()), depth)
    if isinstance(value, Sequence | AbstractSet | ValuesView):
        return _sizes(value, depth)
    raise SecurityError(f"a prompt template cannot use values of type {type(value).__name__}")


def _sizes(values: Iterable[object], depth: int) -> int:
    if depth > DEEPEST:
        raise TooCostly(f"its lists have more than {DEEPEST} levels of nesting")
    total = 0
    for value in values:
        total += 8 + _size(value, depth + 1)
        if total > BUDGET:
            break
    return total


def _charge(budget: Budget, name: str, value: object, arguments: Iterable[object]) -> None:
    """Charge a filter, test or method before it runs."""
    size, others = _size(value), 0
    for argument in arguments:
        if name in _SIZED and isinstance(argument, int):
            others += min(abs(argument), BUDGET + 1)
        else:
            others += _size(argument)
    cost = (size + 1) * (others + 1) if name in _MULTIPLYING else size + others
    budget.charge(STEP + cost * (SLOW if name in _SLOW else 1))


def _charged(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a filter or test that charges the budget."""
    takes = _PassArg.from_obj(function)

    @pass_context
    def charged(context: Context, value: Any, *arguments: Any, **named: Any) -> Any:  # noqa: ANN401
        budget = _budget(context)
        given = (*arguments, *named.values())
        _charge(budget, name, value, given)
        if name == "sum" and not all(isinstance(start, str | int | float | None) for start in given):
            raise SecurityError("sum supports numbers only")
        first = {
            None: (),
            _PassArg.context: (context,),
            _PassArg.eval_context: (context.eval_ctx,),
            _PassArg.environment: (context.environment,),
        }[takes]
        return _paid(budget, function(*first, value, *arguments, **named))

    return charged


def _paid(budget: Budget, result: Any) -> Any:  # noqa: ANN401 - of any type
    """Charge a result and return it. The items of an iterator are charged when they are produced."""
    if isinstance(result, Iterator):
        return _pieces(budget, result)
    budget.weigh(result)
    return str(result) if isinstance(result, Markup) else result


def _pieces(budget: Budget, values: Iterable[Any], cost: int = 0) -> Iterator[Any]:
    for value in values:
        budget.charge(STEP + cost)
        yield value


def _budget(context: Context) -> Budget:
    budget = context.parent[_BUDGET]
    assert isinstance(budget, Budget)
    return budget


@pass_context
def _shown(context: Context, value: Any) -> Any:  # noqa: ANN401
    """Charge a value that the template outputs (Jinja's `finalize`)."""
    if isinstance(value, Iterator):
        raise SecurityError("it outputs an iterator: add |list or |join")
    _budget(context).weigh(value)
    return value


@pass_context
def _passes(context: Context, values: Iterable[Any], cost: int) -> Iterator[Any]:
    """Return the items of a loop, charging each iteration for the text that it may write."""
    return _pieces(_budget(context), values, cost)


@pass_context
def _joined(context: Context, values: list[Any]) -> str:
    """Charge and execute the operator `~`."""
    _budget(context).weigh(values)
    return "".join(map(str, values))


@pass_context
def _weighed(context: Context, value: Any) -> Any:  # noqa: ANN401
    """Charge a side of a comparison, or a slice."""
    _budget(context).weigh(value)
    return value


class _Charging(NodeTransformer):
    """A transformer that adds the charging filters to a parsed template and rejects what cannot be charged."""

    def generic_visit(self, node: nodes.Node, *args: Any, **kwargs: Any) -> nodes.Node:
        if not isinstance(node, _NODES):
            raise TemplateAssertionError(f"a prompt template cannot use {type(node).__name__!r}", node.lineno or 1)
        return super().generic_visit(node, *args, **kwargs)

    def visit_For(self, node: nodes.For) -> nodes.Node:  # noqa: N802 (a name required by Jinja)
        if node.recursive:
            raise TemplateAssertionError("a prompt template cannot use recursive loops", node.lineno)
        text = sum(len(data.data) for data in node.find_all(nodes.TemplateData))
        self.generic_visit(node)
        node.iter = _filter(cast("nodes.Expr", node.iter), _PASSES, nodes.Const(text))
        return node

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:  # noqa: N802 (a name required by Jinja)
        self.generic_visit(node)
        return _filter(nodes.List(node.nodes, lineno=node.lineno), _JOINED)

    def visit_Compare(self, node: nodes.Compare) -> nodes.Node:  # noqa: N802 (a name required by Jinja)
        self.generic_visit(node)
        node.expr = _filter(node.expr, _WEIGHED)
        for operand in node.ops:
            operand.expr = _filter(operand.expr, _WEIGHED)
        return node

    def visit_Getitem(self, node: nodes.Getitem) -> nodes.Node:  # noqa: N802 (a name required by Jinja)
        self.generic_visit(node)
        return _filter(node, _WEIGHED) if isinstance(node.arg, nodes.Slice) else node


def _filter(node: nodes.Expr, name: str, *arguments: nodes.Expr) -> nodes.Filter:
    return nodes.Filter(node, name, list(arguments), [], None, None, lineno=node.lineno)


class Sandbox(ImmutableSandboxedEnvironment):
    """A Jinja environment for untrusted templates.

    Args:
        filters: Further filters, by name. Their time and memory must be linear in the size of their arguments.
    """

    intercepted_binops = frozenset(["+", "-", "*", "/", "//", "%", "**"])

    def __init__(self, filters: Mapping[str, Callable[..., Any]]) -> None:
        super().__init__(
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
            autoescape=False,
            optimized=False,
            finalize=_shown,
            cache_size=0,
        )
        known: dict[str, Callable[..., Any]] = {name: ALL_FILTERS[name] for name in FILTERS} | dict(filters)
        self.filters = {name: _charged(name, function) for name, function in known.items()}
        self.filters |= {_PASSES: _passes, _JOINED: _joined, _WEIGHED: _weighed}
        self.tests = {name: _charged(name, cast("Callable[..., Any]", test)) for name, test in self.tests.items()}
        self.globals = dict(FUNCTIONS)

    def _generate(self, source: nodes.Template, *args: Any, **kwargs: Any) -> str:
        """Transform the parsed template before Jinja generates code from it."""
        charging = _Charging().visit(source)
        charging.set_environment(self)
        return super()._generate(charging, *args, **kwargs)

    def call(self, context: Context, function: Any, /, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401
        """Charge and execute a call in a template.

        Raises:
            SecurityError: If it is neither a macro nor in `FUNCTIONS` or `METHODS`.
        """
        if isinstance(function, Undefined):
            return super().call(context, function)  # raises an error that names the undefined value
        budget, name = _budget(context), getattr(function, "__name__", type(function).__name__)
        given = (*args, *(value for key, value in kwargs.items() if key not in ("caller", "_loop_vars", "_block_vars")))
        owner = getattr(function, "__self__", None)
        if isinstance(function, BuiltinMethodType) and name in METHODS.get(type(owner), ()):
            _charge(budget, name, owner, given)
        elif isinstance(function, Macro):
            budget.charge(STEP + budget.text)
        elif function is range or (isinstance(function, MethodType) and isinstance(owner, LoopContext | Cycler)):
            budget.charge(STEP + sum(map(_size, given)))
        elif function in (dict, Namespace, Joiner, Cycler) or isinstance(function, Joiner):
            budget.charge(STEP + sum(map(_size, given)))
            return super().call(context, function, *args, **kwargs)
        else:
            raise SecurityError(f"{name!r} cannot be called in a prompt template")
        return _paid(budget, super().call(context, function, *args, **kwargs))

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:  # noqa: ANN401
        """Charge and execute a binary operator in a template."""
        budget = _budget(context)
        budget.charge(STEP + sum(_size(side) for side in (left, right) if isinstance(side, int)))
        if isinstance(left, Undefined) or isinstance(right, Undefined):
            return super().call_binop(context, operator, left, right)  # raises an error that names the undefined value
        if operator == "+" and type(left) is type(right) and isinstance(left, str | list | tuple):
            budget.charge(8 * (len(left) + len(right)))
        elif not (isinstance(left, int | float) and isinstance(right, int | float)):
            raise SecurityError(
                f"a prompt template cannot compute {type(left).__name__} {operator} {type(right).__name__}; "
                "join texts with ~"
            )
        elif operator == "**" and abs(right) > LONGEST_INTEGER:
            raise TooCostly(f"an exponent exceeds {LONGEST_INTEGER}")
        result = super().call_binop(context, operator, left, right)
        if isinstance(result, int):
            budget.weigh(result)
        return result


def render_within(template: Template, text: int, fields: Mapping[str, Any]) -> str:
    """Render a template of a `Sandbox` within its budget.

    Args:
        template: The template.
        text: The length of its source in characters.
        fields: The variables that the template may use.

    Raises:
        TooCostly: If the cost exceeds `BUDGET`.
        Exception: Any error of the template itself.
    """
    return template.render({**fields, _BUDGET: Budget(text)})
