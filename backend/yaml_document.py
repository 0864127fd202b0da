"""A YAML file parsed together with the line of every value, for errors a person can act on."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

Location = tuple[str | int, ...]


class DocumentError(ValueError):
    """The file is not usable YAML; the message starts with the file's name."""


@dataclass(frozen=True)
class YamlDocument:
    path: Path
    content: Any
    lines: dict[Location, int]

    def where(self, location: Location) -> str:
        """`file, line N` of a value, or of the nearest group around it."""
        for length in range(len(location), -1, -1):
            if line := self.lines.get(location[:length]):
                return f"{self.path}, line {line}"
        return str(self.path)


def read_yaml(path: Path) -> YamlDocument:
    """Raises DocumentError, in one sentence, for anything that is not a YAML mapping."""
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise DocumentError(f"{path} cannot be read: {error.strerror}.") from error
    except UnicodeDecodeError as error:
        raise DocumentError(f"{path} is not UTF-8 text.") from error
    try:
        loader = yaml.SafeLoader(text)
        node = loader.get_single_node()
        if not isinstance(node, yaml.MappingNode):
            raise DocumentError(f"{path} must hold a YAML mapping (key: value lines).")
        lines: dict[Location, int] = {}
        # Before construction, which folds merge keys into the node.
        _collect_lines(node, (), lines, path)
        return YamlDocument(path, loader.construct_document(node), lines)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = f", line {mark.line + 1}" if mark else ""
        raise DocumentError(f"{path}{line} is not valid YAML: {error.problem}.") from error
    except yaml.YAMLError as error:
        raise DocumentError(f"{path} is not valid YAML: it holds a character YAML does not allow.") from error


def _collect_lines(node: yaml.Node, location: Location, lines: dict[Location, int], path: Path) -> None:
    lines.setdefault(location, node.start_mark.line + 1)
    if isinstance(node, yaml.SequenceNode):
        for index, item in enumerate(node.value):
            _collect_lines(item, (*location, index), lines, path)
    elif isinstance(node, yaml.MappingNode):
        for key_node, value_node in node.value:
            inner: Location = (*location, str(key_node.value))
            line = key_node.start_mark.line + 1
            if inner in lines:
                raise DocumentError(
                    f"{path}, line {line}: {key_node.value} is given twice, first on line {lines[inner]}."
                )
            lines[inner] = line
            _collect_lines(value_node, inner, lines, path)
