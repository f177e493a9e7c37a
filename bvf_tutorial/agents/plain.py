"""This file knows how a configuration becomes plain data (JSON), comes back, and what is wrong with a faulty one.

Nothing is evaluated or unpickled: the types come from ``Config``, the data only fills them in.
"""

import dataclasses
import difflib
import math
import types
from collections.abc import Iterable, Mapping
from typing import Any, Literal, get_args, get_origin, get_type_hints

from .config import Config

__all__ = ["ConfigError", "changed", "config_from_plain", "differences", "flat", "nearest", "to_plain"]


class ConfigError(ValueError):
    """Plain data that is no configuration; the message names the key and what to do."""


def nearest(word: str, valid: Iterable[str]) -> str:
    """Return ``; did you mean ...?``, or the valid names where none is near."""
    names = [*valid]
    close = difflib.get_close_matches(word, names, n=1)
    return f"; did you mean {close[0]!r}?" if close else f"; choose one of {', '.join(names)}."


def to_plain(value: Any, hint: Any = Config) -> Any:
    """Return a configuration as dictionaries, lists, text and numbers; a union's member says its class as ``kind``.

    JSON has no infinities and no NaN, so they become "inf", "-inf" and "nan". Sequences of ``environment.options`` come
    back as tuples.
    """
    if dataclasses.is_dataclass(value):
        hints = get_type_hints(type(value))
        kind = {"kind": type(value).__name__} if get_origin(hint) is types.UnionType else {}
        return kind | {
            field.name: to_plain(getattr(value, field.name), hints[field.name]) for field in dataclasses.fields(value)
        }
    if isinstance(value, Mapping):
        return {str(key): to_plain(each) for key, each in value.items()}
    if isinstance(value, tuple | list):
        return [to_plain(each) for each in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise ConfigError(f"{value!r} is a {type(value).__name__}; a configuration holds numbers, text and lists of them.")


def config_from_plain(plain: Any) -> Config:
    """Return the configuration that ``to_plain`` wrote.

    Raises:
        ConfigError: a key is unknown (the message has the nearest), missing, or of another type.
        ValueError: a value is out of its range.
    """
    config: Config = _from_plain(plain, Config, "")
    return config


def flat(plain: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return nested plain data by dotted keys, ``algorithm.learning_rate``; ``environment.options`` stays whole."""
    table: dict[str, Any] = {}
    for key, value in plain.items():
        if isinstance(value, Mapping) and key != "options":
            table |= flat(value, f"{prefix}{key}.")
        else:
            table[prefix + key] = value
    return table


def differences(left: Config, right: Config) -> list[str]:
    """Return the dotted keys in which two configurations differ."""
    a, b = flat(to_plain(left)), flat(to_plain(right))
    return [key for key in {**a, **b} if (key in a, a.get(key)) != (key in b, b.get(key))]


def changed(config: Config, changes: Mapping[str, Any]) -> Config:
    """Return a configuration with plain values at dotted keys; options of the task by ``environment.options.<name>``.

    Raises:
        ConfigError: no such key; the message has the nearest.
    """
    plain = to_plain(config)
    valid = [*flat(plain), "environment.options.<name>"]
    for dotted, value in changes.items():
        *path, last = dotted.replace("-", "_").split(".")
        place = plain
        for key in path:
            place = place.get(key) if isinstance(place, dict) else None
        if not isinstance(place, dict) or (last not in place and path != ["environment", "options"]):
            raise ConfigError(f"no setting {dotted!r}{nearest(dotted.replace('-', '_'), valid)}")
        place[last] = value
    return config_from_plain(plain)


def _from_plain(value: Any, hint: Any, key: str) -> Any:
    """Return plain data as what a type hint wants; ``key`` is where it stands, for messages."""
    origin, arguments = get_origin(hint), get_args(hint)
    if dataclasses.is_dataclass(hint):
        return _record(value, hint, key)
    if origin is types.UnionType:
        kinds = {each.__name__: each for each in arguments}
        kind = value.get("kind") if isinstance(value, Mapping) else None
        if not isinstance(kind, str) or kind not in kinds:
            raise ConfigError(f"{key}.kind is {kind!r}; choose one of {', '.join(kinds)}.")
        return _record({name: each for name, each in value.items() if name != "kind"}, kinds[kind], key)
    if origin is Literal:
        if value not in arguments:
            raise ConfigError(f"{key} is {value!r}{nearest(str(value), arguments)}")
        return value
    if origin is tuple:
        variable = arguments[-1] is Ellipsis
        if not isinstance(value, list | tuple) or (not variable and len(value) != len(arguments)):
            raise ConfigError(f"{key} is {value!r}; it must be a list of {'' if variable else len(arguments)} numbers.")
        wanted = [arguments[0]] * len(value) if variable else arguments
        return tuple(_from_plain(each, want, key) for each, want in zip(value, wanted, strict=True))
    if origin is not None and issubclass(origin, Mapping):
        if not isinstance(value, Mapping):
            raise ConfigError(f"{key} is {value!r}; it must be a table of names and values.")
        return {name: _option(each) for name, each in value.items()}
    return _scalar(value, hint, key)


def _record(value: Any, hint: Any, key: str) -> Any:
    prefix = f"{key}." if key else ""
    if not isinstance(value, Mapping):
        raise ConfigError(f"{key or 'the configuration'} is {value!r}; it must be a table of names and values.")
    hints = get_type_hints(hint)
    for name in value:
        if name not in hints:
            raise ConfigError(f"no setting {prefix + name!r}{nearest(name, hints)}")
    for name in hints:
        if name not in value:
            raise ConfigError(f"{prefix + name!r} is missing; another version wrote this. Add it.")
    return hint(**{name: _from_plain(each, hints[name], prefix + name) for name, each in value.items()})


def _scalar(value: Any, hint: Any, key: str) -> Any:
    # JSON has integers of any length; no setting is one that float64 or int64 cannot hold.
    is_number = isinstance(value, float) or (type(value) is int and abs(value) < 2**63)
    if hint is float and value in ("inf", "-inf", "nan"):
        return float(value)
    if hint is float and is_number:
        return float(value)
    if hint is int and is_number and abs(value) < 2**63 and value == int(value):
        return int(value)
    if hint in (bool, str) and isinstance(value, hint):
        return value
    name = {float: "a number", int: "an integer", bool: "true or false", str: "text"}[hint]
    raise ConfigError(f"{key} is {value!r}; it must be {name}.")


def _option(value: Any) -> Any:
    """Return an option of a task, which has no type hint here: lists become tuples, names of infinities numbers."""
    if isinstance(value, list):
        return tuple(_option(each) for each in value)
    return float(value) if value in ("inf", "-inf", "nan") else value
