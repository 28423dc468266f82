"""Runs the notebooks in `docs/python/notebooks`: `python tools/notebooks.py` executes each with a tiny model, and fails
if a cell fails. Outputs are not saved."""

import json
import os
import pathlib
import sys
import tempfile

NOTEBOOKS = pathlib.Path(__file__).resolve().parents[2] / "docs/python/notebooks"


def run(path: pathlib.Path, place: str) -> None:
    """Executes a notebook in the working directory `place`."""
    import nbformat
    from nbclient import NotebookClient

    notebook = nbformat.read(path, as_version=4)
    NotebookClient(notebook, timeout=300, kernel_name="python3", resources={"metadata": {"path": place}}).execute()
    pages = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    if path.stem == "first_run" and not any("<progress" in json.dumps(output) for output in pages):
        raise SystemExit(f"{path.name}: training showed no progress")


def main() -> int:
    for path in sorted(NOTEBOOKS.glob("*.ipynb")):
        if any(cell.get("outputs") for cell in json.loads(path.read_text())["cells"]):
            raise SystemExit(f"{path.name} has outputs: clear them before committing")
        with tempfile.TemporaryDirectory() as place:
            run(path, place)
        print(f"{path.name} runs", file=sys.stderr)
    return 0


if __name__ == "__main__":
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    sys.exit(main())
