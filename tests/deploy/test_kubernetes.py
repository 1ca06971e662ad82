"""The manifests: valid for the operator, pinned, without a secret, and one with the other files."""

import importlib.util
import json
import re
import shutil
import subprocess
from copy import deepcopy
from typing import Any

import jsonschema
import pytest
import yaml

from schemas.spec import load_spec
from tests.deploy.flink_options import is_option
from tests.deploy.image import dockerfile_environment, in_image
from tests.deploy.repository import (
    DEPLOY,
    ROOT,
    SCHEMAS,
    flink_version,
    mistake,
    read_yaml,
    tidegate_image,
)
from tests.deploy.test_image import flat

FOLDER = DEPLOY / "kubernetes"
DEPLOYMENT = read_yaml(FOLDER / "flink-deployment.yaml")
TOPICS = read_yaml(FOLDER / "topics.yaml")
KUSTOMIZATION = read_yaml(FOLDER / "kustomization.yaml")
SPEC = DEPLOYMENT["spec"]
#: A newer operator has these, too; the vendored schema is of an older one (schemas/README.md).
NEWER_FLINKS = ["v2_0", "v2_1", "v2_2", "v2_3"]
#: Settings of the base that a pod has otherwise: addresses, ports and directories are the
#: operator's, and the memory of a process is its pod's.
OF_THE_POD = re.compile(
    r".*\.(address|bind-address|bind-host|host|port|bind-port|dirs|root-dir)"
    r"|rest\..*|blob\..*|(jobmanager|taskmanager)\.memory\..*|jobmanager\.rpc\..*"
    r"|high-availability\.(zookeeper\..*|cluster-id)|env\.(java\.home|log\.dir|pid\.dir)"
)
#: Settings that are meant to differ from the base, each with its reason in the manifest.
OTHER_HERE = {
    "execution.checkpointing.dir",
    "execution.checkpointing.savepoint-dir",
    "high-availability.storageDir",
    "high-availability.type",
    "taskmanager.numberOfTaskSlots",
}


def schema() -> dict[str, Any]:
    """The vendored schema, with the Flink versions that came after it."""
    found: dict[str, Any] = json.loads(
        (SCHEMAS / "flinkdeployment.json").read_text(encoding="utf-8")
    )
    found["$defs"]["spec"]["properties"]["flinkVersion"]["enum"] += NEWER_FLINKS
    return found


def containers() -> list[dict[str, Any]]:
    """The containers of every pod template."""
    templates = [SPEC["podTemplate"], TOPICS["spec"]["template"]]
    templates += [SPEC[role]["podTemplate"] for role in ("jobManager", "taskManager")]
    return [each for template in templates for each in template["spec"]["containers"]]


def test_the_deployment_is_one_of_the_operators() -> None:
    """Unknown fields are refused here; Kubernetes drops them without a word."""
    assert ("flink.apache.org/v1beta1", "FlinkDeployment") == (
        DEPLOYMENT["apiVersion"],
        DEPLOYMENT["kind"],
    )
    assert {"apiVersion", "kind", "metadata", "spec"} == DEPLOYMENT.keys()
    jsonschema.Draft202012Validator(schema()).validate(SPEC)


def test_the_schema_refuses_a_field_that_does_not_exist() -> None:
    """Also deep in a pod template: the check above is not empty."""
    wrong = deepcopy(SPEC)
    wrong["podTemplate"]["spec"]["containers"][0]["securityContext"]["runAsNotRoot"] = True
    with pytest.raises(jsonschema.ValidationError, match="runAsNotRoot"):
        jsonschema.Draft202012Validator(schema()).validate(wrong)


def test_the_pods_of_the_topics_are_pods() -> None:
    """By the same schema of a pod template."""
    assert ("batch/v1", "Job") == (TOPICS["apiVersion"], TOPICS["kind"])
    whole = schema()
    whole["$ref"] = "#/$defs/podTemplate"
    jsonschema.Draft202012Validator(whole).validate(TOPICS["spec"]["template"])


def test_versions_are_those_that_are_pinned() -> None:
    """Flink's three times, and this project's."""
    major, minor, _ = flink_version().split(".")
    assert f"v{major}_{minor}" == SPEC["flinkVersion"]
    assert SPEC["job"]["jarURI"].endswith(f"/flink-python-{flink_version()}.jar")
    (image,) = KUSTOMIZATION["images"]
    assert tidegate_image() == f"{image['name']}:{image['newTag']}"
    (topics,) = TOPICS["spec"]["template"]["spec"]["containers"]
    assert {tidegate_image()} == {SPEC["image"], topics["image"]}


def test_paths_of_flink_are_those_of_the_image() -> None:
    """The jar, and the Python that has the packages."""
    home = dockerfile_environment()["FLINK_HOME"]
    assert SPEC["job"]["jarURI"].startswith(f"local://{home}/opt/")
    pythons = [word for word in SPEC["job"]["args"] if word.endswith("/python")]
    assert {"/opt/venv/bin/python"} == set(pythons)
    assert dockerfile_environment()["PATH"].startswith("/opt/venv/bin:")


def test_every_setting_is_one_of_flinks() -> None:
    """Those in comments, too, which are there to be taken out of them."""
    text = (FOLDER / "flink-deployment.yaml").read_text(encoding="utf-8")
    commented = re.findall(r"^ +# ([a-z][\w.-]+\.[\w.-]+): \S", text, re.MULTILINE)
    assert "state.backend.type" in commented
    names = [*SPEC["flinkConfiguration"], *commented]
    assert [] == [name for name in names if not is_option(name)]


def test_the_base_configuration_is_in_it() -> None:
    """The operator's configuration takes the place of the image's, so it must hold all of it."""
    base = flat(read_yaml(DEPLOY / "flink" / "config.yaml"))
    here = SPEC["flinkConfiguration"]
    shared = {name: value for name, value in base.items() if not OF_THE_POD.fullmatch(name)}
    assert [] == [name for name in shared if name not in here]
    other = [name for name, value in shared.items() if _text(value) != _text(here[name])]
    assert [] == sorted(set(other) - OTHER_HERE)


def test_state_lies_in_object_storage() -> None:
    """A pod's own disk goes with it."""
    for name, value in SPEC["flinkConfiguration"].items():
        if name.endswith(("dir", "Dir")):
            assert value.startswith("s3://"), name


def test_an_upgrade_goes_on_from_a_savepoint() -> None:
    """Stateless would lose every key, in silence."""
    assert "savepoint" == SPEC["job"]["upgradeMode"]
    assert "execution.checkpointing.savepoint-dir" in SPEC["flinkConfiguration"]


def test_the_job_is_the_module_that_is_there() -> None:
    """Its name, its option, and Flink's own arguments before it."""
    words = SPEC["job"]["args"]
    at = words.index("-pym")
    found = importlib.util.find_spec(words[at + 1])
    assert found
    assert found.origin
    with open(found.origin, encoding="utf-8") as file:
        source = file.read()
    options = [word for word in words[at + 2 :] if word.startswith("-")]
    assert ["--spec"] == options
    assert [] == [option for option in options if f'"{option}"' not in source]


def test_the_commands_exist() -> None:
    """Of the Job that makes the topics."""
    (topics,) = TOPICS["spec"]["template"]["spec"]["containers"]
    assert mistake(topics["args"]) is None


def test_the_spec_is_mounted_where_it_is_looked_for() -> None:
    """In every pod that reads it."""
    (generator,) = KUSTOMIZATION["configMapGenerator"]
    (file,) = generator["files"]
    for template, words in (
        (SPEC["podTemplate"], SPEC["job"]["args"]),
        (TOPICS["spec"]["template"], TOPICS["spec"]["template"]["spec"]["containers"][0]["args"]),
    ):
        (volume,) = template["spec"]["volumes"]
        assert generator["name"] == volume["configMap"]["name"]
        (container,) = template["spec"]["containers"]
        (mount,) = container["volumeMounts"]
        assert volume["name"] == mount["name"]
        assert f"{mount['mountPath']}/{file}" in words


def test_the_spec_is_that_of_the_example_but_for_its_broker_and_the_path_of_its_model() -> None:
    """The model's is that of the image."""
    example = load_spec(ROOT / "examples" / "shipments" / "shipments.toml")
    here = load_spec(FOLDER / "shipments.toml")
    assert example.decisions() == here.decisions()
    assert (example.name, example.sink) == (here.name, here.sink)
    assert "examples/shipments/model.onnx" == in_image(here.model.path)


def test_there_are_no_more_subtasks_than_partitions() -> None:
    """Those beyond would have nothing to do."""
    assert load_spec(FOLDER / "shipments.toml").source.partitions >= SPEC["job"]["parallelism"]


def test_no_secret_stands_in_a_file() -> None:
    """A variable that holds one takes it from a Secret."""
    for container in containers():
        for variable in container.get("env", []):
            if re.search("KEY|SECRET|PASSWORD|TOKEN", variable["name"]):
                assert ["secretKeyRef"] == list(variable["valueFrom"]), variable["name"]


def test_pods_do_not_run_as_root_and_may_nothing() -> None:
    """Both kinds; the number is that of the image."""
    for template in (SPEC["podTemplate"], TOPICS["spec"]["template"]):
        security = template["spec"]["securityContext"]
        assert security["runAsNonRoot"]
        assert (9999, 9999) == (security["runAsUser"], security["runAsGroup"])
        (container,) = template["spec"]["containers"]
        assert not container["securityContext"]["allowPrivilegeEscalation"]
        assert ["ALL"] == container["securityContext"]["capabilities"]["drop"]


def test_every_role_of_flink_is_probed_on_a_port_that_it_serves() -> None:
    """The container has the name by which the operator finds it."""
    port = int(SPEC["flinkConfiguration"]["metrics.reporter.prom.port"])
    for role, expected in (("jobManager", 8081), ("taskManager", port)):
        (container,) = SPEC[role]["podTemplate"]["spec"]["containers"]
        assert "flink-main-container" == container["name"]
        probes = {name: probe for name, probe in container.items() if name.endswith("Probe")}
        assert {"startupProbe", "livenessProbe"} <= probes.keys()
        for probe in probes.values():
            assert expected == (probe.get("httpGet") or probe["tcpSocket"])["port"]
    annotations = SPEC["podTemplate"]["metadata"]["annotations"]
    assert str(port) == annotations["prometheus.io/port"]


def test_every_file_is_in_the_kustomization() -> None:
    """A manifest that nothing applies is forgotten."""
    named = {*KUSTOMIZATION["resources"], *KUSTOMIZATION["configurations"]}
    named |= {file for each in KUSTOMIZATION["configMapGenerator"] for file in each["files"]}
    assert named | {"kustomization.yaml"} == {path.name for path in FOLDER.iterdir()}


@pytest.mark.skipif(not shutil.which("kubectl"), reason="no kubectl here")
def test_a_changed_spec_changes_the_deployment() -> None:
    """Kustomize puts the digest in the ConfigMap's name, also where a FlinkDeployment names it."""
    done = subprocess.run(
        ["kubectl", "kustomize", FOLDER], capture_output=True, text=True, check=True
    )
    built = {each["kind"]: each for each in yaml.safe_load_all(done.stdout)}
    name = built["ConfigMap"]["metadata"]["name"]
    assert re.fullmatch(r"shipments-spec-\w{10}", name)
    (volume,) = built["FlinkDeployment"]["spec"]["podTemplate"]["spec"]["volumes"]
    assert name == volume["configMap"]["name"]
    assert tidegate_image() == built["FlinkDeployment"]["spec"]["image"]


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
