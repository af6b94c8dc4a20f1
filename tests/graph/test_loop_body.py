"""The body of a loop, by its bytecode, is what its source says: for the loops of the standard library."""

from __future__ import annotations

import ast
import copy
import importlib.util
from pathlib import Path
from types import CodeType

import pytest

from dask_resilient.graph.bytecode import Code
from dask_resilient.graph.loop_body import Body, loop_head

MODULES = (
    "ast",
    "dis",
    "difflib",
    "doctest",
    "inspect",
    "mailbox",
    "pdb",
    "smtplib",
    "subprocess",
    "tarfile",
    "zipfile",
)
SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)
COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)


def source_of(name):
    spec = importlib.util.find_spec(name)
    path = Path(spec.origin)
    return path.read_text()


def bodies(code):
    """Give each body with the line where its loop begins, innermost code last."""
    whole = Code(code)
    heads = (loop_head(whole, offset) for offset, each in whole.all.items() if each.name == "GET_ITER")
    yield from ((whole.all[head].line, Body(whole, head)) for head in heads if head is not None)
    for constant in code.co_consts:
        if isinstance(constant, CodeType) and not constant.co_name.startswith("<"):
            yield from bodies(constant)


def own(node):
    """Give the nodes of a statement, without those of functions, classes and comprehensions in it."""
    yield node
    if not isinstance(node, SCOPES + COMPREHENSIONS):
        for child in ast.iter_child_nodes(node):
            yield from own(child)


def said(loop):
    """Give what the source of a loop reads and assigns."""
    reads, stores = set(), set()
    for each in [node for part in (loop.target, *loop.body) for node in own(part)]:
        match each:
            case ast.Name(ctx=ast.Load()):
                reads.add(each.id)
            case ast.Name():
                stores.add(each.id)
            case ast.FunctionDef() | ast.ClassDef():
                stores.add(each.name)
            case ast.ExceptHandler(name=str()):
                stores.add(each.name)
            case ast.Import() | ast.ImportFrom():
                stores |= {(alias.asname or alias.name).partition(".")[0] for alias in each.names}
            case ast.AugAssign(target=ast.Name()):
                reads.add(each.target.id)
    return reads, stores


@pytest.mark.parametrize("name", MODULES)
def test_a_body_reads_and_assigns_what_its_source_does(name):
    source = source_of(name)
    found: dict[int, list[Body]] = {}
    for line, body in bodies(compile(source, name, "exec")):
        found.setdefault(line, []).append(body)
    checked = 0
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.For) or len(found.get(node.iter.lineno, ())) != 1:
            continue
        [body] = found[node.iter.lineno]
        reads, stores = said(node)
        nested = any(isinstance(each, SCOPES + COMPREHENSIONS) for part in node.body for each in ast.walk(part))
        assert {variable for _, variable in body.stores} == stores, node.lineno
        known = {read.name for read in body.reads} | {"__debug__"}
        assert reads - stores <= known, node.lineno
        assert nested or known - {"__debug__"} <= reads, node.lineno
        checked += 1
    assert checked > 3


class More(ast.NodeTransformer):
    """Has each loop be followed by something long."""

    def visit_For(self, node):
        self.generic_visit(node)
        return [node, *ast.parse("follows(1,\n2)\nfollows(3)").body]


def described(body):
    return [*body.describe(lambda value: repr(sorted(value, key=repr) if isinstance(value, frozenset) else value), ())]


@pytest.mark.parametrize("name", MODULES)
def test_what_follows_a_loop_is_no_part_of_it(name):
    """But for loops that leave into a function's end of which the compiler keeps no other copy: one in a hundred."""
    tree = ast.parse(source_of(name))
    more = ast.fix_missing_locations(More().visit(copy.deepcopy(tree)))
    before = list(bodies(compile(ast.unparse(tree), name, "exec")))
    after = list(bodies(compile(ast.unparse(more), name, "exec")))
    assert len(before) == len(after)
    innermost = [
        (one, other)
        for (_, one), (_, other) in zip(before, after, strict=True)
        if not any(read.name == "follows" for read in other.reads)
    ]
    differ = [one for one, other in innermost if described(one) != described(other)]
    assert len(differ) <= max(1, len(innermost) // 50)
