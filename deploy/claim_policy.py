"""Makes the policy that checks parameters of claims, of their JSON Schema: ``python -m deploy.claim_policy``.

What the schema says of the keys becomes CEL; which of a claim's values its DeviceClass permits, the driver says when it
prepares the claim.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from deploy.render import DEPLOY
from launcherkit_plugin.model.config import DRA_DRIVER
from launcherkit_plugin.model.parameters import CLASS_ONLY

SCHEMA = DEPLOY.parent / "schemas" / "device-config.schema.json"
POLICY = DEPLOY / "plugin" / "components" / "claim-parameters" / "policy.yaml"
_HEAD = """\
# Made by `python -m deploy.claim_policy` of schemas/device-config.schema.json.
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicy
metadata:
  name: launcherkit-claim-parameters
spec:
  failurePolicy: Fail
  matchConstraints:
    resourceRules:
      # Their specs never change, and one that is there already must be able to go.
      - apiGroups: [resource.k8s.io]
        apiVersions: ["*"]
        operations: [CREATE]
        resources: [resourceclaims, resourceclaimtemplates]
      - apiGroups: [resource.k8s.io]
        apiVersions: ["*"]
        operations: [CREATE, UPDATE]
        resources: [deviceclasses]
  variables:
    - name: spec
      expression: 'request.kind.kind == "ResourceClaimTemplate" ? dyn(object).spec.spec : dyn(object).spec'
    - name: config
      expression: >-
        request.kind.kind == "DeviceClass" ? variables.spec.?config.orValue([])
        : variables.spec.?devices.?config.orValue([])
    - name: parameters
      expression: >-
        variables.config.filter(c, c.?opaque.?driver.orValue("") == {driver}).map(c, c.opaque.parameters)
  validations:
"""
_TAIL = """\
---
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicyBinding
metadata:
  name: launcherkit-claim-parameters
spec:
  policyName: launcherkit-claim-parameters
  validationActions: [Deny]
"""


def policy() -> str:
    """The manifest."""
    text = _HEAD.replace("{driver}", json.dumps(DRA_DRIVER))
    for expression, message in _rules(json.loads(SCHEMA.read_text())):
        text += f"    - expression: {json.dumps(expression)}\n      message: {json.dumps(message)}\n"
    return text + _TAIL


def _rules(schema: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """CEL and message of each rule for ``parameters``."""
    keys, every = schema["properties"], "variables.parameters.all(p, {})".format
    known = f"p.all(key, key in {json.dumps(list(keys))})"
    yield every(known), f"parameters of {DRA_DRIVER}: unknown key; known are {', '.join(keys)}"
    for key, rule in keys.items():
        options = [_option(option, f"p.{key}") for option in rule.get("anyOf", [rule])]
        wanted = " || ".join(expression for expression, _ in options)
        missing = "" if key in schema["required"] else f"!has(p.{key}) || "
        present = f"has(p.{key}) && " if key in schema["required"] else ""
        words = " or ".join(text for _, text in options if text)
        yield every(f"{missing}{present}({wanted})"), f"parameters of {DRA_DRIVER}: {key} must be {words}"
    for key in CLASS_ONLY:
        of_class = f'request.kind.kind == "DeviceClass" || {every(f"!has(p.{key}) || p.{key} == null")}'
        yield of_class, f"parameters of {DRA_DRIVER}: only a DeviceClass can say {key}"


def _option(rule: Mapping[str, Any], value: str) -> tuple[str, str]:
    """CEL and words for one of the alternatives of a key; a schema that has more than these is an error here."""
    match rule:
        case {"const": str(text)}:
            return f"{value} == {json.dumps(text)}", text
        case {"enum": list(texts)}:
            return f"{value} in {json.dumps(texts)}", f"one of {', '.join(texts)}"
        case {"type": "null"}:
            return f"{value} == null", ""
        case {"type": "boolean"}:
            return f"type({value}) == bool", "true or false"
        case {"type": "string", "minLength": int(least), "maxLength": int(most)}:
            fits = f"type({value}) == string && size({value}) >= {least} && size({value}) <= {most}"
            return f"({fits})", f"a text of {least} to {most} characters"
    raise NotImplementedError(rule)


if __name__ == "__main__":
    POLICY.write_text(policy(), encoding="utf-8")
