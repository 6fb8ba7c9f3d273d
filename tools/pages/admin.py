"""The operations of the admin API in docs/admin.md, made of its OpenAPI document."""

import re
from typing import Any

from broker.admin.operations import describe
from tools.pages.markers import table

DOCUMENT = describe(version="")
SCHEMAS: dict[str, dict[str, Any]] = DOCUMENT["components"]["schemas"]


def operations() -> str:
    """Return a section for each operation, with its request and its answer, and one for each type that these name."""
    parts = []
    for path, methods in DOCUMENT["paths"].items():
        for method, operation in methods.items():
            parts.append(f"### {method.upper()} {path}\n\n{operation['summary']}. Role: `{operation['x-role']}`.")
            parts += _table("Request", {one["name"]: one["schema"] for one in operation.get("parameters", ())})
            parts += _table("Request", _body(operation.get("requestBody", {})))
            parts += _table("Answer", _body(operation["responses"]["200"]))
    parts.append("### Types")
    shown: set[str] = set()
    while named := {*re.findall(r"\[(\w+)\]\(#", "\n".join(parts))} - shown:
        for name in sorted(named):
            about = SCHEMAS[name].get("description", "").partition("\n\n")[0]
            parts += [f"#### {name}\n\n{about}", *_table("Field", SCHEMAS[name]["properties"])]
        shown |= named
    return "\n\n".join(parts)


def _body(message: dict[str, Any]) -> dict[str, Any]:
    schema = message.get("content", {}).get("application/json", {}).get("schema", {})
    return dict(SCHEMAS.get(schema.get("$ref", "").rpartition("/")[2], {}).get("properties", {}))


def _table(title: str, fields: dict[str, Any]) -> list[str]:
    rows = [(f"`{name}`", _type(one), one.get("description", "")) for name, one in fields.items()]
    return [table((title, "Type", ""), rows)] if rows else []


def _type(schema: dict[str, Any]) -> str:
    name = schema.get("$ref", "").rpartition("/")[2]
    if values := (SCHEMAS[name] if name else schema).get("enum"):
        return ", ".join(f"`{value}`" for value in values)
    if schema.get("type") == "array":
        return f"list of {_type(schema.get('items', {}))}"
    if name:
        return f"[{name}](#{name.lower()})"
    return " or ".join(map(_type, schema.get("anyOf", ()))) or str(schema.get("type", "any"))
