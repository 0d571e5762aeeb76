"""A validator for the part of JSON Schema (draft 7) that docs/schema uses. An unknown keyword is an
error, so that a schema never says more than is checked."""

import re

TYPES = {
    "object": dict,
    "array": list,
    "string": str,
    "boolean": bool,
    "integer": int,
    "number": (int, float),
}
KNOWN = {
    "title", "definitions", "$ref", "type", "required", "properties", "additionalProperties",
    "items", "anyOf", "const", "enum", "minimum", "pattern",
}  # fmt: skip


def problems(value, schema, root=None, where="$"):
    """What is wrong with `value`, as lines; none if it is valid."""
    root = root or schema
    unknown = set(schema) - KNOWN
    if unknown:
        raise ValueError(f"{where}: unknown keywords {sorted(unknown)}")
    if "$ref" in schema:
        schema = root["definitions"][schema["$ref"].removeprefix("#/definitions/")]
    found = []
    if "anyOf" in schema:
        tries = [problems(value, one, root, where) for one in schema["anyOf"]]
        if all(tries):
            found += min(tries, key=len)
    if "const" in schema and (value != schema["const"] or type(value) is not type(schema["const"])):
        found.append(f"{where}: {value!r} is not {schema['const']!r}")
    if "enum" in schema and value not in schema["enum"]:
        found.append(f"{where}: {value!r} is none of {schema['enum']}")
    if "type" in schema:
        expected = TYPES[schema["type"]]
        if not isinstance(value, expected) or (expected is not bool and isinstance(value, bool)):
            return [*found, f"{where}: {value!r} is no {schema['type']}"]
    if "minimum" in schema and value < schema["minimum"]:
        found.append(f"{where}: {value} < {schema['minimum']}")
    if "pattern" in schema and not re.search(schema["pattern"], value):
        found.append(f"{where}: {value!r} does not match {schema['pattern']}")
    if isinstance(value, dict):
        found += _object_problems(value, schema, root, where)
    if isinstance(value, list) and "items" in schema:
        for number, item in enumerate(value):
            found += problems(item, schema["items"], root, f"{where}[{number}]")
    return found


def _object_problems(value, schema, root, where):
    found = [f"{where}: {key} is missing" for key in schema.get("required", []) if key not in value]
    properties = schema.get("properties", {})
    more = schema.get("additionalProperties", True)
    for key, item in value.items():
        if key in properties:
            found += problems(item, properties[key], root, f"{where}.{key}")
        elif more is False:
            found.append(f"{where}: {key} is in no schema")
        elif isinstance(more, dict):
            found += problems(item, more, root, f"{where}.{key}")
    return found
