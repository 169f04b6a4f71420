"""Cases that belong together: what differs in their inputs makes no difference in the document, to the byte."""

from __future__ import annotations

from pathlib import Path

import pytest

from launcherkit.golden.run import run_case

GOLDEN = Path(__file__).parent

TWO_GPUS = "two-gpus-with-audio"
"""Its variable lists every function of both cards."""

SAID_IN_OTHER_WORDS = {
    TWO_GPUS: (
        "companions-in-any-order",
        "dialect-kubevirt-2019",
        "dialect-kubevirt-own",
        "dialect-nvidia-1.4",
        "dialect-nvidia-1.5",
        "dialect-nvidia-1.6",
        "no-host-facts",
    ),
    "vf": ("dialect-sriov-network",),
    "gpu-and-its-audio-by-name": ("gpu-and-its-audio-by-name-repeated-list",),
    "mdev-display-silent": (
        "mdev-display-empty-block",
        "mdev-display-enabled",
        "mdev-display-options-without-block",
        "mdev-display-ramfb-block-empty",
        "mdev-display-ramfb-enabled",
    ),
    "mdev-display-disabled": ("mdev-display-disabled-ramfb-enabled",),
    "kubevirt-own-output": ("kubevirt-own-output-no-vmi", "stripped-second-pass"),
    "managed-yes": ("managed-yes-by-flag",),
    "two-cards-in-one-group": ("two-cards-in-one-group-siblings-group",),
}

UNCHANGED = ("asks-for-nothing", "container-capabilities-untouched", "nothing-at-all")

ONLY_ADDED_TO = (
    "document-in-latin-1",
    "document-of-odd-spelling",
    "document-on-one-line",
    "document-with-tabs-and-crlf",
    "existing-root-ports",
    "i440fx-one-slot-left",
    "interface-has-the-vf",
    "other-hostdevs-untouched",
)


def read(case: str, name: str) -> bytes:
    return (GOLDEN / case / name).read_bytes()


@pytest.mark.parametrize(
    ("case", "other"), [(case, other) for case, others in SAID_IN_OTHER_WORDS.items() for other in others]
)
def test_the_same_request_in_other_words_gives_the_same_document(case: str, other: str) -> None:
    assert read(other, "expected.xml") == read(case, "expected.xml")


@pytest.mark.parametrize("dialect", [name for name in SAID_IN_OTHER_WORDS[TWO_GPUS] if name.startswith("dialect-")])
@pytest.mark.parametrize("name", ["domain.xml", "vmi.json", "host.json"])
def test_dialects_differ_in_nothing_but_the_environment(dialect: str, name: str) -> None:
    assert read(dialect, name) == read(TWO_GPUS, name)


@pytest.mark.parametrize("case", UNCHANGED)
def test_a_document_that_nothing_is_asked_of_goes_out_byte_for_byte(case: str) -> None:
    document = run_case(str(GOLDEN / case)).document
    assert document == read(case, "domain.xml") == read(case, "expected.xml")


@pytest.mark.parametrize("case", ONLY_ADDED_TO)
def test_what_is_added_leaves_every_other_byte_in_its_place(case: str) -> None:
    before, after = read(case, "domain.xml"), run_case(str(GOLDEN / case)).document
    assert after is not None
    head = next((at for at, (old, new) in enumerate(zip(before, after, strict=False)) if old != new), len(before))
    assert after.endswith(before[head:])
