"""The few transformations of kustomize that our manifests use, so that their laws are tried where it is not installed.

`test_kubernetes.py` compares the results with those of `kubectl kustomize` where that is.
"""

import copy

import yaml

MERGED_BY = {
    "containers": "name",
    "volumes": "name",
    "volumeMounts": "mountPath",
    "env": "name",
    "tolerations": None,
    "envFrom": None,
}
"""By what elements of a list are told apart; None: the list is replaced."""
KNOWN = {
    "apiVersion", "kind", "resources", "components", "patches", "images", "configMapGenerator", "namespace",
}  # fmt: skip
CLUSTER_WIDE = {"Namespace"}


def read(path):
    return [document for document in yaml.safe_load_all(path.read_text()) if document]


def render(folder, given=()):
    """What `kubectl kustomize folder` prints, but for the hash in the name of a generated ConfigMap and the order."""
    (kustomization,) = read(folder / "kustomization.yml")
    assert kustomization.keys() <= KNOWN, kustomization.keys() - KNOWN
    found = copy.deepcopy(list(given))
    for name in kustomization.get("resources", []):
        place = folder / name
        found += render(place) if place.is_dir() else read(place)
    for name in kustomization.get("components", []):
        found = render(folder / name, found)
    for generated in kustomization.get("configMapGenerator", []):
        found = _generate(found, generated)
    for patch in kustomization.get("patches", []):
        for change in read(folder / patch["path"]):
            (target,) = (d for d in found if _id(d) == _id(change))
            found[found.index(target)] = _merge(target, change)
    for document in found:
        if "namespace" in kustomization and document["kind"] not in CLUSTER_WIDE:
            document["metadata"]["namespace"] = kustomization["namespace"]
        for image in kustomization.get("images", []):
            for container in containers(document):
                name, tag = container["image"].rsplit(":", 1)
                if name == image["name"]:
                    container["image"] = f"{image.get('newName', name)}:{image.get('newTag', tag)}"
    return found


def containers(document):
    return document.get("spec", {}).get("template", {}).get("spec", {}).get("containers", [])


def _id(document):
    return document["kind"], document["metadata"]["name"]


def _generate(found, generated):
    data = dict(literal.split("=", 1) for literal in generated["literals"])
    if generated.get("behavior", "create") == "merge":
        (old,) = (d for d in found if _id(d) == ("ConfigMap", generated["name"]))
        old["data"].update(data)
        return found
    return [*found, {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": generated["name"]}, "data": data}]


def _merge(old, new, place=""):
    if isinstance(old, dict) and isinstance(new, dict):
        merged = {key: value for key, value in old.items() if key not in new}
        for key, value in new.items():
            if value is not None:
                merged[key] = _merge(old[key], value, key) if key in old else value
        return merged
    if isinstance(old, list) and isinstance(new, list) and (key := MERGED_BY[place]):
        changes = {item[key]: item for item in new}
        kept = [_merge(item, changes.pop(item[key], {})) for item in old]
        return kept + list(changes.values())
    return new
