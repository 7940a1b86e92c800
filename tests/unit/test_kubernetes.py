"""The example for Kubernetes: its configuration, secrets and objects fit together."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from dblog_core.config.loader import load
from dblog_core.config.secret_settings import CAPTURE, LAKE, READER, secrets_of
from dblog_core.monitoring.clear_text import in_clear_text
from tests.unit.container_files import KUBERNETES, ROOT, our_commands


def test_the_configuration_of_kubernetes_is_one_of_ours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (data,) = [entry["data"] for entry in KUBERNETES if entry["kind"] == "ConfigMap"]
    for name in re.findall(r"\$\{(\w+)\}", data["shop.toml"]):
        monkeypatch.setenv(name, "secret")
    for name, text in data.items():
        (tmp_path / name).write_text(text)
    config = load(tmp_path / "shop.toml")
    assert list(in_clear_text(config)) == []
    relay = next(arguments for name, arguments in our_commands() if name == "dblog-shop-relay")
    assert relay[1] in config.output and config.airflow.capture == "watch"


_NEEDS = {
    "capture": CAPTURE,
    "merge": LAKE,
    "metrics": READER,
    "relay": READER | {"output.events"},
}


@pytest.mark.parametrize("component", _NEEDS)
def test_a_pod_has_the_secrets_that_it_needs_and_no_other(
    component: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = (ROOT / "docs" / "deployment.md").read_text()
    holds = dict(re.findall(r"^kubectl create secret generic (\S+) .*# (\w+)=…$", page, re.MULTILINE))
    (data,) = [entry["data"] for entry in KUBERNETES if entry["kind"] == "ConfigMap"]
    for name, text in data.items():
        (tmp_path / name).write_text(text)
    (pod,) = [
        entry["spec"]["template"]["spec"]["containers"][0]
        for entry in KUBERNETES
        if entry["kind"] == "Deployment" and entry["metadata"]["name"] == f"dblog-shop-{component}"
    ]
    variables = [holds[source["secretRef"]["name"]] for source in pod["envFrom"]]
    for variable in variables:
        monkeypatch.setenv(variable, f"of {variable}")
    config = load(tmp_path / "shop.toml", needs=_NEEDS[component])
    assert sorted(secrets_of(config)) == sorted(f"of {variable}" for variable in variables)


def test_objects_of_kubernetes_select_each_other() -> None:
    pods = [entry["spec"]["template"]["metadata"]["labels"] for entry in KUBERNETES if entry["kind"] == "Deployment"]
    for entry in KUBERNETES:
        selector = entry.get("spec", {}).get("selector")
        if selector is not None:
            wanted_labels = selector.get("matchLabels", selector)
            assert len([labels for labels in pods if wanted_labels.items() <= labels.items()]) == 1, entry["metadata"]
    named = {entry["metadata"]["name"] for entry in KUBERNETES if entry["kind"] == "ConfigMap"}
    run = [entry["spec"] for entry in KUBERNETES if entry["kind"] in ("Deployment", "Pod")]
    templates = [spec.get("template", {}).get("spec", spec) for spec in run]
    mounted = {volume["configMap"]["name"] for spec in templates for volume in spec["volumes"] if "configMap" in volume}
    assert len(templates) == 5 and mounted == named
    for spec in templates:
        assert spec["securityContext"]["runAsNonRoot"] and spec["securityContext"]["runAsUser"] == 10001
        assert spec["automountServiceAccountToken"] is False, "no program of ours asks the cluster's API"
        assert spec["containers"][0]["securityContext"]["capabilities"] == {"drop": ["ALL"]}
        # Airflow writes where it is installed.
        read_only = spec["containers"][0]["securityContext"].get("readOnlyRootFilesystem", False)
        written_places = {mount["mountPath"] for mount in spec["containers"][0]["volumeMounts"]}
        assert read_only == ({"/tmp", "/var/lib/dblog"} <= written_places) == (spec["containers"][0]["name"] == "dblog")
        assert spec["containers"][0]["resources"]["limits"]["memory"]


def test_nobody_connects_to_a_pod_but_prometheus_to_the_metrics() -> None:
    """Which are served in clear, off loopback."""
    policies = {entry["metadata"]["name"]: entry["spec"] for entry in KUBERNETES if entry["kind"] == "NetworkPolicy"}
    assert all(policy["policyTypes"] == ["Ingress"] for policy in policies.values())
    pods = [
        entry.get("spec", {}).get("template", entry) for entry in KUBERNETES if entry["kind"] in ("Deployment", "Pod")
    ]
    assert len(pods) == 5
    for pod in pods:
        labels = pod["metadata"]["labels"].items()
        selecting = [p for p in policies.values() if p["podSelector"]["matchLabels"].items() <= labels]
        assert selecting, "a pod that no policy selects is open to all"
        doors = [port["name"] for container in pod["spec"]["containers"] for port in container.get("ports", ())]
        opened = [rule for policy in selecting for rule in policy["ingress"]]
        assert [port["port"] for rule in opened for port in rule["ports"]] == doors
        assert all(rule["from"] for rule in opened), "from somebody, not from all"
