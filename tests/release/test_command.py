"""``./dev release``: what it refuses before anything is built or published, and what it says then."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

pytest.importorskip("cryptography", reason="`./dev build` has it")
pytest.importorskip("twine", reason="`./dev build` has it")

from launcherkit import __version__
from tests.support.registry import package_index
from tools.release import publish, release
from tools.release.assemble import archive, chart_files
from tools.release.images import OWN_ARCHITECTURE, REGISTRY
from tools.release.oci import Layout

ROOT = Path(__file__).parents[2]
LOG = f"## [Unreleased]\n\n## [{__version__}] - 2026-11-25\n\n- A\n"
TO = ("--registry", "registry.example/gpu", "--unsigned")


def program(path: Path, script: str) -> None:
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with stand-ins for the programs that a release takes: a registry that has nothing, and no QEMU."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for name in ("buildah", "mmdebstrap"):
        program(folder / name, "exit 1")
    program(folder / "skopeo", "echo 'manifest unknown' >&2; exit 1")
    program(folder / "git", 'exec /usr/bin/git "$@"')
    program(folder / "arch-test", "exit 1")
    monkeypatch.setenv("PATH", str(folder))
    return folder


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A repository with a changelog and nothing that isn't committed."""
    folder = tmp_path / "checkout"
    folder.mkdir()
    (folder / "CHANGELOG.md").write_text(LOG)
    (folder / "pyproject.toml").write_text((ROOT / "pyproject.toml").read_text())
    commit(folder)
    return folder


def commit(folder: Path) -> None:
    who = ("-c", "user.name=a", "-c", "user.email=a@e.org")
    for words in (("init", "--quiet"), ("add", "."), ("commit", "--quiet", "--message=a")):
        subprocess.run(["/usr/bin/git", "-C", folder, *who, *words], check=True)


def said(capsys: pytest.CaptureFixture[str], root: Path, *arguments: str) -> tuple[int, str, str]:
    try:
        code = release.main(arguments, root)
    except SystemExit as end:
        code = int(end.code or 0)
    out, err = capsys.readouterr()
    return code, out, err


own = f"--arch={OWN_ARCHITECTURE}"
needs_git = pytest.mark.skipif(not Path("/usr/bin/git").exists(), reason="no git here")


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ((), "nowhere to publish"),
        (("--registry", "registry.example"), "a release is signed: give --key, or --unsigned"),
        (("--index", "https://e.org"), "a release is signed"),
        ((*TO, "--key", "a"), "contradict"),
        (("--registry", "https://registry.example", "--unsigned"), "no https://"),
        (("--registry", "registry.example/Gpu", "--unsigned"), "a host, perhaps with a port and a path"),
        (("--index", "pypi", "--unsigned"), "begins with https://"),
        ((*TO, "--arch", "riscv64"), "invalid choice"),
    ],
)
def test_wrong_arguments_are_refused(
    arguments: tuple[str, ...], problem: str, checkout: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = said(capsys, checkout, *arguments)
    assert (code, out) == (2, "")
    assert problem in err


@needs_git
def test_a_dry_run_says_what_would_be_published_where_and_publishes_nothing(
    programs: Path, checkout: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = said(capsys, checkout, "--dry-run", "--registry", "registry.example/gpu", own)
    assert (code, err) == (0, "")
    assert out.splitlines()[1].split()[:2] == ["push", f"registry.example/gpu/launcherkit-sidecar:{__version__}"]
    assert f"push    registry.example/gpu/charts/launcherkit-plugin:{__version__}  chart" in out
    assert "sign    nothing" in out


@needs_git
def test_what_no_commit_has_is_not_published(
    programs: Path, checkout: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (checkout / "new").touch()
    code, out, err = said(capsys, checkout, *TO, own)
    assert (code, out) == (1, "")
    assert "changes that no commit has; commit them" in err


@needs_git
def test_a_version_without_its_date_in_the_changelog_is_not_published(
    programs: Path, checkout: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (checkout / "CHANGELOG.md").write_text("## [Unreleased]\n")
    commit(checkout)
    code, out, err = said(capsys, checkout, *TO, own)
    assert (code, out) == (1, "")
    assert f"no heading `## [{__version__}] - YYYY-MM-DD`" in err


@needs_git
def test_changes_that_no_version_has_are_told_of(
    programs: Path, checkout: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (checkout / "CHANGELOG.md").write_text(LOG.replace("d]\n", "d]\n\n- B\n"))
    commit(checkout)
    code, _, err = said(capsys, checkout, "--dry-run", *TO, own)
    assert code == 0
    assert "changes under Unreleased" in err


@needs_git
@pytest.mark.parametrize("missing", ["buildah", "mmdebstrap", "skopeo"])
def test_a_missing_program_is_named_with_its_package(
    programs: Path, checkout: Path, missing: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (programs / missing).unlink()
    code, out, err = said(capsys, checkout, *TO, own)
    assert (code, out) == (1, "")
    assert f"there is no {missing}: apt-get install --no-install-recommends {missing}" in err


@needs_git
def test_an_architecture_that_does_not_run_here_is_told_with_its_packages(
    programs: Path, checkout: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = said(capsys, checkout, *TO)
    assert (code, out) == (1, "")
    assert "apt-get install --no-install-recommends qemu-user-static binfmt-support arch-test" in err
    assert f"or leave it out: {own.replace('=', ' ')}" in err


@needs_git
def test_a_key_that_cannot_be_used_is_told_before_anything_is_done(
    checkout: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = said(capsys, checkout, *TO[:2], "--key", str(tmp_path / "key.pem"))
    assert (code, out) == (69, "")
    assert "key.pem" in err


@needs_git
@pytest.mark.parametrize(
    ("words", "remedy"),
    [
        ("unauthorized: authentication required", "log in with `skopeo login registry.example`"),
        ("denied: requested access to the resource is denied", "log in with `skopeo login registry.example`"),
        ("received unexpected HTTP status: 503 Service Unavailable", "503 Service Unavailable"),
        ("dial tcp 192.0.2.1:443: connect: connection refused", "is it there?"),
        ("http: server gave HTTP response to HTTPS client", "--plain-http"),
    ],
)
def test_what_a_registry_refuses_is_told_in_its_words_with_what_to_do(
    programs: Path, checkout: Path, words: str, remedy: str, capsys: pytest.CaptureFixture[str]
) -> None:
    program(programs / "skopeo", f"""echo 'time="now" level=fatal msg="{words}"' >&2; exit 1""")
    code, out, err = said(capsys, checkout, "--dry-run", *TO, own)
    assert (code, out) == (69, "")
    assert f"{TO[1]}/launcherkit-sidecar:{__version__}: {words}" in err
    assert remedy in err


@needs_git
def test_only_twine_gets_what_it_logs_in_with(
    programs: Path, checkout: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TWINE_PASSWORD", "geheim")
    program(programs / "skopeo", f"export >{tmp_path}/seen; echo 'manifest unknown' >&2; exit 1")
    assert said(capsys, checkout, "--dry-run", *TO, own)[0] == 0
    assert "PATH" in (tmp_path / "seen").read_text()
    assert "geheim" not in (tmp_path / "seen").read_text()


def test_what_a_registry_has_after_a_push_is_compared_with_what_was_pushed(programs: Path, tmp_path: Path) -> None:
    program(programs / "skopeo", "[ $1 = copy ] || echo another")
    layout = Layout(tmp_path / "oci")
    layout.create()
    with pytest.raises(publish.CannotPublish, match=r"the registry has sha256:.* now, and sha256:0 was pushed"):
        publish.Registry("registry.example").push(layout, "a:1", "sha256:0")


def test_signatures_are_pushed_before_what_they_sign(programs: Path, tmp_path: Path) -> None:
    layout = Layout(tmp_path / "oci")
    layout.create()
    for reference in ("a:1", "b:sha256-1.sig", "c:1"):
        layout.add_reference(reference, {"mediaType": "a/b", "digest": "sha256:1", "size": 1})
    steps = publish.plan_registry(layout, publish.Registry("registry.example"))
    assert [step.what for step in steps] == ["b:sha256-1.sig", "a:1", "c:1"]


# Indices


def packages(folder: Path) -> list[Path]:
    names = ("launcherkit-0.1.0-py3-none-any.whl", "launcherkit_plugin-0.1.0.tar.gz")
    for name in names:
        (folder / name).write_text(name)
    return [folder / name for name in names]


def test_files_that_an_index_has_are_left_alone_and_others_are_a_conflict(tmp_path: Path) -> None:
    files = packages(tmp_path)
    (tmp_path / "index").mkdir()
    with package_index(tmp_path / "index") as address:
        index = publish.Index(address, f"{address}/simple")
        steps = publish.plan_index(files, index)
        assert [step.there for step in steps] == [None, None]
        (tmp_path / "index" / files[0].name).write_text(files[0].name)
        (tmp_path / "index" / files[1].name).write_text("another")
        same, other = publish.plan_index(files, index)
    assert (same.there, same.conflict) == (same.digest, False)
    assert other.conflict
    with pytest.raises(publish.CannotPublish, match=rf"has {files[1].name} already") as caught:
        publish.refuse_conflicts([same, other])
    assert files[0].name not in str(caught.value)


@pytest.mark.parametrize(
    ("host", "path", "pages"),
    [
        ("index.example", "/gpu", "index.example/gpu"),
        ("index.example", "/gpu/", "index.example/gpu"),
        ("index.example", "/legacy/", "index.example"),
        ("upload.index.example", "/legacy/", "index.example"),
        ("upload.index.example", "/gpu", "upload.index.example/gpu"),
    ],
)
def test_what_was_uploaded_is_looked_for_where_pip_finds_it(host: str, path: str, pages: str) -> None:
    address = "https://{}".format
    assert release.pages_of(address(host + path)) == address(pages) + "/simple"


def test_an_index_that_is_not_there_is_told(tmp_path: Path) -> None:
    with package_index(tmp_path) as address:
        pass
    with pytest.raises(publish.CannotPublish, match=address):
        publish.Index(address, f"{address}/simple").published("launcherkit")
    with pytest.raises(publish.CannotPublish, match="twine says"):
        publish.Index(address, f"{address}/simple").upload(packages(tmp_path), {})


# What is made


def test_an_archive_has_the_same_bytes_whatever_the_order_and_the_time() -> None:
    files = {"b/c": b"1", "a": b"2"}
    assert archive("top", files) == archive("top", dict(reversed(files.items())))
    assert archive("top", files) != archive("top", {**files, "a": b"3"})


def test_the_chart_of_a_release_starts_the_images_of_its_registry_and_names_no_other() -> None:
    files = chart_files("registry.example.com/gpu")
    for name in ("values.yaml", "values.schema.json", "README.md"):
        assert b"registry.example.com/gpu/launcherkit-plugin" in files[name]
        assert f"{REGISTRY}/".encode() not in files[name]
    assert chart_files(REGISTRY)["values.yaml"] == (ROOT / "deploy/helm/launcherkit-plugin/values.yaml").read_bytes()
