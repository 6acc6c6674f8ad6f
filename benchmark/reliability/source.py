"""What a submission's files do beside computing: read from their syntax trees; nothing is run."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from benchmark.runtime import code
from benchmark.runtime.errors import BenchmarkError

NETWORK = ("aiohttp", "ftplib", "gdown", "http", "httpx", "huggingface_hub", "requests", "socket", "urllib", "wget")
PROCESSES = ("ctypes", "multiprocessing", "subprocess", "threading")
KINDS = dict.fromkeys(NETWORK, "network") | dict.fromkeys(PROCESSES, "process")
DOWNLOADS = ("torch.hub", "load_state_dict_from_url", "download_url_to_file", "snapshot_download", "hf_hub_download")
FILES = (
    "torch.load",
    "torch.save",
    "np.load",
    "np.save",
    "numpy.load",
    "numpy.save",
    "os.environ",
    "os.system",
    "os.remove",
)
METHODS = ("read_text", "write_text", "read_bytes", "write_bytes", "unlink", "mkdir", "rmtree")
CALLS = ("open", "exec", "eval", "compile", "__import__", "input")
GLOBAL = (
    "torch.manual_seed", "torch.set_rng_state", "torch.set_num_threads", "torch.set_default_dtype",
    "torch.use_deterministic_algorithms", "random.seed", "np.random.seed", "numpy.random.seed",
)  # fmt: skip


def accesses(folder: Path) -> list[str]:
    """Network, files, processes and global state that the folder's code names, `<what>: <expression> (<file>, line <n>)`.

    Raises:
        BenchmarkError: a file that is no Python.
    """
    found: dict[str, None] = {}
    for path in sorted(folder.glob("*.py")):
        if path.name.startswith("test_"):
            continue
        try:
            for what, words, line in _accesses(code.tree_of(path, path.read_bytes())):
                found[f"{what}: {words} ({path.name}, line {line})"] = None
        except RecursionError:
            raise BenchmarkError(f"{path}: its expressions are nested too deeply to be read; write them flat") from None
    return list(found)


def _accesses(tree: ast.AST) -> Iterator[tuple[str, str, int]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            modules = [alias.name for alias in node.names] if isinstance(node, ast.Import) else [node.module or ""]
            for module in modules:
                if what := KINDS.get(module.partition(".")[0]):
                    yield what, f"import of {module}", node.lineno
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in CALLS:
            yield ("file" if node.func.id == "open" else "code"), f"{node.func.id}()", node.lineno
        elif isinstance(node, ast.Attribute):
            words = ast.unparse(node)
            if node.attr in DOWNLOADS or words in DOWNLOADS:
                yield "network", words, node.lineno
            elif node.attr in METHODS or words in FILES:
                yield "file", words, node.lineno
            elif words in GLOBAL:
                yield "global state", words, node.lineno
        elif isinstance(node, ast.keyword) and node.arg == "pretrained" and not _is_false(node.value):
            yield "network", f"pretrained={ast.unparse(node.value)}", node.value.lineno
        elif isinstance(node, ast.Global):
            yield "global state", f"global {', '.join(node.names)}", node.lineno


def _is_false(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is False
