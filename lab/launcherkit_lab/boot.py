"""What a machine does when it is up: virtual functions are made, functions get their drivers."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from pathlib import Path

from launcherkit_lab.description import Card, Description, Function
from launcherkit_lab.driver.build import IDS, NAME, VFS
from launcherkit_lab.driver.vgpus import DRIVER
from launcherkit_lab.plugged import function_id

_MODULES = {"bochs-drm": "bochs", "xhci_hcd": "xhci_pci"}
"""Modules whose drivers have names of their own; else a module has the name of its driver."""
# In shell: bind ADDRESS DRIVER MODULE; a function that is bound so already stays as it is.
BIND = """
bind() {
    [ "$(basename "$(readlink /sys/bus/pci/devices/$1/driver)")" != "$2" ] || return 0
    [ "$2" = nvidia ] || modprobe "$3" || exit
    [ ! -e /sys/bus/pci/devices/$1/driver ] || echo $1 >/sys/bus/pci/devices/$1/driver/unbind
    echo $2 >/sys/bus/pci/devices/$1/driver_override
    echo $1 >/sys/bus/pci/drivers_probe
    bound=$(basename "$(readlink /sys/bus/pci/devices/$1/driver)")
    [ "$bound" = "$2" ] || { echo "$1 is bound to ${bound:-no driver}, not to $2" >&2; exit 1; }
}
"""


def modules(description: Description) -> tuple[str, ...]:
    """The lab's kernel modules that a machine needs, by `build`'s names."""
    functions = [function for card in description.cards for function in card.functions]
    needed = {
        IDS: any(function.is_renamed for function in functions),
        NAME: any(function.kind == "mdev-parent" for function in functions),
        VFS: any(function.vf_driver == DRIVER for function in functions),
    }
    return tuple(name for name, is_needed in needed.items() if is_needed)


def boot_script(description: Description, addresses: Mapping[str, str], built: Mapping[str, Path]) -> str:
    """The commands for a shell in the machine; they end with the first that fails.

    Args:
        addresses: of the functions, by name.
        built: those of `modules`, by name.
    """
    return "\n".join(["set -e", BIND, *_lines(description, addresses, built)]) + "\n"


def _lines(description: Description, addresses: Mapping[str, str], built: Mapping[str, Path]) -> Iterator[str]:
    if module := built.get(IDS):
        yield from _renamed(description, addresses, module)
    if module := built.get(NAME):
        yield f"modprobe -a mdev drm && insmod {shlex.quote(str(module))}"
    if module := built.get(VFS):
        yield f"modprobe -a vfio_pci_core vfio_iommu_type1 && insmod {shlex.quote(str(module))}"
    for card in description.cards:
        yield from lines_of(card, addresses)


def _renamed(description: Description, addresses: Mapping[str, str], module: Path) -> Iterator[str]:
    """Functions with IDs that QEMU's devices can't have: the kernel forgets them, and finds them anew."""
    named = {
        addresses[function_id(card, index)]: function.ids
        for card in description.cards
        for index, function in enumerate(card.functions)
        if function.is_renamed
    }
    yield f"insmod {shlex.quote(str(module))} ids={','.join(f'{address}={ids}' for address, ids in named.items())}"
    yield from (f"echo 1 >/sys/bus/pci/devices/{address}/remove" for address in named)
    yield "echo 1 >/sys/bus/pci/rescan"


def lines_of(card: Card, addresses: Mapping[str, str]) -> Iterator[str]:
    """The commands for one card, after `BIND`."""
    for index, function in enumerate(card.functions):
        address = addresses[function_id(card, index)]
        if driver := DRIVER if function.kind == "mdev-parent" else function.driver:
            yield bound(address, driver)
        if function.vfs:
            yield from _with_vfs(address, function)


def bound(address: str, driver: str) -> str:
    """The command that binds a function."""
    return f"bind {address} {driver} {_MODULES.get(driver, driver)}"


def _with_vfs(address: str, function: Function) -> Iterator[str]:
    folder = f"/sys/bus/pci/devices/{address}"
    yield f"echo 0 >{folder}/sriov_drivers_autoprobe"
    yield f"echo {function.vfs} >{folder}/sriov_numvfs"
    if driver := function.vf_driver:
        yield f"for link in {folder}/virtfn*; do {bound('$(basename $(readlink $link))', driver)}; done"
