"""What people write of injections, and what is wrong with it."""

from __future__ import annotations

from pathlib import Path

import pytest

from launcherkit.errors import BadConfig, SeveralErrors
from launcherkit_plugin.model.errors import BAD_INJECTIONS
from launcherkit_plugin.webhook.injection import read_injections, read_parameters
from tests.support.errors import raises_code

GOOD = "name: one\nwhen: {}\nadd: {containers: [{name: a, image: '${image}'}]}\nparameters: {image: b}\n"


def read(folder: Path, **files: str) -> list[str]:
    for name, text in files.items():
        (folder / f"{name}.yaml").write_text(text)
    return list(read_injections(folder))


def test_a_folder_has_a_file_for_each(tmp_path: Path) -> None:
    assert read(tmp_path, first=GOOD, second=GOOD.replace("one", "two")) == ["one", "two"]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[", "not YAML"),
        (GOOD.replace("when", "whne"), "whne: unknown key"),
        (GOOD.replace("name: one", "name: One/1"), "name: "),
        (GOOD.replace("name: a", "nam: a"), "add.containers.0: it has no name"),
        (GOOD.replace("{image: b}", "{}"), "${image} is not among its parameters"),
        (GOOD.replace("when: {}", "when: {labels: 1}"), "when.labels: "),
        (GOOD.replace("name: a,", "name: a, resources: [],"), "add.containers.0: its resources are not an object"),
        (GOOD.replace("${image}", "a-${image}"), "a parameter is a part of 'a-${image}'; it must be the whole string"),
    ],
)
def test_what_is_wrong_is_told_by_file_and_key(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises((BadConfig, SeveralErrors)) as caught:
        read(tmp_path, one=text)
    assert {leaf.code for leaf in caught.value.leaves()} == {BAD_INJECTIONS.code}
    assert f"{tmp_path}/one.yaml" in str(caught.value)
    assert said in str(caught.value)


def test_a_name_is_a_label_of_at_most_63_characters(tmp_path: Path) -> None:
    """It is a label's value, and part of a path."""
    assert read(tmp_path, one=GOOD.replace("one", "a" * 63)) == ["a" * 63]
    with raises_code(BAD_INJECTIONS, match="name: "):
        read(tmp_path, one=GOOD.replace("one", "a" * 64))


def test_two_of_one_name_are_refused(tmp_path: Path) -> None:
    with raises_code(BAD_INJECTIONS, match=r"second\.yaml, name: one"):
        read(tmp_path, first=GOOD, second=GOOD)


def test_an_empty_folder_is_refused(tmp_path: Path) -> None:
    with raises_code(BAD_INJECTIONS, match=r"there is no \*\.yaml"):
        read_injections(tmp_path)


def test_parameters_are_read_as_the_kubelet_mounts_a_config_map(tmp_path: Path) -> None:
    # one/image -> ..data/image, ..data -> ..2026_1
    (tmp_path / "one" / "..2026_1").mkdir(parents=True)
    (tmp_path / "one" / "..2026_1" / "image").write_text("b")
    (tmp_path / "one" / "..data").symlink_to("..2026_1")
    (tmp_path / "one" / "image").symlink_to("..data/image")
    (tmp_path / "one" / "binary").write_bytes(b"\xff")  # of `binaryData`
    assert read_parameters(tmp_path / "one") == {"image": "b"}


def test_a_config_map_that_is_missing_is_told_from_one_that_lacks_a_key(tmp_path: Path) -> None:
    assert read_parameters(tmp_path / "none") is None
    (tmp_path / "empty").mkdir()  # as an optional one is mounted
    assert read_parameters(tmp_path / "empty") is None
