"""Makes the type stubs, beside the files of meshdsl that they are of: `python stubs/make.py`.

A stub has the signatures that stand in the code, without what they compute. The code is read and
not imported, so a build needs nothing but Python. `declarations.pyi` has what signatures do not
say: for which dims of the arguments the result has which dims.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from itertools import combinations
from pathlib import Path
from typing import Any, NamedTuple

HERE = Path(__file__).resolve().parent
HEAD = """# pyright: reportOverlappingOverload=false, reportIncompatibleMethodOverride=false
# Made by `python stubs/make.py`. Later overloads are for what earlier ones refuse, and comparing
# gives a Tensor, where `object` promises a bool.
"""
ALONG = {"Dim | str": "Along[T]", "Which": "Which[T]"}  # parameters of ops that are dims of `x`


class Parameter(NamedTuple):
    """A parameter; `kind` is "/", "", "*", "**" or "by keyword"."""

    name: str
    kind: str
    type: str
    default: str


class Signature(NamedTuple):
    """What a stub says of a function."""

    parameters: list[Parameter]
    result: str = "Any"
    decorators: tuple[str, ...] = ()


class Module:
    """A file of Python as it is written: what it defines, and where its names are from."""

    def __init__(self, path: Path, name: str):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        self.body, self.assigned, self.aliases = tree.body, dict[str, ast.expr](), set[str]()
        self.functions = {n.name: n for n in tree.body if isinstance(n, ast.FunctionDef)}
        self.classes = {n.name: n for n in tree.body if isinstance(n, ast.ClassDef)}
        self.known = {c: f"from {name} import {c}" for c in self.classes}
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom):
                for a in node.names:
                    self.known[a.asname or a.name] = f"from {node.module} import {ast.unparse(a)}"
            elif isinstance(node, ast.Import):
                for a in node.names:
                    self.known[a.asname or a.name.split(".")[0]] = f"import {ast.unparse(a)}"
        for node in tree.body:
            if isinstance(node, (ast.Assign, ast.AnnAssign)) and node.value:
                target = node.target if isinstance(node, ast.AnnAssign) else node.targets[0]
                self.assigned |= {target.id: node.value} if isinstance(target, ast.Name) else {}
        if path.suffix == ".py":  # an alias of such a file stands for what it means
            self.aliases = set(self.assigned) - {"Dims", "Which"}

    def value(self, name: str) -> Any:
        """What is assigned to a name: literals, and values of names of the same file."""
        words = {n.id for n in ast.walk(self.assigned[name]) if isinstance(n, ast.Name)}
        known = {word: self.value(word) for word in words & set(self.assigned)}
        return eval(ast.unparse(self.assigned[name]), known)

    def signature(self, f: ast.FunctionDef) -> Signature:
        """A function as it is declared; of a default that is no literal it is known that it is."""
        a = f.args
        places = [(p, "/") for p in a.posonlyargs] + [(p, "") for p in a.args]
        values = [None] * (len(places) - len(a.defaults)) + a.defaults
        found = [(p, kind, value) for (p, kind), value in zip(places, values, strict=True)]
        found += [(a.vararg, "*", None)] if a.vararg else []
        found += [(p, "by keyword", v) for p, v in zip(a.kwonlyargs, a.kw_defaults, strict=True)]
        found += [(a.kwarg, "**", None)] if a.kwarg else []
        parameters = [
            Parameter(p.arg, kind, self.type(p.annotation), value_of(default))
            for p, kind, default in found
        ]
        decorators = (d.id for d in f.decorator_list if isinstance(d, ast.Name))
        kept = tuple(d for d in decorators if d in ("property", "classmethod", "staticmethod"))
        return Signature(parameters, self.type(f.returns) or "Any", kept)

    def type(self, annotation: ast.expr | None) -> str:
        """An annotation as a stub has it."""
        said = ast.unparse(annotation) if annotation else ""
        for name in set(re.findall(r"\w+", said)) & self.aliases:
            said = re.sub(rf"\b{name}\b", ast.unparse(self.assigned[name]), said)
        said = re.sub(r"\bMapping\[Dim \| str,", "Mapping[Any,", said)
        return re.sub(r"\bCallable\b(?!\[)", "Callable[..., Any]", said)


def value_of(default: ast.expr | None) -> str:
    """What a stub says of a default: itself where it is a literal, else that there is one."""
    try:
        ast.literal_eval(default or "''")
    except ValueError:
        return "..."
    return ast.unparse(default) if default else ""


DECLARED = Module(HERE / "declarations.pyi", "meshdsl._types")


class Op(NamedTuple):
    """An op: where its function stands (a component-wise one has none), and its `result`."""

    name: str
    module: Module
    function: ast.FunctionDef | None
    result: str


class Package:
    """The files of meshdsl, and what is declared of them: `rows`, for each name its overloads."""

    def __init__(self, folder: Path):
        self.folder, self.modules = folder, dict[str, Module]()
        self.rows: dict[str, list[str]] = {}
        names: list[str] = []
        for line in DECLARED.value("ROWS").strip().splitlines():
            if not line.startswith(" "):
                names = line.split()
                self.rows |= {name: [] for name in names}
                continue
            used = line.split()[1:] if line.startswith("    use ") else []
            for name in names:
                self.rows[name] += self.rows_of(*used) if used else [line.strip()]

    def rows_of(self, name: str, it: str = "dims") -> list[str]:
        """The rows of a name, with a parameter in place of `it`."""
        return [re.sub(r"\bit\b", it, row) for row in self.rows.get(name, ())]

    def module(self, name: str) -> Module:
        if name not in self.modules:
            path = self.folder.joinpath(*name.split(".")[1:])
            path = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
            self.modules[name] = Module(path, name)
        return self.modules[name]

    def ops(self) -> Iterator[Op]:
        """All ops that are declared by `@op(...)` or `op(...)(function)`, and those of a table."""
        for path in sorted((self.folder / "ops").rglob("*.py")):
            inside = path.relative_to(self.folder).with_suffix("")
            module = self.module(f"meshdsl.{'.'.join(inside.parts)}")
            for f in module.functions.values():
                for declaration in f.decorator_list:
                    yield from _declared(module, declaration, module, f)
            for node in module.body:
                match node:
                    case ast.Expr(ast.Call(declaration, [ast.Attribute(ast.Name(where), name)])):
                        _, _, other = module.known[where].partition("from ")
                        other = self.module(other.replace(" import ", "."))
                        yield from _declared(module, declaration, other, other.functions[name])
        module = self.module("meshdsl.ops.functions")
        kinds, tables = module.value("KIND"), map(module.value, ("NUMPY", "NN", "LAX"))
        yield from (Op(n, module, None, kinds.get(n, "Unary")) for names in tables for n in names)

    def overloads_of(self, op: Op) -> list[Signature]:
        """How an op is typed: by its rows, by those of its `result`, or by its signature."""
        said = op.module.signature(op.function) if op.function else Signature([])
        found = [p._replace(type=ALONG.get(p.type, p.type)) for p in said.parameters]
        rows = self.rows_of(op.name) or self.rows_of(op.result)
        whose = next((i for i, p in enumerate(found) if p.type == "Tensor"), None)
        if not rows and whose is not None:  # the first Tensor is the `T` of which dims are dims
            if op.result == "same" or any("[T]" in p.type for p in found):
                found[whose] = found[whose]._replace(type="T")
            said = said._replace(result="T" if op.result == "same" else said.result)
        return overloads(said._replace(parameters=found), rows)


def _declared(module: Module, call: ast.expr, where: Module, f: ast.FunctionDef) -> Iterator[Op]:
    """The ops that `@op(...)`, or a name for that, makes of a function."""
    call = module.assigned.get(call.id, call) if isinstance(call, ast.Name) else call
    if isinstance(call, ast.Call) and ast.unparse(call.func) == "op":
        said = {word.arg: word.value for word in call.keywords}
        result = ast.literal_eval(said["result"]) if "result" in said else ""
        names = ast.literal_eval(said["names"]) if "names" in said else (f.name,)
        yield from (Op(name, where, f, result) for name in names)


def overloads(said: Signature, rows: Iterable[str] = ()) -> list[Signature]:
    """A signature for each row; without rows it is the only one."""
    found = []
    for row in [each for given in rows for each in expanded(given)] or ["->"]:
        front, arrow, result = row.rpartition("->")
        if not arrow:
            said = narrowed(said, row, "")
            continue
        of = narrowed(said, front, result.strip())
        if not any(re.search(r"(?<!\[)\bT\b", p.type) for p in of.parameters):
            plain = [p._replace(type=p.type.replace("[T]", "[Tensor]")) for p in of.parameters]
            of = of._replace(parameters=plain)
        found.append(of)
    return found


def expanded(row: str) -> Iterator[str]:
    """The rows that a row stands for: of one to six dims, or of dims at all places among others."""
    if re.search(r"\w\.\.(?!\.)", row):
        for n in range(1, 7):
            letters = list("ABCDEF"[:n])
            dims = f"Dims{n}[{', '.join(letters)}]"
            text = row.replace("Made[A..]", "Dim[A] | Dims1[A]" if n == 1 else dims)
            text = text.replace("Dims[A..]", dims).replace("A|..", " | ".join(letters))
            text = text.replace("Any..", ", ".join(["Any"] * n))
            yield text.replace("A..", ", ".join(letters))
    elif marked := re.search(r"<(\w+(?:, \w+)*)>", row):
        count = marked[1].count(",") + 1
        for at in [None, *combinations(range(5 if count < 3 else 4), count)]:
            yield re.sub(r"<(.*?)>", lambda m, at=at: among(at, m[1].split(", ")), row)
    else:
        yield row


def among(at: tuple[int, ...] | None, names: list[str]) -> str:
    """Dims that are named, or none instead of them, at places among others; None: at the end."""
    names = [name for name in names if name]
    if at is None:
        return ", ".join(["*Ds", *names])
    others = iter("ABCDEF")
    said = {i: "" if i in at else next(others) for i in range(at[-1] + 1)}
    said |= dict(zip(at, names, strict=False))
    return ", ".join([*filter(None, said.values()), "*Ds"])


def narrowed(said: Signature, row: str, result: str) -> Signature:
    """A signature with the types that a row has for some of its parameters.

    A row of a function without a signature is all of it. Tensors that a row names in front of
    others (`x, *tensors`) go by position.
    """
    (node,) = ast.parse(f"def row({row.strip().rstrip(',')}): ...").body
    assert isinstance(node, ast.FunctionDef)
    changes = {p.name: p for p in DECLARED.signature(node).parameters}
    old = {p.name for p in said.parameters} or set(changes)
    new = [p._replace(kind="/") for name, p in changes.items() if name not in old]
    found: list[Parameter] = []
    for p in said.parameters or changes.values():
        change = changes.get(p.name, p if p.kind != "*" or not new else None)
        if p.kind == "*" and new:
            found = [*(q._replace(kind="/") for q in found), *new]
        if change:
            found.append(change._replace(kind=p.kind))
    assert all(p in found for p in new), f"no such parameters: {row}"
    return Signature(found, result or said.result, said.decorators)


def definitions(name: str, found: list[Signature]) -> list[str]:
    """The lines that define a function, overloaded where it has several signatures."""
    lines = []
    for parameters, result, decorators in found:
        words: list[str] = []
        for i, p in enumerate(parameters):
            if p.kind == "by keyword" and not any(word.startswith("*") for word in words):
                words.append("*")
            of = p.type or ("" if p.name in ("self", "cls") else "Any")
            stars = p.kind if p.kind.startswith("*") else ""
            words.append(
                f"{stars}{p.name}{f': {of}' * bool(of)}{f' = {p.default}' * bool(p.default)}"
            )
            if p.kind == "/" and (p is parameters[-1] or parameters[i + 1].kind != "/"):
                words.append("/")
        lines += ["@overload"] * (len(found) > 1) + [f"@{d}" for d in decorators]
        lines.append(f"def {name}({', '.join(words)}) -> {result}: ...")
    return lines


class Stub:
    """A stub that is being written: its lines, and what it can import names from."""

    def __init__(self, package: Package):
        self.package, self.lines, self.known = package, list[str](), dict[str, str]()

    def function(self, name: str, module: Module, found: list[Signature]) -> None:
        self.known |= module.known
        self.lines += definitions(name, found)

    def method(self, op: Op) -> None:
        """An op as a method: its first parameter is `self`, of whose class `Ds` are the dims."""
        found = []
        for (first, *rest), result, _ in self.package.overloads_of(op):
            if "Array" not in first.type:  # an array has no methods of ours
                of = first.type if first.type != "Tensor" else ""
                found.append(Signature([Parameter("self", "", of, ""), *rest], result))
        self.known |= op.module.known
        self.lines += [re.sub(r"\bDs\b", "Es", f"    {x}") for x in definitions(op.name, found)]

    def cls(self, name: str, *sources: tuple[Module, str]) -> None:
        """A class with the members of some classes: of the code, and after those declared ones."""
        members, rows = {}, self.package.rows
        rows = {n.split(".")[1]: r for n, r in rows.items() if n.startswith(f"{name}.")}
        for module, of in sources:
            for node in module.classes[of].body:
                if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
                    members[node.target.id] = module, node
                elif isinstance(node, ast.FunctionDef) and (
                    module is DECLARED or node.name in rows or _is_public(node)
                ):
                    members[node.name] = module, node
            self.known |= module.known
        module, of = sources[-1]
        bases = ", ".join(map(ast.unparse, module.classes[of].bases))
        decorators = [ast.unparse(d) for m, of in sources for d in m.classes[of].decorator_list]
        self.lines += [f"@{d}" for d in decorators if d.startswith("dataclass")]
        self.lines.append(f"class {name}({bases}):" if bases else f"class {name}:")
        for member, (module, node) in (dict.fromkeys(rows, (DECLARED, None)) | members).items():
            if isinstance(node, ast.AnnAssign):
                value = f" = {value_of(node.value)}" if node.value else ""
                self.lines.append(f"    {member}: {module.type(node.annotation)}{value}")
                continue
            said = module.signature(node) if node else Signature([])
            for line in definitions(member, overloads(said, rows.get(member, ()))):
                line = line.replace("*Ds", "*Es") if "self: Tensor[" in line else line
                self.lines.append(f"    {line}")

    def text(self, *passed_on: str) -> str:
        """The whole stub: imports of what its lines name, what it passes on, and its lines."""
        body = "\n".join(self.lines)
        words = {node.id for node in ast.walk(ast.parse(body)) if isinstance(node, ast.Name)}
        own = set(re.findall(r"^(?:class |def )?(\w+)", body, re.MULTILINE))
        own |= {line.split()[-1] for line in passed_on}
        known = {"Dim": "dims", "Dims": "dims", "Tensor": "tensor"}
        known = {name: f"from meshdsl.{module} import {name}" for name, module in known.items()}
        mine = {n: f"from meshdsl._types import {n}" for n in DECLARED.assigned}
        known = self.known | mine | DECLARED.known | known
        imports = sorted({known[name] for name in words & set(known) - own})
        return "\n".join([HEAD, *imports, *passed_on, "", body, ""])


def _is_public(f: ast.FunctionDef) -> bool:
    """Whether a stub has a method: not one that only raises an error."""
    private = f.name.startswith("_") and not (f.name.startswith("__") and f.returns)
    return not private and not isinstance(f.body[0], ast.Raise)


def stubs(folder: Path) -> dict[Path, str]:
    """The text of each stub of the package in a folder."""
    package, made = Package(folder), {}
    ops = {op.name: op for op in package.ops()}

    stub = Stub(package)
    for node in DECLARED.body:
        if isinstance(node, ast.ClassDef) and node.name not in ("Dim", "Tensor"):
            stub.cls(node.name, (DECLARED, node.name))
        elif isinstance(node, (ast.Assign, ast.AnnAssign)) and "ROWS" not in ast.unparse(node):
            stub.lines.append(ast.unparse(node))
    made["_types.pyi"] = stub.text()

    for name in ("dims", "tensor", "parameters"):
        module, stub = package.module(f"meshdsl.{name}"), Stub(package)
        aliases = [n for n in module.assigned if re.match("[A-Z][a-z]", n)]
        stub.lines += [f"{n}: TypeAlias = {ast.unparse(module.assigned[n])}" for n in aliases]
        for of in (n for n in module.classes if not n.startswith("_")):
            inherited = [(package.module("meshdsl.values"), "Values")] if of == "Tensor" else []
            own = [(DECLARED, of)] if of in DECLARED.classes else []
            stub.cls(of, *inherited, (module, of), *own)
            if of == "Tensor":
                _operators(stub)
                for method in package.module("meshdsl.ops.methods").value("METHODS"):
                    stub.method(ops[method])
        for f in (f for n, f in module.functions.items() if not n.startswith("_")):
            stub.function(f.name, module, overloads(module.signature(f), package.rows_of(f.name)))
        made[f"{name}.pyi"] = stub.text()

    random, top = Stub(package), Stub(package)
    for name, op in sorted(ops.items()):
        of = random if name.startswith("random.") else top
        of.function(name.split(".")[-1], op.module, package.overloads_of(op))
    made["ops/random.pyi"] = random.text()

    public = package.module("meshdsl").value("_LATER")
    for node in package.module("meshdsl").body:
        if isinstance(node, ast.ImportFrom):
            public |= {a.name: node.module for a in node.names if not a.asname}
    lower = package.module(public.pop("lower"))
    said = lower.signature(lower.functions["lower"])
    top.function("lower", lower, overloads(said, package.rows_of("lower")))
    top.lines += ["__all__: list[str]", "__version__: str"]
    passed_on = [f"from {where} import {name} as {name}" for name, where in public.items()]
    made["__init__.pyi"] = top.text(*sorted(passed_on))
    return {folder / name: text for name, text in made.items()}


def _operators(stub: Stub) -> None:
    """Python's operators, which are those of `Tensor.__add__` and its like."""
    module = stub.package.module("meshdsl.ops.operators")
    for name in (*module.value("_OPERATORS"), *module.value("_COMPARISONS")):
        if name not in ("add", "eq", "ne"):
            stub.lines.append(f"    __{name}__ = __add__")
    stub.lines += [f"    __r{n}__ = __radd__" for n in module.value("_OPERATORS") if n != "add"]
    stub.lines += [f"    def __{n}__(self) -> Tensor[*Ds]: ..." for n in module.value("_UNARY")]


def write(folder: Path = HERE.parent / "meshdsl") -> None:
    """Write the stubs of the package in a folder."""
    for path, text in stubs(folder).items():
        path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    write()
