"""Faults on command: what goes wrong with a function of the machine that is up, and how its card gets well again."""

from __future__ import annotations

import shlex
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from launcherkit_lab.boot import BIND, bound, lines_of
from launcherkit_lab.driver.build import FAULTS as MODULE
from launcherkit_lab.driver.build import build
from launcherkit_lab.machine import SHARE
from launcherkit_lab.packages import fetch
from launcherkit_lab.plugged import device_options, function_id, port_id
from launcherkit_lab.session import CannotStart, Session

FILE = "vendor"
"""The file that hangs where none is named."""


class NotInMachine(Exception):
    """The machine has no such function, card or file, or can't have such a fault."""


class Fault(NamedTuple):
    """What can go wrong."""

    about: str
    does: str
    """In shell, where $function and $port are addresses and $file a file's name."""


_TAKER = "uio_pci_generic"
FAULTS: Mapping[str, Fault] = {
    "removed": Fault("the kernel has removed the function, and knows it no more", "echo 1 >$function/remove"),
    "unplugged": Fault(
        "the function's card was pulled out (surprise removal); it comes back by hot-plug",
        "unplug $port; await '[ ! -e $function ]' \"$function still there\"",
    ),
    "unpowered": Fault(
        "the slot of the function's card has lost power: configuration space reads as ones", "set_slot $port 5"
    ),
    "taken": Fault(
        f"the function is bound to {_TAKER}, so that no other one of its group can go to a guest",
        bound("$function", _TAKER),
    ),
    "refused": Fault("no driver takes the function: from now on each probe of it fails with EIO", "list refused"),
    "hanging": Fault(
        "who reads a file of the function hangs in the kernel, where no signal reaches it",
        '[ -f $function/$file ] || die "$function has no file $file"; list hanging /$file',
    ),
}
NEEDS_MODULE = ("refused", "hanging")
"""Those that a kernel module makes."""
IMPOSSIBLE: Mapping[str, str] = {
    "d3cold": "Linux puts a function into D3cold only where ACPI has a power resource for its port, and QEMU's machine "
    "has none; `unpowered` takes the power from a slot without the kernel's knowledge"
}
"""What a card may do and QEMU can't, and why."""

# In the second byte of a port's Slot Control 4 switches off the power, and 3 is an indicator that is off (PCI Express
# base specification, 7.5.3.10). QEMU gives the card no power then, or pulls it out where the indicator is off too; for
# that it wants both bytes in one write. 32 in the first byte are the interrupts of hot-plug: the kernel hears of a card
# that was pulled when the power is on again, for without power it takes the slot for one that it has emptied itself.
_SHELL = f"""
cd /sys/bus/pci/devices
faults=/sys/module/{MODULE}/parameters
die() {{
    echo "$*" >&2
    exit 1
}}
byte() {{ od -An -tu1 -j"$2" -N1 "$1/config" | tr -d ' '; }}
find_slot() {{
    at=$(byte $1 52)
    until [ "$(byte $1 $at)" = 16 ]; do at=$(byte $1 $((at + 1))); done
    at=$((at + 24))
    low=$(byte $1 $at) high=$(byte $1 $((at + 1)))
}}
write_slot() {{
    printf "$(printf '\\\\%o\\\\%o' $2 $((high & 248 | $3)))" |
        dd of=$1/config bs=2 seek=$((at / 2)) conv=notrunc status=none
}}
set_slot() {{
    find_slot $1
    write_slot $1 $low $2
}}
unplug() {{
    find_slot $1
    write_slot $1 $((low & 223)) 7
    write_slot $1 $low 1
}}
await() {{
    tries=0
    until eval "$1"; do
        tries=$((tries + 1))
        [ $tries -lt 600 ] || die "after a minute: $2"
        sleep 0.1
    done
}}
arrived() {{ await "[ -e $1 ]" "no $1"; }}
list() {{
    [ -e $faults ] || insmod {SHARE / MODULE}.ko
    echo "$(cat $faults/$1) $function$2" >$faults/$1
}}
"""


# After it the kernel knows of every function, and no fault is left but in how functions are bound.
_WELL = f"""
for function in $functions; do
    for name in refused hanging; do
        [ ! -e $faults ] || {{
            left=$(sed "s# $function[^ ]*##g" $faults/$name)
            echo "$left" >$faults/$name
        }}
    done
done
find_slot $port
if [ $((high & 4)) != 0 ]; then
    set_slot $port 1
    for function in $functions; do [ ! -e $function ] || echo 1 >$function/remove; done
fi
for bus in $port/pci_bus/*; do echo 1 >$bus/rescan; done
for function in $functions; do
    arrived $function
    if [ "$(cat $function/driver_override)" = {_TAKER} ]; then
        echo $function >$function/driver/unbind
        echo >$function/driver_override
        echo $function >/sys/bus/pci/drivers_probe
    fi
done
"""


def make(session: Session, fault: str, name: str, file: str, cache: Path) -> None:
    """Let a fault happen to a function.

    Raises:
        NotInMachine: no such function, or the machine can't have the fault.
        NoMachine: it is not up.
        CannotFetch, CannotBuild: the module that makes the fault can't be had.
        CannotStart: it did not happen.
    """
    functions = session.functions()
    if name not in functions:
        raise NotInMachine(f"no function {name} in this machine; there are {', '.join(functions)}")
    if fault in IMPOSSIBLE:
        raise NotInMachine(f"{fault}: {IMPOSSIBLE[fault]}")
    if fault in NEEDS_MODULE:
        shutil.copy(build(fetch(cache).headers, cache, MODULE), session.folder)
    port = session.addresses()[port_id(name.partition(".")[0])]
    _do(session, f"function={functions[name]} port={port} file={shlex.quote(file)}", FAULTS[fault].does)


def recover(session: Session, name: str) -> None:
    """Make a card be as its machine is described, whatever happened to it.

    Raises:
        NotInMachine: there is no such card.
        NoMachine: the machine is not up.
        CannotStart: it does not get well.
    """
    description = session.description()
    card = next((card for card in description.cards if card.name == name), None)
    if card is None:
        names = ", ".join(card.name for card in description.cards)
        raise NotInMachine(f"no card {name} in this machine; there are {names}")
    addresses, plugged = session.functions(), session.addresses()
    functions = [addresses[function_id(card, index)] for index in range(len(card.functions))]
    lines = [f"port={plugged[port_id(name)]} functions='{' '.join(functions)}'"]
    if function_id(card, 0) not in plugged:
        # QEMU shows the kernel a card as soon as its function 0 is there, so that comes last.
        for option in reversed([each for each in device_options(description) if f",bus={port_id(name)}," in each]):
            session.plug(option)
        lines += [f"arrived {function}" for function in functions]
    _do(session, *lines, _WELL, *lines_of(card, addresses))


def _do(session: Session, *lines: str) -> None:
    with tempfile.TemporaryFile() as said:
        if session.run(["sh", "-ec", "\n".join([BIND, _SHELL, *lines])], Path("/"), said, said):
            said.seek(0)
            raise CannotStart(said.read().decode(errors="replace").strip() or "the machine gives no reason")
