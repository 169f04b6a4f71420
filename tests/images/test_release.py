"""A release as it is published: to a registry and to an index of the test's, and what their users get from them."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import pytest
import yaml

from launcherkit import __version__
from tests.support.pages import blocks
from tests.support.registry import package_index, registry
from tests.systems.roots import SIGNATURES, root_of
from tools.release.images import REGISTRY, TARGETS

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "how-to" / "release.md"
IMAGES = [f"launcherkit-{target}" for target in TARGETS]
pytestmark = pytest.mark.images


class Published(NamedTuple):
    """A release, and where it was published."""

    folder: Path
    registry: str
    packages: str
    key: Path
    said: str


def release(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tools.release.release", *arguments]
    login = {"TWINE_USERNAME": "me", "TWINE_PASSWORD": "secret"}
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, env=os.environ | login)


def key_in(folder: Path) -> Path:
    """A key made as the page says."""
    (command,) = (block.text for block in blocks(PAGE) if block.text.startswith("openssl genpkey "))
    subprocess.run(command.split(), cwd=folder, check=True, capture_output=True)
    return folder / "key.pem"


def dirty() -> bool:
    """Whether there are changes that no commit has."""
    command = ["git", "-c", "safe.directory=*", "status", "--porcelain"]
    return bool(subprocess.run(command, cwd=ROOT, capture_output=True, check=True).stdout)


def where(it: Published) -> list[str]:
    return [
        "--to-folder",
        str(it.folder),
        "--arch=amd64",
        "--registry",
        it.registry,
        "--plain-http",
        "--index",
        it.packages,
    ]


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Published]:
    """A release for one architecture: another's takes QEMU half an hour."""
    if dirty():
        pytest.skip("a release is of a commit, and there are changes that none has")
    folder = tmp_path_factory.mktemp("release")
    (folder / "index").mkdir()
    with registry(folder) as host, package_index(folder / "index") as index:
        it = Published(folder / "made", f"{host}/gpu", index, key_in(folder), "")
        done = release(*where(it), "--key", str(it.key))
        assert done.returncode == 0, done.stderr
        yield it._replace(said=done.stdout)


def skopeo(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["skopeo", *arguments], capture_output=True, text=True, stdin=subprocess.DEVNULL)


def inspected(address: str, *options: str) -> Any:
    done = skopeo("inspect", "--tls-verify=false", *options, address)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_the_folder_has_all_that_a_release_is(published: Published) -> None:
    kinds = [
        *(
            f"{name}-{__version__}{end}"
            for name in ("launcherkit", "launcherkit_lab", "launcherkit_plugin")
            for end in ENDS
        ),
        *(f"{name}-{__version__}.cdx.json" for name in ("launcherkit", "launcherkit-lab", "launcherkit-plugin")),
        *(
            f"image-{target}-amd64-{__version__}.{kind}.cdx.json"
            for target in TARGETS
            for kind in ("python", "packages")
        ),
        f"launcherkit-plugin-{__version__}.tgz",
        f"launcherkit-docs-{__version__}.tar.gz",
        f"launcherkit-{__version__}.intoto.json",
        *("SHA256SUMS", "SHA256SUMS.sig", "cosign.pub", "oci"),
    ]
    assert sorted(path.name for path in published.folder.iterdir()) == sorted(kinds)


ENDS = ("-py3-none-any.whl", ".tar.gz")


def test_what_was_published_is_said_with_its_digest_and_nothing_else(published: Published) -> None:
    lines = published.said.splitlines()
    assert len([line for line in lines if re.fullmatch(rf"pushed  {published.registry}/\S+@sha256:\w{{64}}", line)]) > 9
    assert len([line for line in lines if re.fullmatch(r"uploaded  launcherkit\S+  \w{64}", line)]) == 6
    assert all(line.startswith(("pushed", "uploaded")) for line in lines)


@pytest.mark.parametrize("image", IMAGES)
def test_the_registry_has_an_index_of_each_image(published: Published, image: str) -> None:
    address = f"docker://{published.registry}/{image}:{__version__}"
    raw = inspected(address, "--raw")
    assert raw["mediaType"] == "application/vnd.oci.image.index.v1+json"
    assert [each["platform"] for each in raw["manifests"]] == [{"architecture": "amd64", "os": "linux"}]
    assert inspected(address)["Labels"]["org.opencontainers.image.title"] == image


@pytest.mark.parametrize("image", IMAGES)
def test_skopeo_and_buildah_read_the_layout(published: Published, image: str) -> None:
    address = f"oci:{published.folder}/oci:{image}:{__version__}"
    done = skopeo("inspect", address)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["Labels"]["org.opencontainers.image.version"] == __version__
    pulled = subprocess.run(["buildah", "pull", "--quiet", address], capture_output=True, text=True)
    assert pulled.returncode == 0, pulled.stderr
    manifest = inspected(address, "--raw")["manifests"][0]["digest"].removeprefix("sha256:")
    settings = json.loads((published.folder / "oci/blobs/sha256" / manifest).read_text())["config"]["digest"]
    assert f"sha256:{pulled.stdout.strip()}" == settings
    # Of the folder buildah makes a name.
    subprocess.run(["buildah", "rmi", f"localhost{published.folder}/oci:latest"], capture_output=True, check=True)


def test_helm_pulls_the_chart_and_it_starts_the_images_that_the_registry_has(
    published: Published, tmp_path: Path
) -> None:
    helm = pytest.importorskip("helm_python", reason="Helm's library isn't here: `./dev test api` installs it")
    with helm.RegistryClient(plain_http=True) as client:
        address = f"oci://{published.registry}/charts/launcherkit-plugin"
        helm.pull(address, client=client, version=__version__, destination=str(tmp_path), plain_http=True)
    (packed,) = tmp_path.glob("*.tgz")
    assert packed.read_bytes() == (published.folder / packed.name).read_bytes()
    assert_chart_starts_what_is_there(helm, packed, published)


def test_helm_reads_the_chart_of_the_layout(published: Published) -> None:
    helm = pytest.importorskip("helm_python", reason="Helm's library isn't here: `./dev test api` installs it")
    manifest = inspected(f"oci:{published.folder}/oci:charts/launcherkit-plugin:{__version__}", "--raw")
    assert manifest["config"]["mediaType"] == "application/vnd.cncf.helm.config.v1+json"
    ((layer),) = manifest["layers"]
    assert layer["mediaType"] == "application/vnd.cncf.helm.chart.content.v1.tar+gzip"
    blob = published.folder / "oci/blobs/sha256" / layer["digest"].removeprefix("sha256:")
    assert_chart_starts_what_is_there(helm, blob, published)


def assert_chart_starts_what_is_there(helm: Any, packed: Path, published: Published) -> None:
    with helm.Chart.load_archive(packed.read_bytes()) as chart:
        assert (chart.name, chart.version) == ("launcherkit-plugin", __version__)
        text = "".join(chart.render({}, name="gpu", namespace="gpus").values())
    images = set(re.findall(r'image: "([^"]+)"', text))
    assert images == {f"{published.registry}/launcherkit-plugin:{__version__}"}
    assert inspected(f"docker://{images.pop()}")["Architecture"] == "amd64"


def test_pip_installs_both_distributions_from_the_index(published: Published, tmp_path: Path) -> None:
    pip = [sys.executable, "-m", "pip", "install", "--no-deps", "--disable-pip-version-check", "--no-cache-dir"]
    names = ["launcherkit", "launcherkit-plugin"]
    options = ["--isolated", "--index-url", f"{published.packages}/simple", "--target", str(tmp_path)]
    done = subprocess.run([*pip, *options, *names], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    for name in names:
        program = [sys.executable, str(tmp_path / "bin" / name), "--version"]
        said = subprocess.run(program, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": str(tmp_path)})
        assert said.stdout.split()[-1] == __version__, said.stderr


def test_the_registry_has_the_other_files_as_oras_pulls_them(published: Published, tmp_path: Path) -> None:
    address = f"docker://{published.registry}/launcherkit:{__version__}"
    manifest = inspected(address, "--raw")
    assert skopeo("copy", "--src-tls-verify=false", address, f"dir:{tmp_path}").returncode == 0
    names = {each["annotations"]["org.opencontainers.image.title"]: each["digest"] for each in manifest["layers"]}
    assert names.keys() == {path.name for path in published.folder.iterdir() if path.is_file()}
    for name, digest in names.items():
        assert (tmp_path / digest.removeprefix("sha256:")).read_bytes() == (published.folder / name).read_bytes()


def test_the_provenance_names_commit_images_and_files(published: Published) -> None:
    said = json.loads((published.folder / f"launcherkit-{__version__}.intoto.json").read_text())
    subjects = {each["name"]: each["digest"]["sha256"] for each in said["subject"]}
    for image in IMAGES:
        raw = skopeo("inspect", "--raw", f"oci:{published.folder}/oci:{image}:{__version__}").stdout.encode()
        assert subjects[f"{published.registry}/{image}:{__version__}"] == hashlib.sha256(raw).hexdigest()
    assert f"launcherkit-docs-{__version__}.tar.gz" in subjects
    head = subprocess.run(
        ["git", "-c", "safe.directory=*", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True
    )
    sources = said["predicate"]["buildDefinition"]["resolvedDependencies"]
    assert sources[0]["digest"]["gitCommit"] == head.stdout.strip()
    assert any("launcherkit-base" in each["uri"] for each in sources)


def test_the_archive_of_the_site_begins_at_its_index(published: Published) -> None:
    top = f"launcherkit-docs-{__version__}"
    with tarfile.open(published.folder / f"{top}.tar.gz") as archive:
        names = archive.getnames()
    assert {f"{top}/index.html", f"{top}/docs/how-to/quickstart.html"} <= set(names)
    assert not [name for name in names if ".doctrees" in name]


# Signatures


def shown(what: str) -> str:
    """A block of the page on releases."""
    return next(block.text for block in blocks(PAGE) if block.reported.get("is") == what)


class Verifier(NamedTuple):
    """A skopeo that knows cosign's signatures, in a root of its own."""

    root: Path
    folder: Path
    """In the root."""

    def pulls(self, address: str, key: Path) -> subprocess.CompletedProcess[str]:
        """Pull from a registry what the key has signed, and nothing else, as the page says."""
        shutil.copy(key, self.folder / "key.pub")
        inside = Path("/", self.folder.relative_to(self.root))
        text = shown("a policy of signatures")
        assert "/etc/containers/cosign.pub" in text
        (self.folder / "policy.json").write_text(text.replace("/etc/containers/cosign.pub", f"{inside}/key.pub"))
        (self.folder / "a.yaml").write_text("default-docker:\n  use-sigstore-attachments: true\n")
        command = [
            "chroot",
            str(self.root),
            "skopeo",
            f"--policy={inside}/policy.json",
            f"--registries.d={inside}",
            "copy",
        ]
        command += ["--src-tls-verify=false", "--remove-signatures", f"docker://{address}", f"dir:{inside}/pulled"]
        try:
            return subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL)
        finally:
            shutil.rmtree(self.folder / "pulled", ignore_errors=True)


@pytest.fixture(scope="module")
def verifier() -> Iterator[Verifier]:
    with root_of(SIGNATURES, os.environ) as (root, _), TemporaryDirectory(dir=root / "tmp") as folder:
        yield Verifier(root, Path(folder))


SIGNED = [*IMAGES, "charts/launcherkit-plugin", "launcherkit"]


@pytest.mark.parametrize("name", SIGNED)
def test_skopeo_verifies_the_signature_as_cosign_does(published: Published, verifier: Verifier, name: str) -> None:
    done = verifier.pulls(f"{published.registry}/{name}:{__version__}", published.folder / "cosign.pub")
    assert done.returncode == 0, done.stderr


def test_skopeo_refuses_another_key(published: Published, verifier: Verifier, tmp_path: Path) -> None:
    command = ["openssl", "pkey", "-in", str(key_in(tmp_path)), "-pubout", "-out", str(tmp_path / "other.pub")]
    subprocess.run(command, check=True)
    done = verifier.pulls(f"{published.registry}/launcherkit:{__version__}", tmp_path / "other.pub")
    assert done.returncode != 0
    assert "cryptographic signature verification failed" in done.stderr


def test_skopeo_refuses_an_image_with_a_byte_that_was_changed(
    published: Published, verifier: Verifier, tmp_path: Path
) -> None:
    """Whoever writes to the registry can put something else under a tag, and the signature that there is beside it."""
    address = f"docker://{published.registry}/launcherkit"
    copied = skopeo("copy", "--src-tls-verify=false", f"{address}:{__version__}", f"dir:{tmp_path / 'it'}")
    assert copied.returncode == 0, copied.stderr
    manifest = tmp_path / "it" / "manifest.json"
    signed = hashlib.sha256(manifest.read_bytes()).hexdigest()
    manifest.write_text(manifest.read_text().replace("launcherkit-docs", "launcherkit-dogs", 1))
    changed = hashlib.sha256(manifest.read_bytes()).hexdigest()
    for source, target in [
        (f"dir:{tmp_path / 'it'}", f"{address}:changed"),
        (f"oci:{published.folder}/oci:launcherkit:sha256-{signed}.sig", f"{address}:sha256-{changed}.sig"),
    ]:
        done = skopeo("copy", "--dest-tls-verify=false", "--preserve-digests", source, target)
        assert done.returncode == 0, done.stderr
    done = verifier.pulls(f"{published.registry}/launcherkit:changed", published.folder / "cosign.pub")
    assert done.returncode != 0
    assert "does not match" in done.stderr


@pytest.mark.parametrize("changed", ["", "SHA256SUMS", "cosign.pub", f"launcherkit-{__version__}.tar.gz"])
def test_the_commands_of_the_page_verify_the_files(published: Published, changed: str, tmp_path: Path) -> None:
    for path in published.folder.iterdir():
        if path.is_file():
            shutil.copy(path, tmp_path)
    if changed:
        content = (tmp_path / changed).read_bytes()
        (tmp_path / changed).write_bytes(content[:60] + bytes([content[60] ^ 1]) + content[61:])
    script = next(block.text for block in blocks(PAGE) if "sha256sum" in block.text)
    done = subprocess.run(["bash", "-e", "-c", script], cwd=tmp_path, capture_output=True, text=True)
    assert (done.returncode == 0) is not bool(changed), done.stdout + done.stderr


# Again, and against what is there


def test_publishing_again_changes_nothing(published: Published) -> None:
    done = release(*where(published), "--key", str(published.key))
    assert done.returncode == 0, done.stderr
    assert {line.split("  ")[0] for line in done.stdout.splitlines()} == {"there already"}


def test_what_was_published_in_half_is_completed(published: Published) -> None:
    beside = published.folder.parent
    (beside / "index" / f"launcherkit-{__version__}.tar.gz").unlink()
    shutil.rmtree(beside / "registry/docker/registry/v2/repositories/gpu/launcherkit-webhook/_manifests/tags")
    done = release(*where(published), "--key", str(published.key))
    assert done.returncode == 0, done.stderr
    *pushes, upload = [line for line in done.stdout.splitlines() if not line.startswith("there already")]
    assert [line.split("@")[0] for line in pushes if ".sig@" not in line] == [
        f"pushed  {published.registry}/launcherkit-webhook:{__version__}"
    ]
    assert upload.startswith(f"uploaded  launcherkit-{__version__}.tar.gz")


def test_a_tag_that_has_something_else_is_refused_and_nothing_is_published(published: Published) -> None:
    layout, tag = (
        f"oci:{published.folder}/oci:launcherkit",
        f"docker://{published.registry}/launcherkit-plugin:{__version__}",
    )
    options = ["--all", "--preserve-digests", "--dest-tls-verify=false"]
    upload = published.folder.parent / "index" / f"launcherkit-{__version__}.tar.gz"
    upload.unlink()
    assert skopeo("copy", *options, f"{layout}-sidecar:{__version__}", tag).returncode == 0
    try:
        done = release(*where(published), "--key", str(published.key))
        assert (done.returncode, done.stdout) == (69, "")
        assert (
            f"{tag.removeprefix('docker://')} has launcherkit-plugin:{__version__} already, as sha256:" in done.stderr
        )
        assert "nothing was published" in done.stderr
        assert not upload.exists()
    finally:
        assert skopeo("copy", *options, f"{layout}-plugin:{__version__}", tag).returncode == 0
        shutil.copy(published.folder / upload.name, upload)


def test_a_file_that_the_index_has_with_other_bytes_is_refused(published: Published) -> None:
    upload = published.folder.parent / "index" / f"launcherkit-{__version__}.tar.gz"
    upload.write_text("another")
    try:
        done = release(*where(published), "--key", str(published.key))
        assert (done.returncode, done.stdout) == (69, "")
        assert f"{published.packages} has {upload.name} already" in done.stderr
    finally:
        shutil.copy(published.folder / upload.name, upload)


@pytest.mark.parametrize("inside", [False, True])
def test_a_byte_that_was_changed_is_noticed_before_anything_is_published(published: Published, inside: bool) -> None:
    (path,) = published.folder.glob("launcherkit-plugin-*.tgz")
    whole = path.read_bytes()
    if inside:
        path = published.folder / "oci/blobs/sha256" / hashlib.sha256(whole).hexdigest()
    path.write_bytes(whole[:-1] + b"?")
    try:
        done = release(*where(published), "--key", str(published.key))
        assert (done.returncode, done.stdout) == (1, "")
        assert (
            f"{path} {'has other bytes than its name says' if inside else 'is not as SHA256SUMS says'}" in done.stderr
        )
    finally:
        path.write_bytes(whole)


def test_a_folder_is_of_one_registry(published: Published) -> None:
    done = release(
        "--to-folder", str(published.folder), "--arch=amd64", "--registry=registry.example/other", "--unsigned"
    )
    assert (done.returncode, done.stdout) == (1, "")
    assert f"has a release whose registry is {published.registry}" in done.stderr


# Refusals


@pytest.fixture
def closed(tmp_path: Path) -> Iterator[str]:
    """A registry that wants a name and a password."""
    users = tmp_path / "users"
    users.write_text(f"me:$2y$05${'.' * 53}\n")  # no password has that hash
    with registry(tmp_path, users) as host:
        yield host


def test_a_registry_that_wants_a_login_is_told_with_the_command_for_it(closed: str) -> None:
    done = release("--registry", f"{closed}/gpu", "--plain-http", "--unsigned", "--dry-run", "--arch=amd64")
    assert (done.returncode, done.stdout) == (69, "")
    assert f"log in with `skopeo login {closed}`" in done.stderr


def test_a_registry_that_is_not_there_is_told(published: Published) -> None:
    done = release("--registry", "127.0.0.1:1/gpu", "--unsigned", "--dry-run", "--arch=amd64")
    assert (done.returncode, done.stdout) == (69, "")
    assert "connection refused; is it there?" in done.stderr


# The first hour


QUICKSTART = ROOT / "docs" / "how-to" / "quickstart.md"


def test_the_quickstarts_images_are_pushed_to_a_registry_as_its_page_says(published: Published, tmp_path: Path) -> None:
    with registry(tmp_path) as host:
        for name in pushed_by_quickstart():
            here = name.replace("registry.your-company.example", host)
            local = name.replace("registry.your-company.example", REGISTRY)
            subprocess.run(["buildah", "tag", local, here], check=True)
            subprocess.run(["buildah", "push", "--quiet", "--tls-verify=false", here], check=True, capture_output=True)
            subprocess.run(["buildah", "rmi", here], check=True, capture_output=True)
            assert inspected(f"docker://{here}")["Labels"]["org.opencontainers.image.version"] == __version__


def test_the_quickstarts_chart_and_vm_take_what_its_page_has_pushed() -> None:
    helm = pytest.importorskip("helm_python", reason="Helm's library isn't here: `./dev test api` installs it")
    files = {block.reported["file"]: block.text for block in blocks(QUICKSTART) if "file" in block.reported}
    (install,) = (line for line in lines_of_quickstart() if line.startswith("$ helm install "))
    with helm.Chart.load(str(ROOT / install.split()[4])) as chart:
        rendered = chart.render(yaml.safe_load(files["values.yaml"]), name="launcherkit-plugin", namespace="gpus")
    taken = re.findall(r'image: "([^"]+)"', "".join(rendered.values()))
    taken += re.findall(r'"image": "([^"]+)"', files["gpu-vm.yaml"])
    assert set(taken) == set(pushed_by_quickstart())


def pushed_by_quickstart() -> list[str]:
    """The images that the page has readers push."""
    return [line.split()[-1] for line in lines_of_quickstart() if line.startswith("buildah push ")]


def lines_of_quickstart() -> list[str]:
    return [line for block in blocks(QUICKSTART) for line in block.text.splitlines()]
