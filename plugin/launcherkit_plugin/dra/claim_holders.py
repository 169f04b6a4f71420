"""Which devices claims have, where their records don't say it: by their other files, and for commands."""

from __future__ import annotations

from functools import partial
from glob import escape, glob

from launcherkit.atomic import Disk
from launcherkit_plugin.dra.claim_files import ClaimPlaces, cdi_devices, metadata_devices, metadata_files
from launcherkit_plugin.dra.claim_record import FOLDER, Checkpoint
from launcherkit_plugin.model.config import DraConfig
from launcherkit_plugin.model.device import Usage


def told(places: ClaimPlaces, uid: str) -> frozenset[str] | None:
    """The published names of a claim's devices, by its CDI file, else by its metadata.

    Both are written before the record and removed before it. None of them: the claim isn't prepared. Returns None if
    the devices can't be determined.
    """
    try:
        return cdi_devices(places.of_claim(uid), uid)
    except FileNotFoundError:
        without = frozenset[str]()
    except (OSError, ValueError):
        without = None
    found: set[str] = set()
    for path in metadata_files(places):
        try:
            found |= metadata_devices(path, uid)
        except FileNotFoundError:
            continue
        except OSError:
            return None
        except ValueError:
            continue  # of no claim: it is written as a whole
    return frozenset(found) or without


def with_claims(usage: Usage, kubelet_dir: str, boot: str) -> Usage:
    """Usage with the devices of ResourceClaims, from the records of all drivers on the node. For commands only: they
    may not see the CDI files, so a claim of which no file tells may have any device."""
    held = {resource: dict(devices) for resource, devices in usage.held.items()}
    known = True
    for folder in sorted(glob(f"{escape(kubelet_dir)}/plugins/*/{FOLDER}")):
        places = ClaimPlaces(folder.split("/")[-2], kubelet_dir, DraConfig().cdi_folder)
        records = Checkpoint(folder, boot, Disk(), partial(told, places)).read()
        claimed, all_known = records.held()
        known &= all_known and all(broken.devices for broken in records.broken.values())
        for resource, devices in claimed.items():
            held.setdefault(resource, {}).update(devices)
    return usage._replace(source=usage.source if known else "none", held=held)
