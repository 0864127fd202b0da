"""What the documents point to exists."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def functions(path: Path) -> set[str]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_every_test_and_file_that_a_document_names_exists(document: Path) -> None:
    text = document.read_text(encoding="utf-8")
    for file, test in re.findall(r"`(tests/[\w/]+\.py)(?:::(\w+))?`", text):
        assert (ROOT / file).is_file(), file
        assert not test or test in functions(ROOT / file), f"{file}::{test}"
    for path in re.findall(r"`((?:backend|scripts|ui)/[\w/.]+)`", text):
        assert (ROOT / path).exists(), path
    for target in re.findall(r"\]\(([^)#:\s]+)(?:#[^)]*)?\)", text):
        assert (document.parent / target).exists(), target


def test_the_table_of_guards_names_a_test_in_every_row() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    table = text[text.index("| parameter | effect if wrong | guarded by |") :].split("\n\n")[0]
    rows = table.splitlines()[2:]
    assert len(rows) >= 9
    for row in rows:
        assert "::test_" in row, row
