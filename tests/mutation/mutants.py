"""Wrong lines: what can be changed in a module so that it still compiles, one place at a time."""

from __future__ import annotations

import ast
import hashlib
from collections.abc import Iterator, Sequence
from typing import NamedTuple

_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
_OTHER: dict[type, type] = {
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
    ast.And: ast.Or,
    ast.Or: ast.And,
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.FloorDiv,
    ast.FloorDiv: ast.Mult,
    ast.LShift: ast.RShift,
    ast.RShift: ast.LShift,
    ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd,
}
_CACHES = {"cache", "lru_cache", "cached_property"}


class Mutant(NamedTuple):
    """One changed place. ``before`` and ``after`` are the code of that place, without comments and in one line."""

    path: str
    """Of the module, from the repository's root."""
    function: str
    """The qualified name of the function around it; empty outside functions."""
    line: int
    """Of the place in the module, from 1."""
    first: int
    """The line at which the outermost function's code begins, decorators included; 0 outside functions, and where one
    call of a function may serve many tests, since its result is cached."""
    before: str
    after: str
    source: str
    """The whole module, changed."""
    ordinal: int = 0
    """Counts places in a function that look alike, from 0."""

    @property
    def key(self) -> tuple[str, str, str, str, int]:
        """What names it as long as the function isn't changed there, whatever else moves."""
        return self.path, self.function, self.before, self.after, self.ordinal

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.before}  ->  {self.after}"


def mutants(path: str, source: str) -> list[Mutant]:
    """All mutants of a module, in its order."""
    found = []
    seen: dict[tuple[str, str, str], int] = {}
    encoded = source.encode()
    starts = [0]
    for line in encoded.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    for place in _places(ast.parse(source).body, "", 0):
        node = place.node
        assert node.end_lineno is not None  # as in all that was parsed
        assert node.end_col_offset is not None
        begin, end = starts[node.lineno - 1] + node.col_offset, starts[node.end_lineno - 1] + node.end_col_offset
        before = ast.unparse(node)
        same = (place.function, before, place.after)
        seen[same] = seen.get(same, -1) + 1
        written = f"({place.after})" if isinstance(node, ast.expr) else place.after
        changed = (encoded[:begin] + written.encode() + encoded[end:]).decode()
        found.append(
            Mutant(path, place.function, node.lineno, place.first, before, place.after, changed, ordinal=seen[same])
        )
    return found


def chosen(all_of_them: Sequence[Mutant], number: int, seed: int) -> list[Mutant]:
    """``number`` of them by chance. A change of one function leaves the choice in the others as it was, nearly."""

    def rank(mutant: Mutant) -> bytes:
        return hashlib.sha256(repr((seed, *mutant.key)).encode()).digest()

    return sorted(all_of_them, key=rank)[:number]


class _Place(NamedTuple):
    function: str
    first: int
    node: ast.expr | ast.stmt
    after: str


def _places(nodes: Sequence[ast.AST], function: str, first: int) -> Iterator[_Place]:
    for node in nodes:
        if isinstance(node, (*_FUNCTIONS, ast.ClassDef)):
            inner = f"{function}.{node.name}" if function else node.name
            begins = first
            if isinstance(node, _FUNCTIONS) and not first and not _is_cached(node):
                begins = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
            if isinstance(node, _FUNCTIONS):  # annotations and decorators are left as they are
                yield from _places([*node.args.defaults, *filter(None, node.args.kw_defaults)], inner, 0)
            yield from _places(node.body, inner, begins)
            continue
        if _is_text(node) or isinstance(node, (ast.Assert, ast.Import, ast.ImportFrom)):
            continue
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            continue
        for changed, after in _changes(node):
            yield _Place(function, first, changed, after)
        yield from _places(_children(node), function, first)


def _is_cached(node: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    names = {part.id for one in node.decorator_list for part in ast.walk(one) if isinstance(part, ast.Name)}
    return bool(names & _CACHES)


def _is_text(node: ast.AST) -> bool:
    """Docstrings; and formatted text, most of which is for people."""
    return isinstance(node, ast.JoinedStr) or (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant))


def _children(node: ast.AST) -> list[ast.AST]:
    if isinstance(node, ast.AnnAssign):
        return [] if node.value is None else [node.value]
    return list(ast.iter_child_nodes(node))


def _changes(node: ast.AST) -> Iterator[tuple[ast.expr | ast.stmt, str]]:  # noqa: C901, PLR0912  # one kind a branch
    match node:
        case ast.Compare(left=left, ops=[operator], comparators=[right]) if type(operator) in _OTHER:
            yield node, ast.unparse(ast.Compare(left, [_OTHER[type(operator)]()], [right]))
        case ast.BoolOp(op=operator, values=values):
            yield node, ast.unparse(ast.BoolOp(_OTHER[type(operator)](), values))
        case ast.BinOp(left=left, op=operator, right=right) if type(operator) in _OTHER:
            yield node, ast.unparse(ast.BinOp(left, _OTHER[type(operator)](), right))
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            yield node, ast.unparse(operand)
        case ast.Constant(value=bool() as value):
            yield node, str(not value)
        case ast.Constant(value=int() as value):
            yield node, str(value + 1)
        case ast.Subscript(slice=ast.Constant(value=str()) as text):
            yield text, "'?'"
        case ast.AugAssign() | ast.Raise() | ast.Delete() | ast.Expr(value=ast.Call() | ast.Await()):
            yield node, "pass"
        case ast.Continue():
            yield node, "break"
        case ast.Break():
            yield node, "continue"
        case ast.Return(value=ast.expr() as value) if not isinstance(value, ast.Constant):
            yield node, "return None"
        case ast.Call(args=[ast.Name() | ast.Attribute() as one, ast.Name() | ast.Attribute() as two, *rest]):
            yield node, ast.unparse(ast.Call(node.func, [two, one, *rest], node.keywords))
        case _:
            pass
    match node:
        case ast.If(test=test) | ast.IfExp(test=test):
            if not isinstance(test, (ast.Compare, ast.UnaryOp)):  # those are negated as what they are
                yield test, f"not ({ast.unparse(test)})"
            if isinstance(node, ast.If) and not node.orelse:
                yield test, "False"
        case ast.While(test=test) if not isinstance(test, ast.Constant):
            yield test, "False"
        case ast.comprehension(ifs=tests):
            yield from ((test, "True") for test in tests)
        case _:
            pass
