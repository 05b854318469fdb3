"""python -m pslab run: what one notebook cell does."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import yaml

from pslab.config.run import KINDS, NAMED, Run
from pslab.errors import ConfigError, PslabError, nearest


def main(arguments: list[str]) -> int:
    """Run what the arguments say and print where the record is. Exit status: 2 bad parameters, 1 a failed run."""
    try:
        options, parameters = parameters_of(arguments)
        from pslab.lab.runs.run import run

        result = run(Run.of(parameters), results=options.get("results"))
    except ConfigError as error:
        print(f"pslab run: {error}", file=sys.stderr)
        return 2
    except PslabError as error:
        print(f"pslab run: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt as interrupt:
        print(f"pslab run: {interrupt or 'interrupted'}", file=sys.stderr)
        return 130
    manifest, reached = result.manifest, "ended"
    if len(result.accuracy):
        reached = f"{result.accuracy.iloc[-1].accuracy:.2%}"
    honest = "" if manifest["honest"] else " (the machine was too slow to emulate this cluster honestly)"
    again = " (from the record)" if result.cached else ""
    print(f"{reached} after {manifest['pushes']} pushes, {manifest['seconds']:.2f} s{honest}{again}")
    print(result.path)
    return 0


def parameters_of(arguments: list[str]) -> tuple[dict[str, str], dict[str, Any]]:
    """Run's fields from `--file run.yaml` and, over them, `--field value`; values are read as YAML.

    Raises:
        ConfigError: an unknown option, a missing value, a file that is not a mapping.
    """
    options: dict[str, str] = {}
    given: dict[str, Any] = {}
    words = list(arguments)
    while words:
        word = words.pop(0)
        name = word.removeprefix("--").replace("-", "_")
        name, equals, value = name.partition("=")
        if not word.startswith("--") or name not in {*KINDS, "file", "results"}:
            raise ConfigError("option", word, nearest(name, [*KINDS, "file", "results"]))
        if not equals:
            if not words:
                raise ConfigError(name, None, f"{word} needs a value")
            value = words.pop(0)
        if name in ("file", "results"):
            options[name] = value
        else:
            given[name] = _value(name, value)
    return options, {**_read(options["file"]), **given} if "file" in options else given


def _value(name: str, text: str) -> Any:
    """A value of the command line, read as YAML; a policy string such as steps:0.1 stays a string."""
    if KINDS[name] is str or (name in NAMED and name != "cluster"):
        return text
    try:
        return _number(yaml.safe_load(text))
    except yaml.YAMLError:
        raise ConfigError(name, text, "cannot be read") from None


def _number(value: Any) -> Any:
    """YAML reads 1e9 as text; people mean a number. "none" is None."""
    if isinstance(value, dict):
        return {key: _number(item) for key, item in value.items()}
    if isinstance(value, str):
        if value.lower() == "none":
            return None
        try:
            return float(value)
        except ValueError:
            return value
    return value


def _read(file: str) -> dict[str, Any]:
    try:
        content = yaml.safe_load(Path(file).read_text())
    except (OSError, yaml.YAMLError) as error:
        raise ConfigError("file", file, f"cannot be read: {error}") from None
    if not isinstance(content, dict):
        raise ConfigError("file", file, "must hold a mapping of Run's fields")
    return {str(key): value if isinstance(value, str) and key in NAMED else _number(value)
            for key, value in content.items()}  # fmt: skip
