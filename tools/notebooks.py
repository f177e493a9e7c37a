"""This file knows the one form in which a chapter is stored, and how to execute a chapter into that form.

Usage, from the repository's root:

    python -m tools.notebooks normalise [--check] [NOTEBOOK ...]
    python -m tools.notebooks execute [NOTEBOOK ...]

Without names, every notebook of ``book/`` is meant.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import nbformat
import yaml

ROOT = Path(__file__).resolve().parents[1]
BOOK = ROOT / "book"
SIZE_CAP = 1_500_000
TIMEOUT = 300

SETUP_TAG = "colab-setup"
# Hidden on the site, where it would only distract, and not run by the tests, which never load google.colab.
SETUP_TAGS = [SETUP_TAG, "nbval-skip", "remove-cell"]
SETUP_SOURCE = """\
import subprocess
import sys

package = "{package}"
if "google.colab" in sys.modules:  # adds what is missing; the host keeps its own NumPy and needs no restart
    subprocess.run([sys.executable, "-m", "pip", "install", "--quiet", package], check=True)"""

# What a chapter imports when it needs more than NumPy, SciPy, matplotlib and Gymnasium.
DEEP = re.compile(r"^ *(?:import|from) (?:torch|mujoco|bvf_tutorial\.(?:halfspace|envs\.))|VectorEnv", re.MULTILINE)

KERNELSPEC = {"display_name": "Python 3", "language": "python", "name": "python3"}
KEPT_CELL_METADATA = ("mystnb", "tags")
WIDGET_VIEW = "application/vnd.jupyter.widget-view+json"
ADDRESS = re.compile(r"\b0x[0-9a-f]{6,16}\b")


class NotebookError(Exception):
    """A notebook that cannot be stored or executed; the message names it and the remedy."""


@dataclass(frozen=True)
class Repository:
    """Where the book is published.

    Args:
        url: address of the repository, without a trailing slash.
        branch: branch that readers get.
    """

    url: str
    branch: str

    @classmethod
    def read(cls, config: Path = ROOT / "_config.yml") -> Repository:
        """Read the one place that names the repository, ``_config.yml``."""
        entry = yaml.safe_load(config.read_text(encoding="utf-8"))["repository"]
        return cls(entry["url"].rstrip("/"), entry["branch"])

    @property
    def package(self) -> str:
        """Requirement by which pip installs the package from the repository."""
        return f"git+{self.url}@{self.branch}"

    def colab(self, path: str) -> str:
        """Return the address that opens the tracked notebook ``path`` in Colab."""
        name = self.url.removeprefix("https://github.com/")
        return f"https://colab.research.google.com/github/{name}/blob/{self.branch}/{path}"


def is_deep(cells: list[Any]) -> bool:
    """Return whether a chapter's code needs the extra ``deep``."""
    return any(cell.cell_type == "code" and DEEP.search(cell.source) for cell in cells)


def setup_cell(repository: Repository, needs_deep: bool = False) -> Any:
    """Return the cell that installs the package where a chapter runs in Colab, with the robots if it needs them."""
    package = f"bvf-tutorial[deep] @ {repository.package}" if needs_deep else repository.package
    cell = nbformat.v4.new_code_cell(SETUP_SOURCE.format(package=package))
    cell.metadata["tags"] = list(SETUP_TAGS)
    return cell


def _is_setup(cell: Any) -> bool:
    return SETUP_TAG in cell.metadata.get("tags", [])


def _with_setup(cells: list[Any], repository: Repository) -> list[Any]:
    """Put a fresh set-up cell before the first code, behind the title."""
    kept = [cell for cell in cells if not _is_setup(cell)]
    position = 1 if kept and kept[0].cell_type == "markdown" else 0
    return [*kept[:position], setup_cell(repository, is_deep(kept)), *kept[position:]]


def _text(value: Any) -> Any:
    """Replace memory addresses, which differ from run to run."""
    return ADDRESS.sub("0x0", value) if isinstance(value, str) else value


def _outputs(outputs: Sequence[Any], count: int | None) -> list[Any]:
    """Return outputs without what changes from run to run; chunks of one stream become one."""
    result: list[Any] = []
    for output in outputs:
        if output.output_type == "stream":
            last = result[-1] if result else None
            if last is not None and last.get("name") == output.name:
                last.text += _text(output.text)
                continue
            output.text = _text(output.text)
        elif output.output_type in ("display_data", "execute_result"):
            output.metadata = nbformat.NotebookNode()
            output.data.pop(WIDGET_VIEW, None)
            for kind in ("text/plain", "text/html"):
                if kind in output.data:
                    output.data[kind] = _text(output.data[kind])
        if "execution_count" in output:
            output.execution_count = count
        result.append(output)
    return result


def normalise(notebook: Any, slug: str, repository: Repository) -> Any:
    """Return the notebook in its stored form; the argument is left as it was.

    The form depends on nothing but the chapter: cell ids are ``slug`` and position, executed cells are counted from 1,
    only the tags and the figure texts stay in the cells' metadata, and the set-up cell is written anew.
    An unexecuted cell keeps its missing count, so that the tests see it.
    """
    source = nbformat.v4.upgrade(nbformat.from_dict(notebook))
    result = nbformat.v4.new_notebook(metadata={"kernelspec": KERNELSPEC, "language_info": {"name": "python"}})
    count = 0
    for position, cell in enumerate(_with_setup(list(source.cells), repository)):
        name = f"{slug}-{position:03d}"
        fresh = nbformat.NotebookNode(cell_type=cell.cell_type, id=name, source=cell.source.rstrip())
        fresh.metadata = nbformat.from_dict({k: cell.metadata[k] for k in KEPT_CELL_METADATA if cell.metadata.get(k)})
        if cell.cell_type == "code":
            count += 1
            executed = cell.execution_count is not None or _is_setup(cell)
            fresh.execution_count = count if executed else None
            fresh.outputs = _outputs(cell.outputs, fresh.execution_count)
        result.cells.append(fresh)
    nbformat.validate(result)
    return result


def dumps(notebook: Any) -> str:
    """Return the text of a notebook: sorted keys, one space of indent, a final newline."""
    return str(nbformat.writes(notebook, version=4)).rstrip("\n") + "\n"


def stored_form(path: Path, repository: Repository) -> str:
    """Return the text that should be stored at ``path``.

    Raises:
        NotebookError: the file is no notebook, or its stored form is over the size cap.
    """
    try:
        notebook = nbformat.read(path, as_version=4)
        text = dumps(normalise(notebook, path.stem, repository))
    except (nbformat.ValidationError, nbformat.reader.NotJSONError, AttributeError) as error:
        raise NotebookError(f"{path.name}: not a valid notebook: {error}") from error
    size = len(text.encode())
    if size > SIZE_CAP:
        raise NotebookError(
            f"{path.name}: {size:,} bytes stored, the cap is {SIZE_CAP:,}: draw fewer or smaller pictures"
        )
    return text


def execute(path: Path) -> None:
    """Run a chapter from its own folder and write it back with fresh outputs.

    Raises:
        NotebookError: a cell failed; nothing is written then.
    """
    from nbclient import NotebookClient
    from nbclient.exceptions import CellExecutionError, CellTimeoutError, DeadKernelError

    notebook = nbformat.read(path, as_version=4)
    client = NotebookClient(
        notebook,
        timeout=TIMEOUT,
        kernel_name=KERNELSPEC["name"],
        record_timing=False,
        resources={"metadata": {"path": str(path.parent)}},
    )
    try:
        client.execute()
    except (CellExecutionError, CellTimeoutError, DeadKernelError) as error:
        raise NotebookError(f"{path.name}: {error}") from error
    path.write_text(dumps(notebook), encoding="utf-8")


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="tools.notebooks", description=__doc__.splitlines()[0] if __doc__ else "")
    commands = parser.add_subparsers(dest="command", required=True)
    for name, text in (("normalise", "write notebooks in their stored form"), ("execute", "run them, then normalise")):
        command = commands.add_parser(name, help=text)
        command.add_argument("notebooks", nargs="*", type=Path, help="default: all of book/")
    check = commands.choices["normalise"]
    check.add_argument("--check", action="store_true", help="write nothing, fail if one differs")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command; return 1 when a notebook is not in its form, cannot be stored or does not run."""
    arguments = _arguments(argv)
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    repository = Repository.read()
    status = 0
    for path in arguments.notebooks or sorted(BOOK.glob("*.ipynb")):
        try:
            if arguments.command == "execute":
                print(f"executing {path.name}", flush=True)
                execute(path)
            text = stored_form(path, repository)
        except (NotebookError, OSError) as error:
            print(error, file=sys.stderr)
            status = 1
            continue
        if path.read_text(encoding="utf-8") == text:
            continue
        if getattr(arguments, "check", False):
            print(f"{path.name}: not in its stored form: run `make format`", file=sys.stderr)
            status = 1
        else:
            path.write_text(text, encoding="utf-8")
    return status


if __name__ == "__main__":
    sys.exit(main())
