"""The pages under Reference, made from the code when the pages are built: every command, every key of the YAML files.
Papers has the README of each submission.

A hook of mkdocs (mkdocs.yml). A key's type, default and limits are pydantic's; its words are the comment on its line in
benchmark/specs, and what a comment does not say stands in the class's docstring above the table.
"""

from __future__ import annotations

import ast
import inspect
import io
import json
import os
import textwrap
import tokenize
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import typer
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from benchmark.commands.main import app
from benchmark.specs.run_settings import RunSettings
from benchmark.specs.study import Study
from benchmark.specs.submission import Submission, is_web_address
from benchmark.specs.track import Track
from benchmark.specs.training import TrainingSpec
from leaderboard.changes import commit_here
from leaderboard.citation import version

ROOTS: dict[str, tuple[str, type[BaseModel]]] = {
    "training": ("`training` of submission.yaml", TrainingSpec),
    "submission": ("submission.yaml", Submission),
    "track": ("tracks/*.yaml", Track),
    "study": ("studies/*.yaml", Study),
    "params": ("params.yaml", RunSettings),
}  # in this order: a class is described on the first page that needs it
READMES = sorted((Path(__file__).parents[1] / "submissions").glob("*/README.md"))
WORDS = {int: "integer", float: "number", str: "text", bool: "true or false", type(None): "null"}
LIMITS = {"ge": "at least {}", "gt": "above {}", "le": "at most {}", "lt": "below {}"}

MACHINES = {"jobs": "the number of cores"}  # defaults that are the machine's


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Adds version, commit and source, which each page's foot names (overrides/main.html), and the papers."""
    assert config.nav is not None
    config.nav.insert(-1, {"Papers": [f"papers/{path.parent.name}.md" for path in READMES]})
    commit, day = commit_here()
    repository = os.environ.get("SITE_REPOSITORY", "")
    repository = repository if is_web_address(repository) else ""
    config.extra["about"] = {"version": version(), "commit": commit, "day": day, "repository": repository}
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds the generated pages to those in docs/."""
    for name, content in pages().items():
        files.append(File.generated(config, f"reference/{name}.md", content=content))
    for path in READMES:
        files.append(File.generated(config, f"papers/{path.parent.name}.md", content=path.read_text()))
    return files


def pages() -> dict[str, str]:
    """Every reference page, Markdown, by its name."""
    homes: dict[type[BaseModel], str] = {}
    for page, (_, root) in ROOTS.items():
        for model in reachable(root):
            homes.setdefault(model, page)
    made = {"commands": commands()}
    for page, (title, root) in ROOTS.items():
        parts = [f"# {title}\n"]
        parts += [section(model, homes, page) for model in reachable(root) if homes[model] == page]
        made[page] = "\n".join(parts)
    return made


def reachable(root: type[BaseModel]) -> list[type[BaseModel]]:
    """`root` and every class that its keys may hold, each once, in the order in which they come."""
    found: list[type[BaseModel]] = []
    waiting: list[Any] = [root]
    while waiting:
        kind = waiting.pop(0)
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            if kind not in found:
                found.append(kind)
                waiting += [field.annotation for field in kind.model_fields.values()]
        else:
            waiting += get_args(kind)
    return found


def section(model: type[BaseModel], homes: dict[type[BaseModel], str], page: str) -> str:
    """One class: its docstring, then a table of its keys."""
    lines = [f"## {model.__name__}\n"]
    if model.__doc__:
        lines.append(inspect.cleandoc(model.__doc__) + "\n")
    said = comments(model)
    lines += ["| key | type | default | limits | |", "|---|---|---|---|---|"]
    for name, field in model.model_fields.items():
        kind = type_words(field.annotation, homes, page)
        cells = [f"`{name}`", kind, default(field), limits(field.metadata), field.description or said.get(name, "")]
        lines.append(row(*cells))
    return "\n".join(lines) + "\n"


def comments(model: type[BaseModel]) -> dict[str, str]:
    """The comment that ends each key's statement in the source, by key; those of parent classes too."""
    found: dict[str, str] = {}
    for parent in reversed(model.__mro__):
        if not issubclass(parent, BaseModel) or parent is BaseModel:
            continue
        source = textwrap.dedent(inspect.getsource(parent))
        tokens = tokenize.generate_tokens(io.StringIO(source).readline)
        at = {token.start[0]: token.string.lstrip("# ") for token in tokens if token.type == tokenize.COMMENT}
        (definition,) = ast.parse(source).body
        assert isinstance(definition, ast.ClassDef)
        for statement in definition.body:
            if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
                found[statement.target.id] = at.get(statement.end_lineno or 0, "")
    return found


def type_words(kind: Any, homes: dict[type[BaseModel], str], page: str) -> str:
    """A type as a writer of YAML would say it; a class as a link to its table."""
    origin, inner = get_origin(kind), get_args(kind)
    if origin is Annotated:
        within = limits(kind.__metadata__)
        return type_words(inner[0], homes, page) + (f" ({within})" if within else "")
    if origin is Literal:
        return " or ".join(f"`{value}`" for value in inner)
    if origin in (Union, types.UnionType):
        kept = [one for one in inner if one is not int or float not in inner]  # a number may be an integer
        return " or ".join(dict.fromkeys(type_words(one, homes, page) for one in kept))
    if origin is tuple and inner[-1] is ...:
        return f"list of: {type_words(inner[0], homes, page)}"
    if origin is tuple:
        return f"list of {len(inner)}: {type_words(inner[0], homes, page)}"
    if origin is dict:
        return f"mapping from {type_words(inner[0], homes, page)} to: {type_words(inner[1], homes, page)}"
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        place = "" if homes[kind] == page else f"{homes[kind]}.md"
        return f"[{kind.__name__}]({place}#{kind.__name__.lower()})"
    return WORDS.get(kind, "any value")


def default(field: FieldInfo) -> str:
    if field.is_required():
        return "required"
    value = field.get_default(call_default_factory=True)
    if isinstance(value, BaseModel):
        return "its defaults"
    return f"`{json.dumps(value)}`"


def limits(metadata: Any) -> str:
    """What pydantic holds a value to, in words."""
    found = []
    for one in metadata:
        if isinstance(one, FieldInfo):
            found.append(limits(one.metadata))
        for key, words in LIMITS.items():
            if getattr(one, key, None) is not None:
                found.append(words.format(f"{getattr(one, key):g}"))
        if getattr(one, "min_length", None):
            found.append(f"at least {one.min_length} long")
        if getattr(one, "max_length", None):
            found.append(f"at most {one.max_length} long")
        if getattr(one, "pattern", None):
            found.append(f"matches `{one.pattern}`")
        if getattr(one, "allow_inf_nan", None) is False:
            found.append("finite")
    return ", ".join(filter(None, found))


def commands() -> str:
    """Every command of `rvb`, as `--help` says it."""
    parts = ["# Commands\n", f"{app.info.help}\n"]
    group = typer.main.get_command(app)
    for name, command in group.commands.items():  # type: ignore[attr-defined]
        parts.append(f"## rvb {name}\n\n{inspect.cleandoc(command.help or '')}\n")
        rows = list(parameter_rows(command))
        if rows:
            parts.append("\n".join(["| | default | |", "|---|---|---|", *rows]) + "\n")
    return "\n".join(parts)


def parameter_rows(command: Any) -> Iterator[str]:
    """A table row for each argument and option."""
    for given in command.params:
        option = given.param_type_name == "option"
        if option and given.name == "help":
            continue
        shown = ", ".join(f"`{word}`" for word in (*given.opts, *given.secondary_opts)) if option else f"`{given.name}`"
        if given.required:
            standard = "required"
        elif given.name in MACHINES:
            standard = MACHINES[given.name]
        else:
            standard = "" if given.default is None or given.default is False or given.default == "" else f"`{given.default}`"
        yield row(shown, standard, given.help or "")


def row(*cells: str) -> str:
    """A line of a table; what Markdown would take for a column or for HTML is escaped, except inside `code`."""
    shown = []
    for cell in cells:
        parts = cell.replace("|", "\\|").split("`")
        shown.append("`".join(part if i % 2 else part.replace("<", "&lt;") for i, part in enumerate(parts)))
    return "| " + " | ".join(shown) + " |"
