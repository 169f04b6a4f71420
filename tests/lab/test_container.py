"""A driver as a DaemonSet has it: manifests, an image's archive, and what runc is given."""

from __future__ import annotations

import gzip
import io
import json
import os
import tarfile
from collections.abc import Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from launcherkit_lab.container.driver import ALL, archives_of
from launcherkit_lab.container.image import BadImage, ImageConfig, unpack
from launcherkit_lab.container.manifest import Identity, Pod, arguments, make_volumes, read_pod, variables
from launcherkit_lab.container.objects import BadManifest, Container, PodSpec
from launcherkit_lab.container.oci import Extras, specification

CONFIG = {"Entrypoint": ["/plugin"], "Cmd": ["serve"], "Env": ["PATH=/bin"], "User": "nobody", "WorkingDir": "/work"}
SAID = ImageConfig(("/plugin",), ("serve",), ("PATH=/bin",), "nobody", "/work")
Layer = Mapping[str, str | None]
"""The text of each file; None: a folder. A text that begins with ``->`` is a link."""

LOWER: Layer = {"bin": None, "bin/old": "old", "bin/kept": "kept", "all": None, "all/a": "a", "plugin": "1"}
UPPER: Layer = {"bin/.wh.old": "", "all/.wh..wh..opq": "", "all/new": "new", "plugin": "2"}


def tar_of(layer: Layer) -> bytes:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as archive:
        for name, text in layer.items():
            member = tarfile.TarInfo(name)
            member.uid, member.gid = os.getuid(), os.getgid()
            if text is None:
                member.type, member.mode = tarfile.DIRTYPE, 0o755
            elif text.startswith("->"):
                member.type, member.linkname = tarfile.SYMTYPE, text[2:]
            else:
                member.size = len(text)
            archive.addfile(member, io.BytesIO((text or "").encode()))
    return file.getvalue()


def archive_of(path: Path, members: Mapping[str, bytes]) -> Path:
    with tarfile.open(path, "w") as archive:
        for name, content in members.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return path


def blob(members: dict[str, bytes], content: bytes, **described: object) -> dict[str, object]:
    digest = sha256(content).hexdigest()
    members[f"blobs/sha256/{digest}"] = content
    return {"digest": f"sha256:{digest}", "size": len(content), **described}


def oci(path: Path, *layers: Layer, platforms: Sequence[str] = ()) -> Path:
    """An OCI archive with compressed layers; with an index if it is for other platforms too."""
    members: dict[str, bytes] = {"oci-layout": b'{"imageLayoutVersion": "1.0.0"}'}
    manifest = {
        "config": blob(members, json.dumps({"config": CONFIG}).encode()),
        "layers": [blob(members, gzip.compress(tar_of(layer))) for layer in layers],
    }
    kind = "application/vnd.oci.image.manifest.v1+json"
    described = blob(members, json.dumps(manifest).encode(), mediaType=kind)
    if platforms:
        others = [{**described, "digest": "sha256:0", "platform": {"architecture": name}} for name in platforms]
        every = [*others, {**described, "platform": {"architecture": "amd64"}}]
        index = json.dumps({"manifests": every}).encode()
        described = blob(members, index, mediaType="application/vnd.oci.image.index.v1+json")
    members["index.json"] = json.dumps({"manifests": [described]}).encode()
    return archive_of(path, members)


def docker(path: Path, *layers: Layer, images: int = 1) -> Path:
    members = {f"{number}/layer.tar": tar_of(layer) for number, layer in enumerate(layers)}
    described = {"Config": "config.json", "Layers": [*members]}
    members["config.json"] = json.dumps({"config": CONFIG}).encode()
    members["manifest.json"] = json.dumps([described] * images).encode()
    return archive_of(path, members)


def files(folder: Path) -> dict[str, str]:
    return {str(path.relative_to(folder)): path.read_text() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("write", [oci, docker])
def test_layers_are_stacked_and_whiteouts_take_away_what_is_below(tmp_path: Path, write: Any) -> None:
    said = unpack(write(tmp_path / "image.tar", LOWER, UPPER), tmp_path / "root")
    assert said == SAID
    assert files(tmp_path / "root") == {"bin/kept": "kept", "all/new": "new", "plugin": "2"}


def test_of_an_image_for_several_platforms_it_is_that_of_the_machine(tmp_path: Path) -> None:
    archive = oci(tmp_path / "image.tar", LOWER, platforms=("arm64", "s390x"))
    assert unpack(archive, tmp_path / "root") == SAID


def test_a_whiteout_behind_a_link_takes_nothing_outside(tmp_path: Path) -> None:
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "file").write_text("mine")
    layers: list[Layer] = [{"link": f"->{tmp_path}/outside"}, {"link/.wh.file": ""}, {"link/.wh..wh..opq": ""}]
    unpack(docker(tmp_path / "image.tar", *layers), tmp_path / "root")
    assert (tmp_path / "outside" / "file").read_text() == "mine"


@pytest.mark.parametrize(
    ("members", "reason"),
    [
        ({}, "it has no index.json"),
        ({"index.json": b"{}"}, "it is no archive of an image: 'manifests'"),
        ({"index.json": b'{"manifests": []}'}, "it has 0 images"),
        ({"manifest.json": b"["}, "it is no archive of an image"),
        ({"manifest.json": b'[{"Config": "c", "Layers": []}]', "c": b"[]"}, "it is no archive of an image"),
        ({"manifest.json": b'[{"Config": "c", "Layers": []}]'}, "it has no c"),
        (
            {"manifest.json": b'[{"Config": "c", "Layers": ["l"]}]', "c": b"{}", "l": b"no tar"},
            "a layer can't be unpacked",
        ),
    ],
)
def test_what_is_no_image_is_named(tmp_path: Path, members: dict[str, bytes], reason: str) -> None:
    archive = archive_of(tmp_path / "image.tar", members)
    with pytest.raises(BadImage) as refused:
        unpack(archive, tmp_path / "root")
    assert str(refused.value).startswith(f"{archive}: {reason}")


def test_of_two_images_none_is_chosen(tmp_path: Path) -> None:
    with pytest.raises(BadImage, match="it has 2 images; save the one"):
        unpack(docker(tmp_path / "image.tar", LOWER, images=2), tmp_path / "root")


# Manifests

CONTAINER = "spec.template.spec.containers[0]"
DAEMON_SET = """\
apiVersion: v1
kind: ConfigMap
metadata: {name: settings, namespace: devices}
data: {config.yaml: "a: 1", LEVEL: debug}
binaryData: {kernel: AP8=}
---
apiVersion: apps/v1
kind: DaemonSet
metadata: {name: plugin, namespace: devices}
spec:
  template:
    metadata: {labels: {app: plugin}}
    spec:
      hostPID: true
      containers:
        - name: plugin
          image: example.org/plugin:1
          args: ["--node=$(NODE)", "--level=$(LEVEL)", "--as=$(UNKNOWN)", "$$(NODE)"]
          envFrom: [{configMapRef: {name: settings}, prefix: ""}, {configMapRef: {name: none, optional: true}}]
          env:
            - {name: NODE, valueFrom: {fieldRef: {fieldPath: metadata.name}}}
            - {name: APP, valueFrom: {fieldRef: {fieldPath: "metadata.labels['app']"}}}
            - {name: MAYBE, valueFrom: {secretKeyRef: {name: s, key: k, optional: true}}}
            - {name: PLACE, value: "$(NODE)/x"}
            - {name: EMPTY}
          securityContext: {capabilities: {drop: [ALL], add: [SYS_ADMIN]}, runAsUser: 7}
          volumeMounts:
            - {name: plugins, mountPath: /var/lib/kubelet/device-plugins}
            - {name: config, mountPath: /etc/plugin, readOnly: true}
            - {name: dev, mountPath: /dev/vfio, mountPropagation: HostToContainer}
      volumes:
        - {name: plugins, hostPath: {path: PLACE/plugins}}
        - {name: dev, hostPath: {path: PLACE/vfio, type: DirectoryOrCreate}}
        - {name: config, configMap: {name: settings, items: [{key: config.yaml, path: sub/plugin.yaml}]}}
        - {name: unused, secret: {secretName: s}}
"""


def written(folder: Path, text: str = DAEMON_SET) -> Path:
    path = folder / "daemonset.yaml"
    path.write_text(text.replace("PLACE/", f"{folder}/"))
    return path


def pod(folder: Path, text: str = DAEMON_SET) -> Pod:
    return read_pod([written(folder, text)])


def pod_with(**fields: Any) -> Pod:
    return Pod("p", "n", {}, PodSpec(), [Container.model_validate({"name": "c", **fields})])


def specification_of(only: Pod, image: ImageConfig, root: Path, extras: Extras) -> dict[str, Any]:
    return specification(only, only.containers[0], image, root, extras)


def test_a_container_is_told_what_its_manifest_and_its_image_say(tmp_path: Path) -> None:
    read = pod(tmp_path)
    env = variables(read, read.containers[0], SAID.env)
    own = {"config.yaml": "a: 1", "LEVEL": "debug", "NODE": "plugin", "APP": "plugin", "PLACE": "plugin/x", "EMPTY": ""}
    assert env == {"PATH": "/bin", **own}
    words = arguments(read.containers[0], SAID.entrypoint, SAID.command, env)
    assert words == ["/plugin", "--node=plugin", "--level=debug", "--as=$(UNKNOWN)", "$(NODE)"]


@pytest.mark.parametrize(
    ("own", "words"),
    [
        ({}, ["/plugin", "serve"]),
        ({"args": []}, ["/plugin"]),
        ({"args": ["x"]}, ["/plugin", "x"]),
        ({"command": ["/other"]}, ["/other"]),
        ({"command": ["/other"], "args": ["x"]}, ["/other", "x"]),
    ],
)
def test_command_and_args_take_the_place_of_the_images(own: dict[str, list[str]], words: list[str]) -> None:
    assert arguments(pod_with(**own).containers[0], SAID.entrypoint, SAID.command, {}) == words


def test_volumes_are_the_nodes_own_or_made_of_config_maps(tmp_path: Path) -> None:
    volumes = make_volumes(pod(tmp_path), tmp_path / "volumes")
    assert {name: str(path.relative_to(tmp_path)) for name, path in volumes.items()} == {
        "plugins": "plugins",
        "dev": "vfio",
        "config": "volumes/config",
    }
    assert files(volumes["config"]) == {"sub/plugin.yaml": "a: 1"}
    assert (tmp_path / "vfio").is_dir()


def test_binary_files_of_a_config_map_are_what_base64_says(tmp_path: Path) -> None:
    text = DAEMON_SET.replace(", items: [{key: config.yaml, path: sub/plugin.yaml}]", "")
    config = make_volumes(pod(tmp_path, text), tmp_path / "volumes")["config"]
    assert {path.name: path.read_bytes() for path in config.iterdir()} == {
        "config.yaml": b"a: 1",
        "LEVEL": b"debug",
        "kernel": b"\x00\xff",
    }
    with pytest.raises(BadManifest, match=r"ConfigMap settings: binaryData\.kernel: "):
        pod(tmp_path, DAEMON_SET.replace("AP8=", "A"))


def test_runc_is_given_all_of_it(tmp_path: Path) -> None:
    read = pod(tmp_path)
    extras = Extras(make_volumes(read, tmp_path / "volumes"))
    made = specification(read, read.containers[0], SAID._replace(user="3:4"), tmp_path, extras)
    assert made["process"]["user"] == {"uid": 7, "gid": 0, "additionalGids": []}
    assert (made["process"]["cwd"], made["process"]["noNewPrivileges"]) == ("/work", False)
    assert made["process"]["capabilities"]["effective"] == ["CAP_SYS_ADMIN"]
    assert {each["type"] for each in made["linux"]["namespaces"]} == {"mount", "uts", "cgroup", "network", "ipc"}
    binds = {each["destination"]: each["options"] for each in made["mounts"] if each["type"] == "bind"}
    assert binds == {
        "/var/lib/kubelet/device-plugins": ["rbind", "rprivate"],
        "/etc/plugin": ["rbind", "rprivate", "ro"],
        "/dev/vfio": ["rbind", "rslave"],
    }


def test_a_container_that_says_nothing_has_what_containerd_leaves_it(tmp_path: Path) -> None:
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc/passwd").write_text("root:x:0:0::/root:/bin/sh\nnobody:x:65534:65533::/:/bin/false\n")
    made = specification_of(pod_with(), SAID, tmp_path, Extras({}))
    assert made["process"]["user"] == {"uid": 65534, "gid": 65533, "additionalGids": []}
    assert len(made["process"]["capabilities"]["bounding"]) == 14
    assert made["linux"]["resources"]["devices"] == [{"allow": False, "access": "rwm"}]
    assert "/proc/sys" in made["linux"]["readonlyPaths"]
    user, group = 65534, 12
    made = specification_of(pod_with(), SAID._replace(user=f"nobody:{group}"), tmp_path, Extras({}))
    assert made["process"]["user"] == {"uid": user, "gid": group, "additionalGids": []}
    with pytest.raises(BadManifest, match="passwd has no somebody, as which it is to run"):
        specification_of(pod_with(), SAID._replace(user="somebody"), tmp_path, Extras({}))


def test_what_a_container_says_of_its_rights_goes_before_what_its_pod_says(tmp_path: Path) -> None:
    of_pod = {"runAsUser": 5, "runAsGroup": 6, "supplementalGroups": [9], "fsGroup": 8}
    spec = PodSpec.model_validate({"securityContext": of_pod})
    own = pod_with(securityContext={"runAsUser": 0, "readOnlyRootFilesystem": True})._replace(spec=spec)
    made = specification_of(own, SAID, tmp_path, Extras({}))
    assert made["process"]["user"] == {"uid": 0, "gid": 6, "additionalGids": [8, 9]}
    assert made["root"]["readonly"]


def test_a_privileged_one_may_do_everything(tmp_path: Path) -> None:
    privileged = pod_with(securityContext={"privileged": True, "allowPrivilegeEscalation": False})
    made = specification_of(privileged, SAID._replace(user=""), tmp_path, Extras({}))
    assert {"CAP_SYS_ADMIN", "CAP_SYS_MODULE"} <= set(made["process"]["capabilities"]["effective"])
    assert made["linux"]["resources"]["devices"] == [{"allow": True, "access": "rwm"}]
    assert {"/dev/null"} <= {each["path"] for each in made["linux"]["devices"]}
    assert not {"readonlyPaths", "maskedPaths"} & made["linux"].keys()
    assert [each["options"] for each in made["mounts"] if each["destination"] == "/sys"] == [
        ["nosuid", "noexec", "nodev"]
    ]
    assert not made["process"]["noNewPrivileges"]


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        ("kind: DaemonSet", "kind: Job", "one DaemonSet or Deployment or StatefulSet or Pod is started"),
        ("name: none, optional: true", "name: none", "envFrom: ConfigMap none isn't in the manifests"),
        ("name: s, key: k, optional: true", "name: s, key: k", "env MAYBE: Secret s isn't in the manifests"),
        ("fieldPath: metadata.name", "fieldPath: status.hostIPs", "env NODE: status.hostIPs isn't in the manifests"),
        ("name: unused", "name: dev2", None),
        ("mountPath: /dev/vfio", "mountPath: /dev/vfio}\n            - {name: none, mountPath: /x", "no volume none"),
        ("type: DirectoryOrCreate", "type: Socket", "vfio isn't here, and its type Socket wants it"),
        ("configMap: {name: settings, items", "secret: {name: settings, items", "volume config: secret: what is made"),
        ("key: config.yaml, path", "key: none.yaml, path", "volume config: settings has no none.yaml"),
        ("a: 1", 'a: "', "daemonset.yaml: "),
        ("- {name: EMPTY}", "- {value: x}", f"DaemonSet plugin: {CONTAINER}.env[4].name: Field required"),
        ("{name: EMPTY}", "{name: N, value: 1}", f"{CONTAINER}.env[4].value: Input should be a valid string"),
        ("{name: EMPTY}", "{name: N, value: null}", None),
        ("mountPath: /etc/plugin, ", "", f"{CONTAINER}.volumeMounts[1].mountPath: Field required"),
        ("runAsUser: 7", "runAsUser: seven", f"{CONTAINER}.securityContext.runAsUser: Input should be a valid integer"),
        ("hostPID: true", "hostPID: 'yes'", "spec.template.spec.hostPID: Input should be a valid boolean"),
        ("LEVEL: debug", "LEVEL: 3", "ConfigMap settings: data.LEVEL: Input should be a valid string"),
        ("metadata: {name: plugin,", "metadata: {", "DaemonSet ?: metadata.name: Field required"),
        ("hostPath: {path: PLACE/plugins}", "hostPath: [PLACE/plugins]", "volumes[0].hostPath: Input should be"),
        ("hostPath: {path: PLACE/plugins}", "hostPath: null", "volume plugins: no kind: what is made"),
    ],
)
def test_what_can_not_be_started_here_is_named(tmp_path: Path, old: str, new: str, reason: str | None) -> None:
    assert DAEMON_SET.count(old) == 1, old

    def start() -> None:
        read = pod(tmp_path, DAEMON_SET.replace(old, new))
        variables(read, read.containers[0], ())
        make_volumes(read, tmp_path / "volumes")

    if reason is None:
        start()
        return
    with pytest.raises(BadManifest) as refused:
        start()
    assert reason in str(refused.value)


SEVERAL = DAEMON_SET.replace(
    "      containers:\n",
    """\
      initContainers:
        - {name: make, command: [make], volumeMounts: [{name: first, mountPath: /first}]}
        - {name: beside, restartPolicy: Always}
      containers:
        - {name: other, command: [x]}
""",
)


def test_all_containers_are_started_or_those_that_are_named(tmp_path: Path) -> None:
    read = pod(tmp_path, SEVERAL)
    assert [one.name for one in read.first] == ["make"]
    with pytest.raises(BadManifest, match="the pod has no volume first"):
        make_volumes(read, tmp_path / "volumes")
    assert [one.name for one in read.containers] == ["beside", "other", "plugin"]
    chosen = read_pod([written(tmp_path, SEVERAL)], ["plugin", "beside"])
    assert [one.name for one in chosen.containers] == ["beside", "plugin"]
    with pytest.raises(BadManifest, match="containers: none is not there; there are beside, other, plugin"):
        read_pod([written(tmp_path, SEVERAL)], ["other", "none"])


def test_a_container_has_the_image_that_is_given_for_it_or_else_that_for_all(tmp_path: Path) -> None:
    read = pod(tmp_path, SEVERAL)
    own, common = Path("own"), Path("all")
    assert archives_of(read, {ALL: common, "other": own}) == {
        "make": common,
        "beside": common,
        "other": own,
        "plugin": common,
    }
    with pytest.raises(BadManifest, match="no image is given for make, beside, plugin: --image make=ARCHIVE"):
        archives_of(read, {"other": own})
    with pytest.raises(BadManifest, match="no container none, of which an image is given; it has make, beside, other"):
        archives_of(read, {ALL: common, "none": own})


ASKING = """\
kind: Pod
metadata: {name: p, namespace: n}
spec:
  containers:
    - {name: c, env: [{name: NODE, valueFrom: {fieldRef: {fieldPath: spec.nodeName}}}]}
    - {name: d, volumeMounts: [{name: own, mountPath: /var/run/secrets/kubernetes.io/serviceaccount}]}
  volumes:
    - name: own
      projected:
        sources:
          - serviceAccountToken: {path: token, expirationSeconds: 3600}
          - configMap: {name: kube-root-ca.crt, items: [{key: ca.crt, path: authority}]}
          - downwardAPI: {items: [{path: namespace, fieldRef: {fieldPath: metadata.namespace}}]}
"""
SERVER = Identity("10.0.0.1", 6443, "secret", b"certificate")


def test_a_pod_that_may_ask_the_server_has_its_token_and_its_address(tmp_path: Path) -> None:
    asking = pod(tmp_path, ASKING)._replace(node="node-1", identity=SERVER)
    volumes = make_volumes(asking, tmp_path / "volumes")
    assert files(volumes["kube-api-access"]) == {"token": "secret", "ca.crt": "certificate", "namespace": "n"}
    assert files(volumes["own"]) == {"token": "secret", "authority": "certificate", "namespace": "n"}
    made = [specification(asking, one, SAID._replace(user=""), tmp_path, Extras(volumes)) for one in asking.containers]
    assert {"KUBERNETES_SERVICE_HOST=10.0.0.1", "KUBERNETES_SERVICE_PORT=6443", "NODE=node-1"} <= {
        *made[0]["process"]["env"]
    }
    tokens = [
        [each["source"] for each in one["mounts"] if each["destination"].endswith("/serviceaccount")] for one in made
    ]
    assert tokens == [[str(volumes["kube-api-access"])], [str(volumes["own"])]]
    assert "network" not in {each["type"] for each in made[0]["linux"]["namespaces"]}
    assert [one["linux"]["cgroupsPath"] for one in made] == ["/p-c", "/p-d"]


def test_one_that_wants_no_token_has_none_but_its_address(tmp_path: Path) -> None:
    text = ASKING.replace("spec:\n", "spec:\n  automountServiceAccountToken: false\n", 1)
    asking = pod(tmp_path, text)._replace(identity=SERVER)
    assert [*make_volumes(asking, tmp_path / "volumes")] == ["own"]
    made = specification(asking, asking.containers[0], SAID._replace(user=""), tmp_path, Extras({}))
    assert "KUBERNETES_SERVICE_HOST=10.0.0.1" in made["process"]["env"]
    assert not [each for each in made["mounts"] if each["destination"].endswith("/serviceaccount")]


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        ("", "", "volume own: serviceAccountToken isn't in the manifests, and there is no API server to ask"),
        ("serviceAccountToken: {path: token, expirationSeconds: 3600}", "secret: {name: s}", "volume own: secret: "),
        ("serviceAccountToken:", "x: 1\n            serviceAccountToken:", "serviceAccountToken isn't in"),
    ],
)
def test_without_a_server_there_is_no_token(tmp_path: Path, old: str, new: str, reason: str) -> None:
    with pytest.raises(BadManifest) as refused:
        make_volumes(pod(tmp_path, ASKING.replace(old, new) if old else ASKING), tmp_path / "volumes")
    assert reason in str(refused.value)


def test_the_group_of_a_pods_files_owns_what_is_made_for_it(tmp_path: Path) -> None:
    group = os.getgid() or 4711  # root may give files away
    text = DAEMON_SET.replace("      hostPID: true\n", f"      securityContext: {{fsGroup: {group}}}\n").replace(
        "hostPath: {path: PLACE/plugins}", "emptyDir: {}"
    )
    volumes = make_volumes(pod(tmp_path, text), tmp_path / "volumes")
    assert (volumes["plugins"].stat().st_mode & 0o7777, volumes["plugins"].stat().st_gid) == (0o2777, group)
    assert (volumes["config"] / "sub/plugin.yaml").stat().st_gid == group
    without = make_volumes(pod(tmp_path, text.replace(f"fsGroup: {group}", "")), tmp_path / "others")
    assert without["plugins"].stat().st_mode & 0o7777 == 0o777


def test_the_objects_of_a_list_and_of_several_files_are_taken_together(tmp_path: Path) -> None:
    settings, daemon_set = DAEMON_SET.split("---\n")
    settings += "---\n" + settings.replace("namespace: devices", "namespace: other").replace("debug", "info")
    (tmp_path / "settings.json").write_text('{"kind": "List", "items": []}')
    (tmp_path / "settings.yaml").write_text(settings)
    read = read_pod([tmp_path / "settings.json", tmp_path / "settings.yaml", written(tmp_path, daemon_set)])
    assert (str(read), [*read.maps]) == ("pod devices/plugin", ["settings"])
    assert variables(read, read.containers[0], ())["LEVEL"] == "debug"
